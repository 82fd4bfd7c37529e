"""Embedding rows for new tokens."""
