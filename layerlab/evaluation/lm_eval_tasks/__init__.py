"""Any task of lm-eval, by name or as a YAML file; what would run code runs only if asked for."""
