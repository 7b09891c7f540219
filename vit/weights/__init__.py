"""Weights on disk: training checkpoints and safetensors files, read without executing code."""

from vit.weights.checkpoint import read_checkpoint
from vit.weights.loading import PACKAGED, load
from vit.weights.matching import check_same_tensors
from vit.weights.saved import save
from vit.weights.transfer import start_from

__all__ = ["PACKAGED", "check_same_tensors", "load", "read_checkpoint", "save", "start_from"]
