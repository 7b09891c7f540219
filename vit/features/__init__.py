"""Features of a backbone: to compute, save and classify them, to show them as colours, and to build a pyramid."""

from vit.features.classifiers import CLASSIFIERS, knn_accuracy, linear_accuracy
from vit.features.extraction import extract, read_features, save_features
from vit.features.pca import Principal, as_colours, pca
from vit.features.pyramid import FeaturePyramid

__all__ = [
    "CLASSIFIERS",
    "FeaturePyramid",
    "Principal",
    "as_colours",
    "extract",
    "knn_accuracy",
    "linear_accuracy",
    "pca",
    "read_features",
    "save_features",
]
