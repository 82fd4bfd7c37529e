"""Loads models, weights and inputs."""
