"""What a run keeps, and how it is found again."""
