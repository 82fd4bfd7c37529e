"""Number formats, and rounding to them."""
