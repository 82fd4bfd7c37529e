"""Weights of a saved model: found, checked, read whole or by layer, told by a hash."""
