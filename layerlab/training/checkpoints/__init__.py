"""Checkpoints of a run, kept and found again."""
