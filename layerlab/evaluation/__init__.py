"""Evaluate models on the benchmarks of the sources; lm-eval is the engine."""
