"""A logit as a sum over layers, heads and tokens, without remainder.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels of a head, c channels of a token,
l layers, r s grid rows and columns.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.interception.eager import as_written
from vit.explain.maps.subject import Subject, Target
from vit.explain.readout import last_boundary, linear_readout
from vit.explain.residual_stream import by_head, read_layers

TOLERANCE = 1e-4  # of the sum of the absolute terms; rounding in float32 is 1e-6
TOLERANCE_OF_DOUBLE = 1e-6  # in float64, of which a model may compute a part in float32


@dataclass(frozen=True)
class Contributions:
    """The terms whose sum is the logit of each image (or the difference of two logits).

    A term is a direct contribution to the logit. What an attention head changes in later layers is part of their terms.

    Attributes:
        heads: What each head carries from each token to the read-out tokens, (B, layers, heads, N).
        mlps: What the MLP of each layer adds, (B, layers).
        embedding: What each token brings from the embedding, (B, N): its pixels, position, or learned values.
        bias: Biases of the attention's output projections, the final norm and the head, (B,).
        logits: The logits that the model computes, (B,).
        grid: Rows and columns of patches.
        num_prefix_tokens: Number of tokens before the patches.
        cells: The patch that each pixel belongs to, (H, W), as in ``overlay``.
    """

    heads: Tensor
    mlps: Tensor
    embedding: Tensor
    bias: Tensor
    logits: Tensor
    grid: tuple[int, int]
    num_prefix_tokens: int
    cells: Tensor

    @cached_property
    def total(self) -> Tensor:
        """The sum of all terms, (B,): equal to ``logits`` apart from rounding."""
        return self.heads.sum(dim=(1, 2, 3)) + self.mlps.sum(dim=1) + self.embedding.sum(dim=1) + self.bias

    @property
    def patches(self) -> Tensor:
        """What all heads carry from each patch, negative if against the class: (B, rows, columns)."""
        return self.as_map(reduce(self.heads, "b l h m -> b m", "sum"))

    def as_map(self, tokens: Tensor) -> Tensor:
        """Pick the patches among all tokens and arrange their values as a map: (..., N) -> (..., rows, columns)."""
        first, count = self.num_prefix_tokens, self.grid[0] * self.grid[1]
        return rearrange(tokens[..., first : first + count], "... (r s) -> ... r s", r=self.grid[0])

    def terms(self, image: int = 0) -> list[tuple[str, float]]:
        """Return the terms of one image with their names, the largest magnitude first.

        Heads are summed over tokens here, and the embedding as well.
        """
        heads = reduce(self.heads[image], "l h m -> l h", "sum")
        layers, count = heads.shape
        named = [(f"layer {i}, head {j}", heads[i, j]) for i, j in product(range(layers), range(count))]
        named += [(f"layer {i}, MLP", self.mlps[image, i]) for i in range(layers)]
        named += [("embedding", self.embedding[image].sum()), ("biases", self.bias[image])]
        return sorted(((name, value.item()) for name, value in named), key=lambda term: -abs(term[1]))


@torch.inference_mode(False)
def contributions(model: nn.Module, images: Tensor, target: Target = None, *, versus: Target = None) -> Contributions:
    """Split the logit of each image into what each head carries from each token, MLPs, embedding and biases.

    The scale of the final norm is held constant at its value. Everything else after the last layer is linear, so the
    terms add up to the logit, apart from rounding (Elhage et al. 2021; Gandelsman et al. 2024). The model is a pre-norm
    ViT of any library. The terms are found by following the sums that it computes, and checked by their total.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> found = contributions(model, torch.randn(5, 3, 32, 32), target=7)
    >>> found.heads.shape, torch.allclose(found.total, found.logits, atol=1e-5)
    (torch.Size([5, 2, 3, 17]), True)

    Args:
        model: A ViT classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        target: The class: one for all images, or one for each (B,). None is the predicted class.
        versus: A class to compare with. The terms then add up to the target's logit minus that of this class.

    Raises:
        ValueError: If attention or its values cannot be captured (see ``capture_attention``; also with a gate or norm
            after the mixing), layers have different numbers of heads, a layer does not add its attention to its tokens
            (post-norm), or the logits are not linear in the tokens after the last layer (attention pooling, an MLP).
    """
    if not len(images):
        raise ValueError("there are no images: give at least one")
    subject = Subject(model, images, target, versus)
    anatomy = subject.anatomy
    last = last_boundary(model, subject.images, anatomy.parts)
    if anatomy.pooled:
        raise ValueError(
            f"{type(model).__name__} pools its tokens by attention, so that its logits are not linear in them: explain "
            "tells by 'relevance' or 'attnlrp' what counts"
        )
    with as_written():  # a checkpoint would compute the read-out again in the backward pass, without its changes
        readout = linear_readout(subject, last)
    with torch.no_grad():
        entered, layers = read_layers(subject, anatomy, last)
        counts = [layer.attention.attn.shape[1] for layer in layers]
        if len(set(counts)) > 1:
            raise ValueError(
                f"the layers of {type(model).__name__} have {min(counts)} to {max(counts)} heads, and contributions "
                "are one number for each layer and head: take the model before pruning"
            )
        weights = readout.weights
        heads = []
        for layer in layers:
            attn, values = layer.attention.attn.to(weights), layer.attention.values.to(weights)
            read = einsum(weights, by_head(layer.attention), "b n c, h c d -> b h n d")
            heads.append(einsum(einsum(attn, read, "b h n m, b h n d -> b h m d"), values, "b h m d, b h m d -> b h m"))
        mlps = [einsum(layer.mlp, weights, "b n c, b n c -> b") for layer in layers]
        biases = sum(einsum(layer.bias, weights, "c, b n c -> b") for layer in layers)
        found = Contributions(
            rearrange(heads, "l b h m -> b l h m"),
            rearrange(mlps, "l b -> b l"),
            einsum(entered, weights, "b n c, b n c -> b n"),
            biases + readout.bias,
            subject.score(subject.logits),
            anatomy.grid,
            anatomy.num_prefix_tokens,
            anatomy.cells,
        )
    _check_complete(model, found)
    return found


def _check_complete(model: nn.Module, found: Contributions) -> None:
    """Raise a ValueError if the terms do not add up to the logits."""
    size = sum(x.abs().flatten(1).sum(dim=1) for x in (found.heads, found.mlps, found.embedding)) + found.bias.abs()
    allowed = {32: TOLERANCE, 64: TOLERANCE_OF_DOUBLE}.get(torch.finfo(found.total.dtype).bits, 0.05) * size
    moved = (found.total - found.logits).abs()
    if not (moved <= allowed).all():
        raise ValueError(
            f"the terms of {type(model).__name__} add up to logits that are off by {moved.max().item():.2g}: it adds "
            "something to its tokens that was not seen"
        )
