"""What a step of decoding takes, of matched models."""
