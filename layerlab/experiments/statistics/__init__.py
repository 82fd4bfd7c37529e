"""Differences between arms, and what chance makes of them."""
