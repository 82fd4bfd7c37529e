"""Weights that other tools packed, unpacked once to the numbers that they stand for."""
