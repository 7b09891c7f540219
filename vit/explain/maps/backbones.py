"""Wrappers for backbones without logits: explain a feature, the similarity to other images, or the token of a patch.

Each wrapper is a module that returns these numbers in place of logits, so every method can explain them.

Letters in the einops patterns: b batch, k reference images, d channels.
"""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum, reduce
from torch import Tensor, nn

from vit.capture.anatomy import examine
from vit.capture.checks.capturable import check_capturable
from vit.capture.experiments.moved import changes, noise_like, spread_of
from vit.capture.interception.head_order import intercept
from vit.support.checks import check_choice

Pool = Literal["cls", "mean"]


class Features(nn.Module):
    """Backbone features in place of logits: target 3 is channel 3; without a target, the largest channel is explained.

    >>> import vit
    >>> backbone = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=0)
    >>> images = torch.randn(5, 3, 32, 32)
    >>> vit.explain.explain(Features(backbone).eval(), images, "relevance", target=3).shape
    torch.Size([5, 4, 4])

    Args:
        backbone: A model that returns features (B, D), tokens (B, N, D), or a ``transformers`` output with either.
        pool: How tokens become one feature: the first token ("cls") or the mean of all tokens ("mean"). Of a
            ``transformers`` output, "cls" takes the pooled features if there are any.
    """

    def __init__(self, backbone: nn.Module, pool: Pool = "cls") -> None:
        super().__init__()
        check_choice("pool", pool, get_args(Pool))
        self.backbone = backbone
        self.pool = pool

    def forward(self, images: Tensor) -> Tensor:
        """Compute the features: (B, C, H, W) -> (B, D)."""
        output = self.backbone(images)
        outputs = ("pooler_output", "last_hidden_state")
        features = _first(output, *(outputs if self.pool == "cls" else outputs[::-1]))
        if features.ndim == 3:
            return features[:, 0] if self.pool == "cls" else reduce(features, "b n d -> b d", "mean")
        return features


class Similarity(nn.Module):
    """Cosine similarity to reference images in place of logits: target 2 is the third reference.

    >>> import vit
    >>> backbone = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=0)
    >>> similar = Similarity(backbone.eval(), torch.randn(3, 3, 32, 32)).eval()
    >>> vit.explain.explain(similar, torch.randn(5, 3, 32, 32), "rollout", target=2).shape
    torch.Size([5, 4, 4])

    Args:
        backbone: As in ``Features``, in eval mode.
        references: Images to compare with, (K, C, H, W).
        pool: As in ``Features``.

    Raises:
        ValueError: If the backbone is in training mode.
    """

    def __init__(self, backbone: nn.Module, references: Tensor, pool: Pool = "cls") -> None:
        super().__init__()
        check_capturable(backbone)
        self.features = Features(backbone, pool)
        with torch.no_grad():
            self.register_buffer("directions", F.normalize(self.features(references), dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        """Compare images with the references: (B, C, H, W) -> (B, K), from -1 to 1."""
        return einsum(F.normalize(self.features(images), dim=-1), self.directions, "b d, k d -> b k")


class PatchToken(nn.Module):
    """The length of one patch token in place of logits: maps show what the backbone gathered in this token.

    The gradient of the length points along the token itself. The methods "attention" and "rollout" then read the token
    of the patch.

    >>> import vit
    >>> backbone = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=0)
    >>> images = torch.randn(5, 3, 32, 32)
    >>> vit.explain.explain(PatchToken(backbone.eval(), images, row=1, column=3), images, "rollout").shape
    torch.Size([5, 4, 4])

    Args:
        backbone: A model in eval mode whose ``forward_features``, or else its call, returns tokens (B, N, D).
        images: Images (B, C, H, W) of the size to explain, used to find the token of the patch.
        row: Row of the patch, from 0.
        column: Column of the patch, from 0.

    Raises:
        ValueError: If there is no such patch, or the backbone is in training mode or returns no tokens, or some
            of its patches alone.
    """

    def __init__(self, backbone: nn.Module, images: Tensor, row: int, column: int) -> None:
        super().__init__()
        check_capturable(backbone)
        self.backbone = backbone
        self.token = slice(None)  # all tokens at first, to find the patch among them
        self.training = False
        anatomy = examine(self, images)
        anatomy.check_in_order()
        rows, columns = anatomy.grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch ({row}, {column}) must be one of {rows} x {columns}, counted from 0")
        with torch.no_grad():
            returned = self._tokens(images[:1]).shape[1]
        before = anatomy.num_prefix_tokens
        if returned not in (anatomy.num_tokens, before + rows * columns, rows * columns):
            raise ValueError(
                f"{type(backbone).__name__} returned {returned} tokens, and its attention mixes {anatomy.num_tokens}: "
                f"return all of them, or the {rows * columns} patches alone"
            )
        token = row * columns + column + self._number_before(images[:1], anatomy.cells, returned - rows * columns)
        self.token = slice(token, token + 1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the length of the patch's token: (B, C, H, W) -> (B, 1)."""
        return self._tokens(images)[:, self.token].square().sum(dim=(1, 2)).sqrt()[:, None]

    @torch.no_grad()
    def _number_before(self, image: Tensor, cells: Tensor, others: int) -> int:
        """Return how many of the returned tokens stand before the patches, of so many other tokens.

        The pixels of a patch move its own token most, if each token attends to itself alone.
        """

        def alone(_: int, attn: Tensor) -> Tensor:
            return torch.eye(*attn.shape[-2:]).to(attn).expand(attn.shape)

        patches = sorted({0, int(cells.max()) // 2, int(cells.max())})
        noise = spread_of(image) * noise_like(image)
        copies = torch.cat([image, *(torch.where(cells == patch, image + noise, image) for patch in patches)])
        with intercept(self, copies, alone):
            moves = reduce(changes(self._tokens(copies)).square(), "k n d -> k n", "sum")
        moves = moves / reduce(moves, "k n -> k 1", "sum").clamp(min=torch.finfo(moves.dtype).tiny)
        own = [
            sum(of[patch + before] for patch, of in zip(patches, moves, strict=True)) for before in range(others + 1)
        ]
        return int(torch.stack(own).argmax())

    def _tokens(self, images: Tensor) -> Tensor:
        forward = getattr(self.backbone, "forward_features", self.backbone)
        tokens = _first(forward(images), "last_hidden_state")
        if tokens.ndim != 3:
            raise ValueError(
                f"{type(self.backbone).__name__} returned features of shape {tuple(tokens.shape)}, not tokens "
                "(B, N, D): wrap it in a module that returns them"
            )
        return tokens


def _first(output: Any, *names: str) -> Tensor:
    """Return the output if it is a tensor, else the first of these attributes that holds one."""
    if isinstance(output, Tensor):
        return output
    for name in names:
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    raise ValueError(
        f"the backbone returned {type(output).__name__}, which is no tensor and has no {' or '.join(names)}: wrap it "
        "in a module that returns one tensor"
    )
