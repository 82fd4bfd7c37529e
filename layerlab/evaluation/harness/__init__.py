"""Models put to tasks, by lm-evaluation-harness."""
