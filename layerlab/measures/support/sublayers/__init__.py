"""Forms of sublayers that theorems speak of, and what bounds their gain of diversity."""
