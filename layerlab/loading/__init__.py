"""Models, weights and inputs, as they are to be inspected."""
