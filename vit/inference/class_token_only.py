"""The shortcut for models whose head reads the class token alone: the last block computes nothing else."""

from torch import Tensor, nn

from vit.attention import MultiHeadAttention
from vit.model.encoder_block import EncoderBlock
from vit.model.vision_transformer import VisionTransformer
from vit.support.hooks import is_hooked


class ClassTokenOnly(nn.Module):
    """A model whose last block computes only the class token, as the head reads nothing else. The logits are the same.

    Args:
        model: A model for which ``reads_class_token_only`` is true.
    """

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes)."""
        *blocks, last = self.model.blocks
        tokens = self.model.embed(images)
        for block in blocks:
            tokens = block(tokens, self.model.patch_embed.grid_of(*images.shape[-2:]))
        normed = last.norm1(tokens)
        token = tokens[:, :1] + last.ls1(last.attn(normed[:, :1], context=normed))
        token = token + last.ls2(last.mlp(last.norm2(token)))
        return self.model.forward_head(self.model.norm(token))


def reads_class_token_only(model: VisionTransformer) -> bool:
    """Return whether only the head reads the output of the last block, and only its class token."""
    last = model.blocks[-1]
    return (
        model.pool == "cls"
        and "rope" not in model.config["pos_embed"]
        and type(model) is VisionTransformer  # a subclass may override methods
        and type(last) is EncoderBlock
        and type(last.attn) is MultiHeadAttention
        and last.attn.mechanism.independent_queries
        and not any(is_hooked(module) for module in model.modules())
        and not {"forward_features", "forward_head"} & vars(model).keys()
    )


def without_unread(model: VisionTransformer) -> nn.Module:
    """Return a module without the tokens of the last block that the head does not read, or the model itself."""
    return ClassTokenOnly(model) if reads_class_token_only(model) else model
