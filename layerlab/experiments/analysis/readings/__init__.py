"""Measures beside the loss: curves, and readings of a run as one number."""
