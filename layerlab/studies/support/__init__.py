"""Tools that several studies share."""
