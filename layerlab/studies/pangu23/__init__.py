"""Studies of PanGu-pi."""
