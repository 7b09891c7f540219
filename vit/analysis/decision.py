"""The answer to "What does the decision rest on?": heads are cut, and tokens are replaced by those of another image."""

from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from vit.analysis import cause_charts, charts
from vit.analysis.answer import Answer, listed
from vit.analysis.intervals import Interval, halves, mean_interval
from vit.analysis.knockout import cut_heads, logit_of
from vit.analysis.patching import attribute_patches, patch_activations
from vit.analysis.trained_model import TrainedModel
from vit.capture.parts.logits import logits_of
from vit.support.ranks import rank_correlation

IMAGES = 64  # test images; each head takes one pass over them
CHECKED = 64  # places of the residual stream where the quick form is compared with real patches
CHECKED_ON = 8  # images


def what_the_decision_rests_on(subject: TrainedModel, folder: Path) -> Answer:
    """Cut each head, and put tokens of another image into the residual stream."""
    images = subject.held_out.images[:IMAGES]
    target, against = _two_likeliest(subject, images)
    cut = cut_heads(subject.model, images, target, against=against)
    # Attention that pools the tokens is no layer of the table of heads.
    falls = [halves(layer) for layer in (cut[:-1] if subject.model.pool == "map" else cut)]
    chosen, reported = ([part[half].mean(dim=0) for part in falls] for half in (0, 1))
    places = [(layer, head) for layer, of_layer in enumerate(chosen) for head in range(len(of_layer))]
    layer, head = max(places, key=lambda place: chosen[place[0]][place[1]].item())
    strongest = mean_interval(falls[layer][1][:, head])
    other = max(places, key=lambda place: reported[place[0]][place[1]].item())
    typical = median(torch.cat(reported).tolist())
    charts.draw_importance(reported, "fall of the logit difference\nwithout the head", folder / "cut.png")
    lead = mean_interval(logit_of(_logits(subject, images), target, against))
    token, quick_form = _tokens(subject, images, folder / "residual.png")
    return Answer(
        f"The logit of the predicted class is {lead} above that of the next one. Of one half of {len(images)} images, "
        f"head {head} of layer {layer} carries the most of this; of the other half, the difference falls without it by "
        f"{_clear(strongest)}{_disagreement((layer, head), other, reported)}. {token}".strip(),
        f"Without a typical head (the median over heads), the difference falls by {typical:.2f}. {quick_form}",
        {
            "cut.png": "Fall of the logit difference without each head, on the half of the images that is reported",
            "residual.png": "Change of the logit difference as a token of the residual stream is that of another image",
        },
        {"fall_without": listed(reported)},
    )


def _disagreement(chosen: tuple[int, int], other: tuple[int, int], falls: list[Tensor]) -> str:
    """Say if another head carries most on the half of the images that is reported: layers and heads, (H,) each.

    >>> _disagreement((0, 1), (1, 0), [torch.tensor([0.1, 0.7]), torch.tensor([0.8])])
    ', and without head 0 of layer 1 by 0.80: the halves name different heads'
    """
    if chosen == other:
        return ""
    layer, head = other
    return f", and without head {head} of layer {layer} by {falls[layer][head]:.2f}: the halves name different heads"


def _tokens(subject: TrainedModel, images: Tensor, path: Path) -> tuple[str, str]:
    """Draw the effect of all tokens; return a sentence on the class token, and one on the picture."""
    model, predicted = subject.model, _two_likeliest(subject, images)[0]
    differ = predicted != predicted.roll(1)
    if differ.sum() < 2:
        raise ValueError(
            f"the model predicts the same class ({int(predicted[0])}) for nearly all {len(images)} images, so no pair "
            "of two classes can be exchanged: give a trained model, or images of several classes"
        )
    clean, other = images[differ], images.roll(1, dims=0)[differ]
    classes = {"target": predicted[differ], "against": predicted.roll(1)[differ]}
    quick = attribute_patches(model, clean, other, "residual", **classes)
    cause_charts.draw_residual(quick.abs().mean(dim=0), model.num_prefix_tokens, path)
    few = [x[:CHECKED_ON] for x in (clean, other, *classes.values())]
    layers, tokens = quick.shape[1:]
    drawn = torch.randperm(layers * tokens, generator=torch.Generator().manual_seed(0))[:CHECKED].tolist()
    real = patch_activations(
        model, *few[:2], "residual", few[2], against=few[3], places=[divmod(place, tokens) for place in drawn]
    )
    agreement = rank_correlation(real.flatten(1)[:, drawn], quick[:CHECKED_ON].flatten(1)[:, drawn])
    quick_form = (
        "The picture of tokens is the quick form, by the gradient. Its rank correlation with real exchanges of tokens, "
        f"at {len(drawn)} random places, is {_clear(mean_interval(agreement))}; below 0.5, read no single patch from "
        "it."
    )
    if "cls" not in model.pool:
        return "", quick_form
    places = [(layer, 0) for layer in range(layers)]
    moved = patch_activations(model, clean, other, "residual", **classes, places=places)[..., 0]
    whole = logit_of(_logits(subject, clean), *classes.values()) - logit_of(_logits(subject, other), *classes.values())
    return _way(_shares(moved, whole)), quick_form


def _shares(moved: Tensor, whole: Tensor) -> Tensor:
    """Return shares of images (B, L) whose mean is the mean of ``moved`` (B, L) over that of ``whole`` (B,).

    Their spread is that of this ratio (delta method). A mean of each image's own ratio would follow the images of
    which little can be moved.

    >>> _shares(torch.tensor([[1.0], [3.0]]), torch.tensor([0.5, 7.5]))[:, 0]
    tensor([0.6875, 0.3125])
    """
    ratio = moved.mean(dim=0) / whole.mean()
    return ratio + (moved - whole[:, None] * ratio) / whole.mean()


def _way(shares: Tensor) -> str:
    """Say where the class token takes over the decision, from its shares before each layer and after the last: (B, L).

    >>> _way(torch.tensor([[0.0, 0.2, 0.8, 1.0], [0.0, 0.4, 0.6, 1.0]])).replace(chr(160), " ")[:98]
    'With the class token of an image of another class in place of its own, 70.0 % (-57.1 to 197.1) of '
    """
    swapped = "With the class token of an image of another class in place of its own,"
    is_half = (shares.mean(dim=0) >= 0.5).nonzero()[:, 0].tolist()
    first, last = is_half[0] if is_half else shares.shape[1] - 1, shares.shape[1] - 1
    name = f"before layer {first}" if first < last else "after the last layer"
    moved = f"{swapped} {mean_interval(shares[:, first]).as_percent()} of the decision moves {name}"
    if not is_half:
        return f"{moved}: most of it stands in other tokens to the end."
    if not first:
        return f"{moved}."
    earlier = mean_interval(shares[:, first - 1]).as_percent()
    return f"{moved}, and {earlier} before layer {first - 1}: there, most of it still stands in other tokens."


def _two_likeliest(subject: TrainedModel, images: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(_logits(subject, images).topk(2).indices.T)


@torch.no_grad()
def _logits(subject: TrainedModel, images: Tensor) -> Tensor:
    return logits_of(subject.model(images))


def _clear(interval: Interval) -> str:
    return str(interval) if interval.is_clear else f"{interval}, which cannot be told from none"
