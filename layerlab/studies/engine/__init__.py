"""Runs, records and judges studies."""
