"""Ideas for norms."""
