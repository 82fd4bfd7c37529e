"""Ideas for residual streams and shortcuts."""
