"""Passes fewer tokens through a model, and tells by experiment whether each of them stays what it is among all.

Letters in the einops patterns: b batch, h heads, n tokens, m keys, d channels.
"""

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.attention.mechanisms import Mechanism
from vit.capture.anatomy import Anatomy
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import usual_changes
from vit.capture.interception.head_order import intercept
from vit.capture.parts.logits import logits_of
from vit.explain.maps.subject import Subject


@torch.no_grad()
def logits_with_tokens(model: nn.Module, anatomy: Anatomy, images: Tensor, kept: Tensor) -> Tensor:
    """Return the logits from some of the tokens: images (B, C, H, W), indices of tokens (B, n) -> (B, classes).

    Tokens are dropped after their positions are added.

    Raises:
        ValueError: If the model has no place where tokens can be dropped, or needs the whole grid.
    """
    needs_grid = any(isinstance(module, Mechanism) and "grid" in module.takes for module in model.modules())
    if anatomy.parts.entry is None or needs_grid:
        raise drop_error(model)
    try:
        with _chosen(anatomy, kept):
            return logits_of(model(images))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a stranger's model, in which the number of tokens does not fit
        raise drop_error(model) from error


def _chosen(anatomy: Anatomy, kept: Tensor) -> AbstractContextManager[None]:
    """Within the context, the tokens with these indices (B, n) enter the first layer."""

    def choose(tokens: Tensor) -> Tensor:
        return tokens.gather(1, repeat(kept.to(tokens.device), "b n -> b n d", d=tokens.shape[-1]))

    return anatomy.parts.entry.changed(choose)


def can_drop(subject: Subject) -> bool:
    """Return whether the model runs with fewer tokens and does not read positions from their order.

    One image is passed with its patches in another order, and the logits must not change. If a model reads positions
    from the token order, it confuses the patches. The model must also run without half of the patches. The tokens that
    are left must then be what they were, no other ones may be read, and the logits must read nothing of the image but
    these tokens.
    """
    try:
        anatomy, image = subject.anatomy, subject.images[:1]
        tokens = torch.arange(anatomy.num_tokens)
        patches = tokens[anatomy.patches]
        plain = logits_with_tokens(subject.model, anatomy, image, tokens[None])
        half = tokens[~torch.isin(tokens, patches[1::2])]
        without_half = logits_with_tokens(subject.model, anatomy, image, half[None])
        # By chance, as a circle of patches looks the same after a roll or a mirror.
        order = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))]
        other = logits_with_tokens(subject.model, anatomy, image, tokens.index_copy(0, patches, order)[None])
        check_logits_unchanged(subject.model, usual_changes(torch.cat([plain, without_half])), other, plain)
        without_one = tokens[tokens != patches[0]]
        return (
            all(_stay(subject.model, anatomy, image, kept) for kept in (half, without_one))
            and all(_reads_the_same(subject.model, anatomy, image, kept) for kept in (half, without_one))
            and subject.logits_are_made_of(anatomy.parts.entry)
        )
    except (IndexError, RuntimeError, ValueError):  # a ValueError also if attention cannot be captured
        return False


def drop_error(model: nn.Module) -> ValueError:
    """Return the error of a model that needs all its tokens."""
    return ValueError(
        f"tokens of {type(model).__name__} cannot be left out, as no module passes them on, its attention needs the "
        "whole grid, its logits read more than these tokens, or it finds or counts tokens by their order: choose "
        "'occlusion'"
    )


def _stay(model: nn.Module, anatomy: Anatomy, image: Tensor, kept: Tensor) -> bool:
    """Return whether each layer has as many tokens fewer, and those behind the patches are what they are among all.

    A model may put tokens back to a fixed number, or find by their place those that stand behind the patches. While
    each token attends to itself alone, values and weights must be the same; the weights but for a factor for each row.
    """
    missing = anatomy.num_tokens - len(kept)
    whole = _layers(model, anatomy, image, torch.arange(anatomy.num_tokens))
    fewer = _layers(model, anatomy, image, kept)
    if [len(values) - missing for values, _ in whole] != [len(values) for values, _ in fewer]:
        return False
    if anatomy.patches.stop == anatomy.num_tokens or anatomy.orders:
        return True
    return all(
        _are_near(values[kept], of_fewer) and _are_near(_of_rows(attn[:, kept][..., kept]), _of_rows(attn_of_fewer))
        for (values, attn), (of_fewer, attn_of_fewer) in zip(whole, fewer, strict=True)
        if attn.shape[-2] == attn.shape[-1] == anatomy.num_tokens
    )


@torch.no_grad()
def _layers(model: nn.Module, anatomy: Anatomy, image: Tensor, kept: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return values (N, H d) and weights (H, N, M) of each layer if each token attends to itself alone."""
    found: list[tuple[Tensor, Tensor]] = []

    def alone(call: int, attn: Tensor) -> Tensor:
        if call not in anatomy.calls:
            return attn
        found.append((rearrange(intercepted.values[0], "h n d -> n (h d)"), attn[0]))
        if attn.shape[-2] != attn.shape[-1]:
            return attn
        return torch.eye(attn.shape[-1]).to(attn).expand_as(attn)

    intercepted = intercept(model, image, alone)
    with _chosen(anatomy, kept[None]), intercepted:
        model(image)
    return found


def _of_rows(attn: Tensor) -> Tensor:
    return attn / reduce(attn, "... m -> ... 1", "sum")


def _are_near(one: Tensor, other: Tensor) -> bool:
    share = torch.finfo(one.dtype).eps ** 0.5
    return bool(((one - other).abs() <= share * one.abs().max()).all())


def _reads_the_same(model: nn.Module, anatomy: Anatomy, image: Tensor, kept: Tensor) -> bool:
    """Return whether the logits read the tokens that are left as they do among all, and no other ones.

    A model that reads other tokens of each image, as a maximum does, may read any.
    """
    reading = anatomy.reading
    if reading.last is None or anatomy.fixed_readout is None:
        return True
    among_all = replace(reading, norms=()).shares(model, image, in_short=True)[0] > 0
    standing = reading.last.tokens
    last = replace(reading.last, tokens=standing[torch.isin(standing, kept)])
    with _chosen(anatomy, kept[None]):
        read = replace(reading, last=last, norms=()).shares(model, image, in_short=True)[0] > 0
    return torch.equal(read.cpu(), (among_all.cpu() & torch.isin(torch.arange(anatomy.num_tokens), kept)))
