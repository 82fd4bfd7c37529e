"""The quantities, one a file; nothing else lies here."""
