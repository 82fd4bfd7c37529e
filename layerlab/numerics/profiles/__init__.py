"""How an engine computes a model: numerics profiles, and two of them run side by side."""
