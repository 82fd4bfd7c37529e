"""Which parts of a model keep float32, and how a model is made to follow it."""
