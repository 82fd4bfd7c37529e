"""Options that several commands share, and checks of what is given before torch is imported."""
