"""Refuses models whose attention is not all there is, and images that pass other layers."""
