"""Tests whether a map shows how information flows from patches: noise in one patch token moves the read-out tokens.

Letters in the einops patterns: b batch, k patches changed in one pass, n tokens, d channels, r s grid rows and columns.
"""

from collections.abc import Sequence

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn

from vit.capture.parts.token_places import Change
from vit.explain.evaluation.confidence import mean_interval
from vit.explain.evaluation.scoring import Scores
from vit.explain.evaluation.similarity import map_correlation
from vit.explain.maps import CONTROLS, Subject, signed_map
from vit.explain.maps.gradients import SAMPLES_AT_ONCE
from vit.explain.maps.noise import draw_for_each

FLOWING = ("rollout", "value_rollout", "attention", "value")  # methods that say where information comes from


def noise_effects(subject: Subject, seed: int = 0) -> Tensor:
    """Measure how far noise in the token of each patch moves the features that are read out: -> (B, rows, columns).

    The noise is added before the first layer, with the standard deviation of the tokens of the image. The features are
    the class token after the last layer, or the mean that is read out.

    Args:
        subject: Model, images and score; the score does not matter.
        seed: Seed of the noise.

    Raises:
        ValueError: If no module passes the tokens on before the first layer and after the last one.
    """
    anatomy = subject.anatomy
    if anatomy.parts.entry is None or anatomy.parts.last is None or anatomy.pooled:
        raise ValueError(
            f"{type(subject.model).__name__} has no module that takes or returns its tokens before the first layer and "
            "behind the last one, so the effect of noise in them cannot be measured"
        )
    anatomy.check_in_order()
    patches = torch.arange(anatomy.num_tokens, device=subject.images.device)[anatomy.patches]
    plain, moved = _features(subject, subject.images, lambda tokens: tokens), []
    for changed in patches.split(max(1, SAMPLES_AT_ONCE // len(subject.images))):

        def add(tokens: Tensor, places: Tensor = changed) -> Tensor:
            parts = rearrange(tokens, "(k b) n d -> k b n d", k=len(places))
            noise = draw_for_each(subject.images, parts.shape[2:], seed, draw=torch.randn)
            scale = parts.std(dim=(2, 3), keepdim=True)
            here = nn.functional.one_hot(places, anatomy.num_tokens).to(parts)
            return rearrange(parts + scale * noise * rearrange(here, "k n -> k 1 n 1"), "k b n d -> (k b) n d")

        features = _features(subject, repeat(subject.images, "b c h w -> (k b) c h w", k=len(changed)), add)
        moved.append((rearrange(features, "(k b) d -> k b d", k=len(changed)) - plain).norm(dim=-1))
    return rearrange(torch.cat(moved), "(r s) b -> b r s", r=anatomy.grid[0])


def follow_noise(model: nn.Module, images: Tensor, methods: Sequence[str] = FLOWING, seeds: int = 4) -> Scores:
    """Correlate the maps of methods with the effect of noise in each token: a table with 95 % intervals.

    The column ``flow`` is the rank correlation with the mean of ``noise_effects`` over draws, a mean over images.

    >>> import torch, vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> follow_noise(model, torch.randn(3, 3, 32, 32), ("rollout",)).column("method")[:2]
    ['rollout', 'random']

    Args:
        model: A ViT classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        methods: Keys of ``METHODS``; control maps are added.
        seeds: Number of draws of noise.
    """
    subject = Subject(model, images)
    effects = reduce([noise_effects(subject, seed) for seed in range(seeds)], "s b r k -> b r k", "mean")
    names = (*methods, *(control for control in CONTROLS if control not in (*methods, "uniform")))
    values = {m: {"flow": map_correlation(signed_map(m, subject), effects).cpu()} for m in names}
    rows = [{"method": name, "flow": mean_interval(of["flow"])} for name, of in values.items()]
    return Scores(rows, f"{len(images)} images; mean (95 % interval)", values)


@torch.no_grad()
def _features(subject: Subject, images: Tensor, change: Change) -> Tensor:
    """Return what is read out of the tokens after the last layer: (B, C, H, W) -> (B, D)."""
    seen: list[Tensor] = []
    with subject.anatomy.parts.entry.changed(change), subject.anatomy.parts.last.seen(seen.append):
        subject.model(images)
    tokens = seen[0]
    return tokens if tokens.ndim == 2 else einsum(tokens, subject.anatomy.readout.to(tokens), "b n d, n -> b d")
