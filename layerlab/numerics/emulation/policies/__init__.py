"""Policies of the parts that keep float32, and models that follow them."""
