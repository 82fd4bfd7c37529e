"""What a plan costs, before anything runs."""
