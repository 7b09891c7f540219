"""Weights of this package and of other libraries, in and out; reading executes no code."""

from vit.weights.checkpoint import read_checkpoint
from vit.weights.load_report import LoadReport
from vit.weights.loading import PACKAGED, is_name_of_timm, load, start_from
from vit.weights.matching import check_same_tensors
from vit.weights.saving import save

__all__ = [
    "PACKAGED",
    "LoadReport",
    "check_same_tensors",
    "is_name_of_timm",
    "load",
    "read_checkpoint",
    "save",
    "start_from",
]
