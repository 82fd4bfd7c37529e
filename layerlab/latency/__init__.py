"""Time of a decoding step of matched models."""
