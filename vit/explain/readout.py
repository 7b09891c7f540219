"""The read-out: what a model computes from the tokens after its last layer, applied to other tokens.

Letters in the einops patterns: b batch, n tokens, d channels, l layers.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.anatomy import examine
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import differentiable, moved_by_images, two_of
from vit.capture.parts.last_tokens import fixes_logits
from vit.capture.parts.logits import logits_of
from vit.capture.parts.residual_places import check_passed_once
from vit.capture.parts.token_places import Boundary
from vit.capture.parts.trace import Parts
from vit.explain.maps.subject import Subject
from vit.explain.norms import NORMS


@torch.no_grad()
def logit_lens(model: nn.Module, images: Tensor) -> Tensor:
    """Apply the read-out to the tokens before each layer and after the last: (B, C, H, W) -> (B, layers + 1, classes).

    Entry 0 is of the tokens that enter the first layer, and the last entry is the logits (nostalgebraist 2020). Early
    entries show what the head makes of tokens that it never saw in training. They are no predictions of the model. What
    is added to the tokens behind the last layer, such as the output of an adapter, is in the last entry alone.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> logit_lens(model, torch.randn(5, 3, 32, 32)).shape
    torch.Size([5, 3, 10])

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), no module lies between the last layer
            and the head, such as a final norm, or the head reads earlier layers, too.
    """
    if not len(images):
        raise ValueError("there are no images: give at least one")
    images = differentiable(images)
    anatomy = examine(model, images)
    anatomy.check_reads_last()
    anatomy.check_in_order()
    parts = anatomy.parts
    last = last_boundary(model, images, parts)
    seen: list[Tensor] = []
    with ExitStack() as stack:
        for boundary in [*parts.layers, last]:
            stack.enter_context(boundary.seen(lambda tokens: seen.append(tokens.clone())))
        logits = logits_of(model(images))
    check_passed_once(model, seen, [*parts.layers, last])
    if any(tokens.shape != seen[-1].shape for tokens in seen):
        raise ValueError(
            f"the tokens of the layers of {type(model).__name__} have shapes from {tuple(seen[0].shape)} to "
            f"{tuple(seen[-1].shape)}: its read-out takes those after the last layer alone"
        )
    read = []
    for tokens in seen:
        with last.changed(lambda _, tokens=tokens: tokens):
            read.append(logits_of(model(images)))
    check_logits_unchanged(model, moved_by_images(model, two_of(images[:1])), read[-1], logits)
    return rearrange(read, "l b k -> b l k")


@dataclass
class LinearReadout:
    """The score as a linear function of the tokens after the last layer, with the scales of the norms held constant.

    Attributes:
        tokens: The tokens after the last layer, (B, N, D).
        weights: What each number of the tokens counts in the score, (B, N, D).
        bias: The score of tokens that are all 0, (B,).
        score: The score of the tokens, (B,): ``sum(tokens * weights) + bias``.
    """

    tokens: Tensor
    weights: Tensor
    bias: Tensor
    score: Tensor


def linear_readout(subject: Subject, last: Boundary) -> LinearReadout:
    """Linearise the read-out of a model at its tokens, and check on other tokens that it is linear.

    Raises:
        ValueError: If it is not linear once the scales of its norms are constant: attention, an MLP or another
            activation pools the tokens or comes before the logits.
    """
    norms = _FrozenNorms()
    seen: list[Tensor] = []

    def begin(tokens: Tensor) -> Tensor:
        seen.append(tokens.detach().clone())
        norms.begin()
        return tokens

    def score_of(tokens: Tensor, images: Tensor = subject.images) -> Tensor:
        def replace(_: Tensor) -> Tensor:
            norms.begin()
            return tokens

        with last.changed(replace), norms:
            return subject.score(logits_of(subject.model(images)))

    with torch.no_grad(), last.changed(begin), norms:
        subject.model(subject.images)
    tokens = seen[0].requires_grad_()
    with torch.enable_grad():
        score = score_of(tokens)
        (weights,) = torch.autograd.grad(score.sum(), tokens)
    with torch.no_grad():
        bias = score_of(torch.zeros_like(tokens))
        size = max(score.abs().max().item(), bias.abs().max().item())
        _check_reads_tokens_alone(subject.model, bias, score_of(torch.zeros_like(tokens), -subject.images), size)
        # Tokens are long here, because a function such as tanh is nearly linear near 0.
        noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens)
        other = 100 * tokens.std(correction=0) * noise
        found = LinearReadout(tokens.detach(), weights, bias, score.detach())
        for changed, expected in ((tokens, score), (other, score_of(other))):
            _check_linear(subject.model, einsum(changed, weights, "b n d, b n d -> b") + bias, expected)
    return found


def last_boundary(model: nn.Module, images: Tensor, parts: Parts) -> Boundary:
    """Return where the tokens leave the last layer.

    Raises:
        ValueError: If the model has no module there, or none for each layer that takes its tokens, or its logits do not
            come from there.
    """
    if parts.last is None or not parts.layers:
        raise ValueError(
            f"{type(model).__name__} has no module for each layer that takes its tokens (B, N, D), or none between its "
            "last layer and its head, such as a final norm, or a function that changes tokens on the way: the tokens "
            "that its head reads cannot be found"
        )
    if not fixes_logits(model, parts.last, two_of(images)):
        raise ValueError(
            f"the logits of {type(model).__name__} read more than the tokens of its last layer, such as those of "
            "earlier layers, or the first module after that layer is of another head: the tokens that its head reads "
            "cannot be found"
        )
    return parts.last


def _check_reads_tokens_alone(model: nn.Module, bias: Tensor, of_others: Tensor, size: float) -> None:
    """Raise a ValueError if the score of the same tokens differs for other images, so that it is no bias."""
    if not bias.isfinite().all():
        raise ValueError(
            f"the logits of {type(model).__name__} are not finite for tokens of zeros, as if it divides the tokens by "
            "their length: they are not linear in them, and no sum over heads is the logit"
        )
    moved = (bias - of_others).abs().max().item()
    if not moved <= (0.05 if torch.finfo(bias.dtype).bits < 32 else 1e-5) * size:
        raise ValueError(
            f"the logits of {type(model).__name__} read more than the tokens of its last layer (off by {moved:.2g} "
            "with other images), such as those of earlier layers: their sum over heads is not the logit"
        )


def _check_linear(model: nn.Module, found: Tensor, expected: Tensor) -> None:
    moved, size = (found - expected).abs().max().item(), expected.abs().max().item()
    allowed = (0.05 if torch.finfo(found.dtype).bits < 32 else 1e-3) * size
    if not moved <= allowed:
        raise ValueError(
            f"the logits of {type(model).__name__} are not linear in the tokens of its last layer, even with constant "
            f"norms (off by {moved:.2g} of {size:.2g}): attention or an MLP pools its tokens, or comes before its "
            "logits, so that no sum over heads is the logit; explain tells by 'relevance' or 'attnlrp' what counts"
        )


@dataclass
class _FrozenNorms(TorchFunctionMode):
    """Holds the scales of the norms after ``begin`` at their values in the first pass."""

    scales: list[Tensor] = field(default_factory=list)
    next: int | None = None  # the norm that comes next; None before the last layer has ended

    def __post_init__(self) -> None:
        super().__init__()

    def begin(self) -> None:
        """Count the norms that follow from 0."""
        self.next = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, but take the scale of a norm from the first pass."""
        if self.next is None or func not in NORMS:
            return func(*args, **kwargs or {})
        norm = NORMS[func](*args, **kwargs or {})
        if self.next == len(self.scales):
            self.scales.append(norm.scale().detach())
        self.next += 1
        return norm.output(self.scales[self.next - 1])

    def __exit__(self, *error: Any) -> None:
        """Forget that the last layer has ended."""
        self.next = None
        super().__exit__(*error)
