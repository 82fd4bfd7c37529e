"""Readers of training logs that other programs wrote."""
