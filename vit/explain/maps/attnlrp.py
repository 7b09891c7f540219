"""AttnLRP: relevance that flows back from the score to the tokens (Achtibat et al. 2024).

Letters in the einops patterns: b batch, n tokens, c channels of a token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from einops import einsum
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import moved_by_images, two_of
from vit.capture.parts.token_places import Boundary
from vit.explain.maps.relevance_rules import FollowRules, find_rules
from vit.explain.maps.slope import of_gradients
from vit.explain.maps.subject import Subject


@of_gradients
def attnlrp(subject: Subject) -> Tensor:
    """Send the score back to the tokens of the patches by AttnLRP; may be negative: -> (B, rows, columns).

    Each step divides the relevance of its outputs among its inputs. Linear layers and sums divide it by their terms
    (LRP-epsilon, epsilon 0). A product of two tensors, such as that of attention and values, gives half to each. Norms
    and activations pass it on, also activations that are written as a product, such as x * sigmoid(x). The softmax
    passes what its first-order expansion does (Achtibat et al. 2024, sec. 3.3). The relevance of a patch is that of its
    token where it enters the first layer. The rest of the score stays with what is no patch: class token and registers,
    biases, and the constant of the softmax's expansion.

    Raises:
        ValueError: If the model calls a function without a rule, which the message names, cuts the gradient, has no
            module for each layer that takes its tokens, or computes its logits from more than the tokens that enter the
            first one.
    """
    if not subject.anatomy.parts.layers:
        raise ValueError("attnlrp needs a module for each layer that takes its tokens (B, N, D): choose 'relevance'")
    entry = _entry(subject)
    images, entered = subject.images.detach(), []

    def enter(tokens: Tensor) -> Tensor:
        entered.append(tokens.detach().requires_grad_())
        return entered[-1].clone()  # to which a layer may add in place

    def one_image() -> Tensor:
        return run_intercepted(subject.model, images[:1], _kept_constant)

    with _constant_parameters(subject.model), torch.enable_grad():
        with entry.changed(enter), FollowRules(find_rules(subject.model, one_image)):
            logits = run_intercepted(subject.model, images, _kept_constant)
        # The rules make all functions linear along the ray to their inputs: relevance is the gradient times the input
        # (Arras et al. 2025).
        (gradient,) = torch.autograd.grad(subject.score(logits).sum(), entered[-1])
    usual = moved_by_images(subject.model, two_of(images[:1]))
    check_logits_unchanged(subject.model, usual, logits, subject.logits)
    return subject.as_map(einsum(entered[-1].detach(), gradient, "b n c, b n c -> b n"))


def _entry(subject: Subject) -> Boundary:
    """Return the place at the entry of the first layer whose tokens alone determine the logits.

    The first module of the layer may be the wrong place: a forward method may add a skip connection around it.
    """
    parts = subject.anatomy.parts
    for place in (parts.layers[0], parts.entry):
        if place is not None and subject.logits_are_made_of(place):
            return place
    raise ValueError(
        f"the logits of {type(subject.model).__name__} read more than the tokens that enter its first layer, to which "
        "attnlrp sends them back: choose occlusion, input_gradient, integrated_gradients or smoothgrad"
    )


def _kept_constant(_: int, attn: Tensor) -> Tensor:
    # Interception asks for gradients of all attention. Weights that no token changes are constants.
    with torch.no_grad():  # without a rule
        constant = attn.detach()
    return constant if attn.grad_fn is None else attn


@contextmanager
def _constant_parameters(model: nn.Module) -> Iterator[None]:
    """Within the context, only the tokens require gradients: what does not depend on them is a constant."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
