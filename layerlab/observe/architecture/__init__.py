"""What a model is made of: blocks, norms, projections, heads."""
