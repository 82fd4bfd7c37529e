"""Training logs that other programs wrote: which there are, and what in them is judged."""
