"""What low precision does to a model: roundings, their sources, and how far parts amplify them."""
