"""A comparison at several sizes: verdicts by size, the trend over them, and what lies beyond."""
