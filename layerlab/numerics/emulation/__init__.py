"""Models in emulated arithmetic."""
