"""What goes on inside a model while it trains."""
