"""Finds the logits in the output of a model, or what stands in their place.

Letters in the einops patterns: b batch.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

FEATURES = ("pooler_output", "last_hidden_state")  # of transformers, for models without logits


def logits_of(output: Any) -> Tensor:
    """Return the logits in the output of a model: ``output.logits`` as in transformers, or else the output itself.

    One number for each image, (B,), becomes the only class, (B, 1).

    Raises:
        ValueError: If they are no tensor of floating-point numbers.
    """
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor) and not logits.ndim:
        raise ValueError(
            "the model returned one number without an axis of images: keep that axis, as by squeeze(-1) in place of "
            "squeeze()"
        )
    if isinstance(logits, Tensor) and logits.layout != torch.strided:
        raise ValueError(f"the model returned logits that are {logits.layout}: return logits.to_dense()")
    if isinstance(logits, Tensor) and not logits.is_floating_point():
        raise ValueError(
            f"the model returned {logits.dtype}, such as numbers of classes, which have no gradient: return the logits"
        )
    if isinstance(logits, Tensor):
        return rearrange(logits, "b -> b 1") if logits.ndim == 1 else logits
    advice = "give a classifier, or wrap the model in a module that returns one tensor"
    if any(isinstance(getattr(output, name, None), Tensor) for name in FEATURES):
        advice += ", such as vit.explain.Features; attention, rollout, value and value_rollout need no class"
    raise ValueError(f"the model returned {type(output).__name__}, which is no tensor and has no .logits: {advice}")


def result_of(output: Any) -> Tensor:
    """Return the logits in the output of a model, or else its pooled feature, or else its tokens.

    Raises:
        ValueError: If there is none of these.
    """
    found = (getattr(output, name, None) for name in ("logits", *FEATURES))
    return logits_of(next((result for result in found if isinstance(result, Tensor)), output))


def check_several_classes(logits: Tensor, measured: str) -> Tensor:
    """Return logits (B, classes) of several classes.

    Raises:
        ValueError: If there is one only, which is always the likeliest.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)}, and {measured} needs at least two classes: return "
            "torch.cat([0 * logit, logit], dim=1) for a single logit"
        )
    return logits
