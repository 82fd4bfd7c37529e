"""Effects of low precision on a model: roundings, their sources, and their amplification."""
