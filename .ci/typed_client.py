"""A program of a user, for type checkers: what a checker must know of the public names, and what it must refuse."""

from contextlib import suppress
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import vit
from vit.attention import AttentionName, MultiHeadAttention, scaled_dot_product_attention


class Tagger(nn.Module):
    """A backbone with two heads."""

    def __init__(self, attention: AttentionName, num_tags: int) -> None:
        super().__init__()
        self.backbone = vit.VisionTransformer(
            image_size=(32, 48), patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=0, attention=attention
        )
        self.tags = nn.Linear(self.backbone.num_features, num_tags)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the tags, and the tokens of the patches."""
        pooled = self.backbone(images)
        assert_type(pooled, Tensor)
        tokens = self.backbone.forward_features(images)
        return self.tags(pooled), tokens[:, self.backbone.num_prefix_tokens :]


def attend(images: Tensor, model: vit.VisionTransformer) -> Tensor:
    """Return the weights of the first block."""
    tokens = model.embed(images)
    weights = model.encode(tokens)
    assert_type(weights, Tensor)
    attention = MultiHeadAttention(48, num_heads=3, mechanism="softmax")
    assert_type(attention(tokens), Tensor)
    q = torch.randn(2, 3, 5, 16)
    output, probabilities = scaled_dot_product_attention(q, q, q, causal=True)
    assert_type(probabilities, Tensor)
    return attention.weights(tokens) + output.mean()


def main() -> None:
    """Use each public name once."""
    model = vit.load("cifar10", num_classes=3)
    assert_type(model, vit.VisionTransformer)
    logits = model(torch.randn(2, 3, 32, 32))
    assert_type(logits, Tensor)
    path = Path("typed.safetensors")
    vit.save(model, path)
    path.unlink()
    small = vit.create("vit_tiny_patch16_224", image_size=32, depth=1, attention=["window"])
    assert_type(small.blocks[0], nn.Module)
    tags, tokens = Tagger("window", num_tags=5)(torch.randn(2, 3, 32, 48))
    decoder = vit.TransformerDecoder(vocab_size=12, embed_dim=48, depth=1, num_heads=3, max_length=6)
    assert_type(decoder(torch.tensor([[1, 2]])), Tensor)
    with suppress(ValueError):
        vit.VisionTransformer(attention="windwo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(tags.shape, tokens.shape)


if __name__ == "__main__":
    main()
