"""Compares runs from their folders."""
