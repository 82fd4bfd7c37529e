"""Attention as a model computes it: listened to, kept as its factors, read by tiles."""
