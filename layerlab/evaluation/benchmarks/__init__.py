"""Benchmarks: what they are, and their items."""
