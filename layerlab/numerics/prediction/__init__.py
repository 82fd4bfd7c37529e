"""Rounding errors predicted from one exact pass."""
