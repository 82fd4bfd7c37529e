"""Rounding errors of the built-in models."""
