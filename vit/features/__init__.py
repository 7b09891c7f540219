"""Features of a frozen backbone: computed for many images, kept in a file, evaluated by simple classifiers."""

from vit.features.classifiers import CLASSIFIERS, knn_accuracy, linear_accuracy
from vit.features.extraction import extract, read_features, save_features

__all__ = ["CLASSIFIERS", "extract", "knn_accuracy", "linear_accuracy", "read_features", "save_features"]
