"""Inside one update."""
