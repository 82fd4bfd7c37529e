"""The parts of a model: blocks, norms, projections, heads."""
