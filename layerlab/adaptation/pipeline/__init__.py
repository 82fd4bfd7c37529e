"""The stages of a recipe, one after the other."""
