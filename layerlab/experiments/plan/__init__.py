"""Which runs, and on which terms."""
