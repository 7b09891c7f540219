"""The models of five libraries, for the tests of this folder."""

from tests.architectures import architecture, architectures, images, model, model_of, name, noise, random_vit, sure_vit

__all__ = [
    "architecture",
    "architectures",
    "images",
    "model",
    "model_of",
    "name",
    "noise",
    "random_vit",
    "sure_vit",
]
