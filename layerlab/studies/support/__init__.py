"""What several studies need."""
