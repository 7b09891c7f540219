"""Adversarial attention: the most different attention with the same predictions (Jain and Wallace 2019).

If it is far from the model's own attention, a picture of the model's attention is one of many that fit the prediction.

Letters in the einops patterns: b batch, h heads, n queries, m keys, l layers, k classes, r s grid rows and columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy
from vit.capture.attention import capture_unchecked, run_intercepted
from vit.explain.classes import check_one_of_several
from vit.explain.maps import Subject, attention_rollout
from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.rollout import readout_map

TOLERANCE = 0.01  # largest total variation between the predicted probabilities
STEPS = 150  # of the search
# Noise on the first logits. The search starts far from the model's attention and comes back until the predictions are
# the same. On digits it ends farther away than a search that starts near.
START = 3.0
SMALLEST = 1e-4  # weight at the start of the search; softmax gives smaller ones no gradient
RATE = 0.3  # Adam's learning rate at the start, in units of logits; it falls to zero
PENALTY, GROWTH = 1.0, 1.2  # penalty on an image above the tolerance: first value, and growth per step


@dataclass(repr=False)
class AdversarialAttention:
    """The attention of some layers, and other attention with the same predictions.

    Attributes:
        layers: The layers whose attention was changed jointly, from 0.
        before: The attention (B, H, N, M) of the unchanged model, for each of these layers.
        after: The adversarial attention, of the same shapes.
        divergence: Mean Jensen-Shannon divergence between the two in nats, (B,), at most ln 2. Heads count equally.
            Each query counts by its share in the read-out, from attention rollout.
        total_variation: Distance between the predicted probabilities, (B,), at most ``TOLERANCE``.
        probabilities_before: The probabilities of the classes by the unchanged model, (B, K).
        probabilities_after: Those with the adversarial attention, (B, K).
        anatomy: The parts of the model.
        readout: Share of each token in the logits of each image, (B, N).
    """

    layers: list[int]
    before: list[Tensor]
    after: list[Tensor]
    divergence: Tensor
    total_variation: Tensor
    probabilities_before: Tensor
    probabilities_after: Tensor
    anatomy: Anatomy
    readout: Tensor

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return the maps of the attention before and after, (B, rows, columns) each.

        They are the rollout of the changed layers. If only one layer changed, they are its read-out attention.
        """
        residual = 0.5 if len(self.layers) > 1 else 0.0
        before, after = (attention_rollout(attn, residual=residual) for attn in (self.before, self.after))
        return readout_map(self.anatomy, before, self.readout), readout_map(self.anatomy, after, self.readout)


