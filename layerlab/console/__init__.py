"""Output on a terminal: tables, units, live progress."""
