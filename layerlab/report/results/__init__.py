"""Results as folders, and as lines on a terminal."""
