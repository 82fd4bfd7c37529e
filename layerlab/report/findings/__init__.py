"""When readings make a finding: one subject, one file, `RULES` at its foot."""
