"""Many runs: plan, execute and compare them."""
