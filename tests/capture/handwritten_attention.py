"""A small ViT whose attention can be written in any way, layer by layer."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 12, 3


def fused(q, k, v):
    """Attention that is seen."""
    return F.scaled_dot_product_attention(q, k, v)


def logits_between(q, k):
    """Products of queries and keys."""
    return q @ k.mT / 2


class Attending(nn.Module):
    """Self-attention; ``mix(q, k, v)`` maps (B, H, N, d) to (B, H, N, d)."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.qkv, self.proj = mix, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        q, k, v = self.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.mix(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A part that mixes tokens and an MLP, each behind a norm and beside a skip connection."""

    def __init__(self, part):
        super().__init__()
        self.norm1, self.part, self.norm2 = nn.LayerNorm(WIDTH), part, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, tokens):
        tokens = tokens + self.part(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Spelled(nn.Module):
    """A ViT on 15 patches and a class token, each of whose layers mixes by a function (q, k, v) or by a module."""

    def __init__(self, *mixes, pool="cls", classes=7):
        super().__init__()
        self.patches, self.pool = nn.Conv2d(3, WIDTH, 2, stride=2), pool
        self.cls, self.positions = (nn.Parameter(torch.randn(1, n, WIDTH)) for n in (1, 16))
        parts = [mix if isinstance(mix, nn.Module) else Attending(mix) for mix in mixes]
        self.blocks = nn.ModuleList(Block(part) for part in parts)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def embed(self, images):
        patches = self.patches(images).flatten(2).mT
        return torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1) + self.positions

    def read(self, tokens):
        tokens = self.norm(tokens)
        return self.head(tokens[:, 0] if self.pool == "cls" else tokens.mean(dim=1))

    def forward(self, images):
        tokens = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        return self.read(tokens)


def spelled(*mixes, **kwargs):
    """The same model in float64 for each call, but for its mixes."""
    torch.manual_seed(0)
    return Spelled(*mixes, **kwargs).double().eval()


def expected_attention(model, images):
    """Attention of every layer by its formula, from the queries and keys of each."""
    seen, handles = [], []
    for block in model.blocks:
        handles.append(block.part.qkv.register_forward_hook(lambda _, __, output: seen.append(output)))
    model(images)
    for handle in handles:
        handle.remove()
    parts = [output.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4) for output in seen]
    return [logits_between(q, k).softmax(dim=-1) for q, k, _ in parts]
