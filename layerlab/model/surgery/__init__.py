"""Pretrained models rebuilt as variants."""
