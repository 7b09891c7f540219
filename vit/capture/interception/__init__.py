"""Intercepts attention weights where they multiply the values, in any running model."""
