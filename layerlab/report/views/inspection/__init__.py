"""Views on the page of an inspection: readings, bounds, densities, points, saliency."""
