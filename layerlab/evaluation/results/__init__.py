"""What an evaluation came to, beside what was published."""
