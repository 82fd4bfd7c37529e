"""Steps of the commands: inspected models, stages of an adaptation, scores, verdicts on logs."""
