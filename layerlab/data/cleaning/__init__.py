"""Documents cleaned: filtered, each kept once, and apart from benchmarks."""
