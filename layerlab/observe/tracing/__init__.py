"""Traces of a forward pass: features, attention, gradients."""
