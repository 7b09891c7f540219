"""A trained model made fast on a CPU: ``vit.optimize``."""

from vit.inference.optimized_model import OptimizedModel, optimize

__all__ = ["OptimizedModel", "optimize"]
