"""Steps of the commands: stages of an adaptation, scores of finished models, verdicts on logs."""
