"""Whether contributions say what a head's look at a patch changes: mean ablation is the referee, attention the rival.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels of a head, t ablations.
"""

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.capture.attention_output import AttentionOutput, capture_outputs
from vit.explain.decomposition import contributions
from vit.explain.evaluation.intervals import mean_interval
from vit.explain.evaluation.similarity import rank_correlation
from vit.explain.evaluation.table import Table
from vit.explain.maps.subject import Subject, Target

Place = tuple[int, int, int]  # a layer, a head, and a token


def ablation_agreement(
    model: nn.Module, images: Tensor, target: Target = None, *, ablations: int = 64, seed: int = 0
) -> Table:
    """Compare contributions and attention with the effect of mean ablation: a table of rank correlations.

    An ablation replaces what one head carries from one token by its mean over the images, in the running model. Its
    effect is the change of the logit, with all that later layers make of it. Each row is the mean over images of
    Spearman's correlation between the size of the effects and a prediction of it, with a 95 % interval: the size of the
    term in ``contributions``, or the attention of the read-out token to this token. The last row is the difference.

    Args:
        model: A ViT as ``contributions`` takes it.
        images: Images as the model takes them, (B, C, H, W), 20 or more.
        target: The class, as in ``contributions``.
        ablations: Number of places (layer, head, token), drawn at random; each takes one pass of all images.
        seed: Seed of the draw.

    Raises:
        ValueError: If there are fewer than two images or three ablations, or as in ``contributions``.
    """
    if len(images) < 2 or ablations < 3:
        raise ValueError(
            f"{len(images)} images and {ablations} ablations: the mean of a head needs at least two images, and a rank "
            "correlation three ablations"
        )
    terms = contributions(model, images, target).heads
    subject = Subject(model, images, target)
    outputs = capture_outputs(model, images, subject.anatomy.calls)
    drawn = torch.randperm(terms[0].numel(), generator=torch.Generator().manual_seed(seed))[:ablations]
    places = [tuple(map(int, torch.unravel_index(number, terms.shape[1:]))) for number in drawn]
    effects = torch.stack([ablation_effect(subject, outputs, place) for place in places], dim=1)
    looks = torch.stack([_attention_to(subject, outputs, place) for place in places], dim=1)
    predicted = torch.stack([terms[:, *place] for place in places], dim=1)
    agree = {
        name: rank_correlation(rearrange(sizes, "b t -> b 1 t"), rearrange(effects.abs(), "b t -> b 1 t"))
        for name, sizes in (("contributions", predicted.abs()), ("attention", looks))
    }
    agree["difference"] = agree["contributions"] - agree["attention"]
    rows = [{"prediction": name, "rank correlation": mean_interval(values)} for name, values in agree.items()]
    return Table(rows, f"{len(images)} images, {len(places)} ablations of one token in one head; 95 % intervals")


@torch.no_grad()
def ablation_effect(subject: Subject, outputs: list[AttentionOutput], place: Place) -> Tensor:
    """Return how much the score falls if what a head carries from a token is replaced by its mean over images: (B,).

    Raises:
        ValueError: If the values of the head do not span its channels, so that no weights carry the mean.
    """
    layer, head, token = place
    attn, values = outputs[layer].attn[:, head], outputs[layer].values[:, head]
    carried = einsum(attn[..., token], values[:, token], "b n, b d -> b n d")
    change = reduce(carried, "b n d -> 1 n d", "mean") - carried
    # The output of a head is changed by weights that carry the change, as interception replaces weights.
    weights = einsum(change, torch.linalg.pinv(values), "b n d, b d m -> b n m")
    missed = (einsum(weights, values, "b n m, b m d -> b n d") - change).abs().max()
    if missed > 1e-3 * change.abs().max() + torch.finfo(change.dtype).tiny:
        raise ValueError(
            f"the values of head {head} in layer {layer} have fewer dimensions than channels, so that no attention "
            "carries the mean: give larger images, or prune the head"
        )

    def ablate(index: int, found: Tensor) -> Tensor:
        if index == layer:
            found = found.clone()
            found[:, head] += weights.to(found.dtype)
        return found

    logits = run_intercepted(subject.model, subject.images, ablate, subject.anatomy.calls)
    return subject.score(subject.logits) - subject.score(logits)


def _attention_to(subject: Subject, outputs: list[AttentionOutput], place: Place) -> Tensor:
    layer, head, token = place
    attn = outputs[layer].attn[:, head, :, token]
    return einsum(attn, subject.anatomy.readout.to(attn), "b n, n -> b")
