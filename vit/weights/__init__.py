"""Weights on disk: training checkpoints, read without executing code."""

from vit.weights.checkpoint import check_same_tensors, load, read_checkpoint

__all__ = ["check_same_tensors", "load", "read_checkpoint"]
