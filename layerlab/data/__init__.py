"""Texts: where they come from, read a document at a time."""
