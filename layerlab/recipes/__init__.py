"""Recipes: TOML, checked against sections."""
