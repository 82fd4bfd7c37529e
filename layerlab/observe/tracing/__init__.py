"""What a forward pass leaves: features, attention, gradients."""
