"""Numerics profiles of engines, and two of them run side by side."""
