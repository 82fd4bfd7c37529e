"""How a study runs, is recorded and judged."""
