"""Whole blocks, as papers print them."""
