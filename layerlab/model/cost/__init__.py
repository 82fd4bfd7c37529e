"""What a variant costs, and at which sizes two cost the same."""
