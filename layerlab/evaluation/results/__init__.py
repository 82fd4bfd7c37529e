"""Results of an evaluation, beside what was published."""
