"""Tests of reports; those that look at one in a browser share it."""
