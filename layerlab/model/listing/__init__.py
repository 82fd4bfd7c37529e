"""What can be built, as tables, pages and diagrams."""