@torch.inference_mode(False)  # gradients are needed even if the caller is in inference mode
def adversarial_attention(
    model: nn.Module,
    images: Tensor,
    layers: Sequence[int] | None = None,
    *,
    steps: int = STEPS,
    seed: int = 0,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> AdversarialAttention:
    """Search for the most different attention that moves no prediction by more than 0.01 in total variation.

    Gradient ascent (Adam) on the divergence moves the attention logits of each head and query. Images above the
    tolerance pay a penalty. Its factor grows while the image is above the tolerance and shrinks while it is below. Each
    image keeps the farthest attention within the tolerance. If the search finds none, it keeps the model's own. A
    better search may find attention that is farther still. Weights of exactly zero stay zero, such as those of masked
    keys.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> found = adversarial_attention(model, torch.randn(5, 3, 32, 32), steps=20)
    >>> found.layers, found.after[1].shape, bool((found.total_variation <= 0.01).all())
    ([0, 1], torch.Size([5, 3, 17, 17]), True)

    Args:
        model: A ViT classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W). Memory holds all of them, with the graph of a pass.
        layers: The layers whose attention changes jointly; None is all.
        steps: Number of steps of the search, each a forward and a backward pass.
        seed: Seed of the attention that the search starts from.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.

    Raises:
        ValueError: If there is no such layer, the weights of a layer are no distribution, or the model does not give
            each image one of several classes.
    """
    subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
    check_one_of_several(model, subject.logits, "the sameness of predictions")
    with torch.no_grad():
        attentions = capture_unchecked(model, images, subject.anatomy.calls, subject.anatomy.orders)
    depth = len(attentions)
    chosen = list(range(depth)) if layers is None else sorted(set(layers))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < depth:
        raise ValueError(f"layers ({layers}) must be some of {depth} layers, from 0 to {depth - 1}")
    before = [attentions[layer].float() for layer in chosen]
    for layer, attn in zip(chosen, before, strict=True):
        _check_distribution(layer, attn)
    shares = _shares_of_queries(subject, attentions)
    plain = attentions.logits.float().softmax(dim=-1)
    search = _Search(subject, chosen, before, [shares[layer] for layer in chosen], plain)
    search.run(steps, seed)
    return AdversarialAttention(
        layers=chosen,
        before=before,
        after=search.after,
        divergence=search.divergence,
        total_variation=search.total_variation,
        probabilities_before=plain,
        probabilities_after=search.moved,
        anatomy=subject.anatomy,
        readout=subject.readout,
    )


class _Search:
    """Gradient ascent on the divergence, and the farthest attention found for each image."""

    def __init__(
        self, subject: Subject, layers: list[int], before: list[Tensor], shares: list[Tensor], plain: Tensor
    ) -> None:
        self.subject, self.layers, self.before, self.shares, self.plain = subject, layers, before, shares, plain
        self.after, self.moved = before, plain
        self.divergence, self.total_variation = torch.zeros(2, len(plain), device=plain.device)

    @torch.enable_grad()
    def run(self, steps: int, seed: int) -> None:
        """Move the attention, and keep the best of each image."""
        logits = [self._start(layer, attn, seed) for layer, attn in zip(self.layers, self.before, strict=True)]
        penalty = torch.full_like(self.divergence, PENALTY)
        optimizer = torch.optim.Adam(logits, lr=RATE, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            after = [
                moved.masked_fill(attn == 0, -torch.inf).softmax(dim=-1)
                for moved, attn in zip(logits, self.before, strict=True)
            ]
            divergence, prediction = self._divergence(after), self._log_probabilities(after)
            above = self._keep(after, divergence.detach(), prediction.detach())
            # If the model is sure of another class, the total variation has no gradient, but the KL divergence has one.
            moved_by = F.kl_div(prediction, self.plain, reduction="none").sum(dim=-1)
            loss = (penalty * above * moved_by - divergence).sum()
            # backward() would leave gradients in the parameters of the model.
            for moved, gradient in zip(logits, torch.autograd.grad(loss, logits), strict=True):
                moved.grad = gradient
            optimizer.step()
            schedule.step()
            penalty = torch.where(above, penalty * GROWTH, penalty / GROWTH)

    def _start(self, layer: int, attn: Tensor, seed: int) -> Tensor:
        noise = draw_for_each(self.subject.images, attn.shape[1:], seed, layer, draw=torch.randn).to(attn)
        return (attn.clamp(min=SMALLEST).log() + START * noise).requires_grad_()

    def _keep(self, after: list[Tensor], divergence: Tensor, prediction: Tensor) -> Tensor:
        """Keep attention that is farther and within the tolerance; return which images are above the tolerance."""
        variation = (prediction.exp() - self.plain).abs().sum(dim=-1) / 2
        better = (variation <= TOLERANCE) & (divergence > self.divergence)
        self.divergence = torch.where(better, divergence, self.divergence)
        self.total_variation = torch.where(better, variation, self.total_variation)
        self.moved = torch.where(rearrange(better, "b -> b 1"), prediction.exp(), self.moved)
        where = rearrange(better, "b -> b 1 1 1")
        self.after = [torch.where(where, new.detach(), old) for new, old in zip(after, self.after, strict=True)]
        return variation > TOLERANCE

    def _divergence(self, after: list[Tensor]) -> Tensor:
        of_layers = [
            einsum(jensen_shannon(attn, other), share, "b h n, b n -> b") / attn.shape[1]
            for attn, other, share in zip(self.before, after, self.shares, strict=True)
        ]
        return reduce(torch.stack(of_layers), "l b -> b", "mean")

    def _log_probabilities(self, after: list[Tensor]) -> Tensor:
        def edit(layer: int, attn: Tensor) -> Tensor:
            return after[self.layers.index(layer)].to(attn.dtype) if layer in self.layers else attn

        logits = run_intercepted(
            self.subject.model, self.subject.images, edit, self.subject.anatomy.calls, self.subject.anatomy.orders
        )
        return logits.float().log_softmax(dim=-1)


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of distributions over keys, in nats: (..., M) twice -> (...).

    >>> one, other = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    >>> jensen_shannon(one, other)
    tensor([0.0000, 0.6931])
    """
    least = torch.finfo(one.dtype).tiny  # the logarithm of a weight of zero has no gradient
    middle = ((one + other) / 2).clamp(min=least)
    one_term, other_term = (torch.xlogy(x, x.clamp(min=least) / middle) for x in (one, other))
    return (one_term + other_term).sum(dim=-1) / 2


def _shares_of_queries(subject: Subject, attentions: Sequence[Tensor]) -> list[Tensor]:
    """Return the share of each query in the read-out, by rollout through the later layers: L of (B, N).

    Queries without influence on the read-out could attend anywhere, so they must not add to the divergence.
    """
    row = subject.readout.float()
    shares = []
    for attn in reversed(attentions):
        mixing = reduce(attn.float(), "b h n m -> b n m", "mean")
        if mixing.shape[1] == 1:  # attention pooling, which has no residual and may leave out the prefix
            shares.append(torch.ones_like(row[:, :1]))
            row = F.pad(mixing[:, 0], (row.shape[-1] - mixing.shape[-1], 0))
        else:
            shares.append(row)
            row = row / 2 + einsum(row, mixing, "b n, b n m -> b m") / 2
    return shares[::-1]


def _check_distribution(layer: int, attn: Tensor) -> None:
    """Raise a ValueError if the weights (B, H, N, M) of a layer are negative or do not sum to one."""
    low, totals = attn.min().item(), reduce(attn, "b h n m -> b h n", "sum")
    if low < 0 or (totals - 1).abs().max() > 1e-3:
        raise ValueError(
            f"the attention of layer {layer} is no distribution (its smallest weight is {low:.2g}, its rows sum to "
            f"{totals.min().item():.2g} to {totals.max().item():.2g}), so it has no divergence: adversarial attention "
            "needs weights as of softmax, not as of talking heads or differential attention"
        )
