"""Many runs: planned, carried out, compared."""
