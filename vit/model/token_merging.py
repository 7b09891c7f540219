"""Token merging: patches with similar keys become one token, for faster inference (ToMe, Bolya et al. 2023).

Letters in the einops patterns: b batch, n m patches, h heads, g heads of keys, d channels of a token or of a head.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn

from vit.attention.mechanisms.softmax import SoftmaxAttention
from vit.model.encoder_block import EncoderBlock
from vit.model.model_checks import encodes_as_usual
from vit.model.positions import ROTARY
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_natural
from vit.support.hooks import is_hooked


class Merged(NamedTuple):
    """Tokens, some of which stand for several patches."""

    tokens: Tensor  # the prefix tokens, then M patch tokens, (B, prefix + M, D)
    sizes: Tensor  # the number of patches in each patch token, (B, M)
    groups: Tensor  # the number, from 0, of the patch token that each patch is in, (B, N)


class TokenMerging(nn.Module):
    """A trained model that merges similar patches in each block: faster, without further training.

    Between attention and MLP, the patches are dealt in turn into two sets. The key of each patch of the first set is
    compared with the keys of the second set. Each of the ``r`` most similar pairs becomes one token, the mean of its
    patches. Attention counts a token of s patches as s keys: ``log(s)`` is added to its logits. Class token and
    registers are never merged. The model is not changed, and its weights are shared.

    >>> model = VisionTransformer(image_size=32, patch_size=4, embed_dim=48, depth=4, num_heads=3).eval()
    >>> faster = TokenMerging(model, r=8)
    >>> faster(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        model: A ``vit.VisionTransformer`` with softmax attention, in eval mode.
        r: Patches that each block merges into other patches; at most half of the remaining ones.

    Raises:
        ValueError: If the model has rotary positions, another mechanism, other than pre-norm blocks with residual
            connections, or blocks that were replaced or have hooks.
    """

    def __init__(self, model: VisionTransformer, r: int) -> None:
        super().__init__()
        check_natural("r", r, "0 merges nothing")
        _check_mergeable(model)
        self.model = model
        self.r = r
        self.training = False

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """The model's own ``pretrained_cfg``: size and normalisation of its images."""
        return self.model.pretrained_cfg

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes).

        Raises:
            ValueError: If there is a mask of attention, or the model is in training mode.
        """
        if mask is not None:
            raise ValueError("mask names tokens, and merging changes them from block to block: call the model itself")
        return self.model.forward_head(self.forward_features(images))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def forward_features(self, images: Tensor) -> Tensor:
        """Encode images, final norm included: (B, C, H, W) -> (B, prefix + N, D).

        Each patch gets the feature of its token, so that pooling counts a token of s patches s times.
        """
        merged = self._encode(images)
        if merged.sizes.shape == merged.groups.shape:  # nothing is merged
            return self.model.norm(merged.tokens)
        prefix, tokens = _split(merged, self.model.norm(merged.tokens))
        patches = tokens.gather(1, repeat(merged.groups, "b n -> b n d", d=tokens.shape[2]))
        return torch.cat([prefix, patches], dim=1)

    def groups(self, images: Tensor) -> Tensor:
        """Return the number of the token that each patch is in after the last block: (B, C, H, W) -> (B, N), from 0."""
        return self._encode(images).groups

    def _encode(self, images: Tensor) -> Merged:
        """Return the tokens after the last block."""
        if self.model.training:
            raise ValueError("the model is in training mode, and tokens are merged in inference only: call eval()")
        # A tool that hooks every module, such as vit.capture, hooks this one too: its hooks on blocks may be bypassed.
        if not is_hooked(self):
            _check_mergeable(self.model)
        tokens = self.model.embed(images)
        # Not len(), which would fix the size in an exported program.
        batch, count = tokens.shape[0], tokens.shape[1] - self.model.num_prefix_tokens
        groups = repeat(torch.arange(count, device=tokens.device), "n -> b n", b=batch)
        # bfloat16 cannot count beyond 256.
        sizes = tokens.new_ones(batch, count, dtype=torch.promote_types(tokens.dtype, torch.float32))
        merged = Merged(tokens, sizes, groups)
        for block in self.model.blocks:
            merged = self._run(block, merged)
        return merged

    def _run(self, block: Any, merged: Merged) -> Merged:
        attn = block.attn
        q, k, v = attn.heads(block.norm1(merged.tokens))
        mixed = attn.mechanism(q, *attn._repeat_kv(k, v), mask=_log_sizes(merged), causal=False)
        tokens = merged.tokens + block.ls1(attn.proj(rearrange(mixed, "b h n d -> b n (h d)")))
        keys = reduce(k[:, :, self.model.num_prefix_tokens :], "b g n d -> b n d", "mean")
        merged = _merge(merged._replace(tokens=tokens), keys, min(self.r, keys.shape[1] // 2))
        return merged._replace(tokens=merged.tokens + block.ls2(block.mlp(block.norm2(merged.tokens))))


def match_patches(keys: Tensor, r: int) -> Tensor:
    """Merge the ``r`` most similar pairs of patches: keys (B, N, d) -> the new number of each patch (B, N).

    A pair is a patch at an even place and the most similar patch at an odd place. The new numbers are 0 to N - r - 1,
    in the order of the patches.

    >>> match_patches(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [-1.0, 0.0]]]), r=1)
    tensor([[0, 1, 1, 2]])
    """
    keys = F.normalize(keys, dim=-1)
    similarity, partners = einsum(keys[:, ::2], keys[:, 1::2], "b n d, b m d -> b n m").max(dim=-1)
    chosen = similarity.topk(r, dim=1).indices
    leaving, taking = 2 * chosen, 2 * partners.gather(1, chosen) + 1
    stays = torch.ones_like(keys[..., 0], dtype=torch.long).scatter(1, leaving, 0)
    numbers = stays.cumsum(dim=1) - 1
    return numbers.scatter(1, leaving, numbers.gather(1, taking))


def _merge(merged: Merged, keys: Tensor, r: int) -> Merged:
    """Merge the ``r`` most similar pairs of patches; the tokens are means over their patches."""
    if r == 0:
        return merged
    prefix, patches = _split(merged, merged.tokens)
    numbers = match_patches(keys, r)
    sizes = torch.zeros_like(merged.sizes[:, r:]).scatter_add(1, numbers, merged.sizes)
    places = repeat(numbers, "b n -> b n d", d=patches.shape[2])
    weighted = patches * rearrange(merged.sizes, "b n -> b n 1")
    means = torch.zeros_like(weighted[:, r:]).scatter_add(1, places, weighted) / rearrange(sizes, "b n -> b n 1")
    return Merged(torch.cat([prefix, means.to(prefix.dtype)], dim=1), sizes, numbers.gather(1, merged.groups))


def _split(merged: Merged, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Split tokens into prefix tokens and patch tokens."""
    others = merged.sizes.shape[1]
    return tokens[:, : tokens.shape[1] - others], tokens[:, tokens.shape[1] - others :]


