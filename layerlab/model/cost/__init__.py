"""Costs of variants, and the sizes at which two match."""
