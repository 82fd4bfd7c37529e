"""Training on equal terms: one run, many runs, and a verdict with its uncertainty."""
