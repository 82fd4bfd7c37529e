"""What stands on a terminal: tables, units, live progress."""
