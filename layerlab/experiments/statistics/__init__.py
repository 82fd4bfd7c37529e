"""Tests differences between arms."""
