"""The command line: thin commands over the public functions."""
