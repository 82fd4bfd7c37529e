"""The bounds of the source on rounding errors."""
