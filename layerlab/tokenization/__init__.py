"""Tokenizers: loaded, trained, extended, pruned and verified."""
