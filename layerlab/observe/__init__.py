"""Looking into a model: its parts, and what passes through them."""
