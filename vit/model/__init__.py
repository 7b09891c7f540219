"""The Vision Transformer and the decoders, their layers, and presets of named sizes."""

from vit.model.decoder import ImageToSequence, TransformerDecoder
from vit.model.decoder_block import DecoderBlock
from vit.model.encoder_block import EncoderBlock
from vit.model.presets import PRESETS, create
from vit.model.token_merging import TokenMerging
from vit.model.vision_transformer import VisionTransformer

__all__ = [
    "PRESETS",
    "DecoderBlock",
    "EncoderBlock",
    "ImageToSequence",
    "TokenMerging",
    "TransformerDecoder",
    "VisionTransformer",
    "create",
]
