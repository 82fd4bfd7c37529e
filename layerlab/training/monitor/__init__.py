"""Readings of a model while it trains."""
