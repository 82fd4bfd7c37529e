"""When readings are worth a sentence: one subject, one file, `RULES` at its foot."""
