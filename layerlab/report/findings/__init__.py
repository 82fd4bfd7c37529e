"""Rules from readings to findings: one subject, one file, `RULES` at its foot."""
