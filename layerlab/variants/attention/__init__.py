"""Ideas for attention."""
