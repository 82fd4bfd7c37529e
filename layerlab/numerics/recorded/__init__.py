"""Log-probabilities that an engine recorded: which arithmetic they fit, or which mistake."""
