"""The quantities, one a file; those of weights and of low precision in folders of their own."""
