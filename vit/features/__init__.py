"""Features of a frozen backbone: computed for many images, kept in a file, classified, and shown as colours."""

from vit.features.classifiers import CLASSIFIERS, knn_accuracy, linear_accuracy
from vit.features.extraction import extract, read_features, save_features
from vit.features.pca import Principal, as_colours, pca

__all__ = [
    "CLASSIFIERS",
    "Principal",
    "as_colours",
    "extract",
    "knn_accuracy",
    "linear_accuracy",
    "pca",
    "read_features",
    "save_features",
]