def _log_sizes(merged: Merged) -> Tensor | None:
    """Return what attention adds to the logits of each key, (B, 1, 1, prefix + M); None while nothing is merged."""
    if merged.sizes.shape == merged.groups.shape:
        return None
    prefix = merged.tokens.shape[1] - merged.sizes.shape[1]
    return rearrange(F.pad(merged.sizes.log(), (prefix, 0)), "b m -> b 1 1 m")


def _check_mergeable(model: nn.Module) -> None:
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"a {type(model).__name__} is given: tokens of a vit.VisionTransformer are merged")
    if model.config["pos_embed"] in ROTARY:
        raise ValueError(
            f"pos_embed {model.config['pos_embed']!r} turns each patch by its place, and merged ones have several: "
            "take a model with learned or sincos positions"
        )
    if not encodes_as_usual(model):
        raise ValueError("forward_features was replaced, which merging would bypass: take a model with its own")
    norm, residual = model.config["norm"], model.config["residual"]
    if norm != "pre" or not residual:
        raise ValueError(
            "only pre-norm blocks with residual connections are merged, and this model has norm "
            f"{norm!r} and residual {residual}: take one with norm 'pre' and residual True"
        )
    for i, block in enumerate(model.blocks):
        if not isinstance(block, EncoderBlock) or not block.is_plain():
            raise ValueError(
                f"block {i} was replaced or has hooks, which merging would bypass: take its own, without hooks"
            )
        if type(block.attn.mechanism) is not SoftmaxAttention:
            raise ValueError(
                f"attention of block {i} is {type(block.attn.mechanism).__name__}: only softmax attention counts a "
                "merged token as often as it has patches"
            )
