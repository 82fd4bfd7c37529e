"""Quantities of weights alone, which need neither a text nor a forward pass."""
