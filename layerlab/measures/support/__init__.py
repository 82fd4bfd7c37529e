"""Tools that several quantities share."""
