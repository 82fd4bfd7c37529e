"""Which modules to keep in higher precision."""
