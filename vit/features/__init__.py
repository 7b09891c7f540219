"""Features of a frozen backbone: computed for many images, kept in a file, judged by simple classifiers."""

from vit.features.extraction import extract, read_features, save_features
from vit.features.judges import JUDGES, knn_accuracy, linear_accuracy

__all__ = ["JUDGES", "extract", "knn_accuracy", "linear_accuracy", "read_features", "save_features"]
