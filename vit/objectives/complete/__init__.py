"""Completion: pixels from other pixels."""
