"""Plans runs, and checks that they are comparable."""
