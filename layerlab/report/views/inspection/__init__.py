"""What the page of an inspection draws: readings, their bounds, densities, points, saliency."""
