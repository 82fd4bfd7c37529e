"""The languages of a page."""
