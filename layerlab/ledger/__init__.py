"""A campaign of ideas against one baseline: written down before, judged after, nothing deleted."""
