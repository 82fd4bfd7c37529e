"""Variants listed as tables, pages and diagrams."""
