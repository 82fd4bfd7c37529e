"""Cost of a plan, before anything runs."""
