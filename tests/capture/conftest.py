"""The models of five libraries, for the tests of this folder."""

from tests.architectures import architecture, architectures, attentions, images, model, model_of, name, random_vit

__all__ = ["architecture", "architectures", "attentions", "images", "model", "model_of", "name", "random_vit"]
