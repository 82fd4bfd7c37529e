"""Studies of spectral25."""
