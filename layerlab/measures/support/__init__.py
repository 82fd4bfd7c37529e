"""What several quantities need."""
