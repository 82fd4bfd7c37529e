"""Models that answered the same questions: each against a baseline, question by question."""
