"""A run's folder as JSON: read and written without torch."""
