"""Registers at test time: outliers move from patches to an extra token, without training (Jiang et al. 2025).

Letters in the einops patterns: b batch, n tokens, j neurons, l layers.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.capture.checks.capturable import check_capturable
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_positive_int
from vit.support.outliers import outliers

Neuron = tuple[int, int]  # a layer, and a channel of the hidden layer of its MLP


class Measured(NamedTuple):
    """What was measured of a model, with or without the register, on the images of ``add_register``."""

    outlier_share: float  # of the patches, by the bound of the model without the register
    largest_norm: float  # of a patch after this layer, the median over images
    same_predictions: float  # share of the images whose predicted class is that of the model without the register


@dataclass(frozen=True)
class AddedRegister:
    """A model with a register, and what that changed.

    Attributes:
        model: A copy of the model with one more register, to which the neurons are moved.
        neurons: Layer and number of each neuron.
        layer: The layer after which outliers are counted: where the largest norm is farthest from the median.
        before: The model without the register.
        after: The model with it.
        random: The same with as many random neurons of the same layers, as a control.
    """

    model: VisionTransformer
    neurons: list[Neuron]
    layer: int
    before: Measured
    after: Measured
    random: Measured

    def __str__(self) -> str:
        layers = sorted({layer for layer, _ in self.neurons})
        return (
            f"{len(self.neurons)} neurons of layers {', '.join(map(str, layers))} moved to a register: after layer "
            f"{self.layer}, outliers are {_percent(self.before.outlier_share)} of the patches before, "
            f"{_percent(self.after.outlier_share)} now, and {_percent(self.random.outlier_share)} with random neurons; "
            f"the largest norm is {self.before.largest_norm:.3g}, {self.after.largest_norm:.3g} and "
            f"{self.random.largest_norm:.3g}; {_percent(self.after.same_predictions)} of the predictions stay "
            f"({_percent(self.random.same_predictions)} with random neurons)"
        )


@torch.no_grad()
def add_register(model: VisionTransformer, images: Tensor, *, num_neurons: int = 10, seed: int = 0) -> AddedRegister:
    """Move the neurons that make outlier tokens to a register, without training (Jiang et al. 2025).

    Some models store information on the whole image in patches that show little. Their norms are outliers, and maps of
    attention show them as artifacts. A few MLP neurons write them. Here a copy of the model gets one more
    register, of zeros. The largest activation of each such neuron goes to the register, and the patches get 0.

    Args:
        model: A model of this package in eval mode.
        images: Images (B, C, H, W) on which outliers are looked for, and the result is measured.
        num_neurons: Number of neurons to move: those that add most to outliers, compared with other patches.
        seed: Seed of the random neurons of the control.

    Raises:
        ValueError: If no patch is an outlier (see ``vit.support.outliers``), or the model is not of this package.
    """
    check_positive_int("num_neurons", num_neurons, "10 is usual")
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"{type(model).__name__} is no VisionTransformer of this package: give what vit.load returns")
    check_capturable(model)
    norms = _norms(model, images)
    marked = rearrange(outliers(rearrange(norms, "l b n -> l (b n)")), "l (b n) -> l b n", b=len(images))
    # After later layers, outliers of earlier ones are still there.
    layer = int((norms.amax(dim=(1, 2)) / rearrange(norms, "l b n -> l (b n)").median(dim=1).values).argmax())
    if not marked[layer].any():
        raise ValueError(
            f"none of {norms[0].numel():,} patches has an outlying norm after any of {len(norms)} layers, so that no "
            "register is needed: give more images, or keep the model as it is"
        )
    scores = _scores(model, images, marked[layer], layer)
    if num_neurons > scores.numel():
        raise ValueError(
            f"num_neurons ({num_neurons}) must be at most {scores.numel()}, all neurons up to the outliers"
        )
    best = scores.flatten().topk(num_neurons).indices
    neurons = [tuple(divmod(number, scores.shape[1])) for number in best.tolist()]
    drawn = _draw_as_many(neurons, scores.shape[1], seed)
    predicted, changed = model(images).argmax(dim=-1), _with_register(model, neurons)

    def measure(measured: VisionTransformer) -> Measured:
        values = norms[layer] if measured is model else _norms(measured, images)[layer]
        # The bound is that of the model without the register.
        bound = norms[layer][marked[layer]].min()
        same = (measured(images).argmax(dim=-1) == predicted).float().mean()
        return Measured((values >= bound).float().mean().item(), values.amax(dim=1).median().item(), same.item())

    measured = (measure(each) for each in (model, changed, _with_register(model, drawn)))
    return AddedRegister(changed, neurons, layer, *measured)


class RegisterLinear(nn.Linear):
    """The second linear layer of an MLP. Some inputs, whose numbers are a saved buffer, go to a register."""

    def __init__(self, linear: nn.Linear, neurons: Sequence[int], register: int) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.register = register
        self.moves_to_register = True  # off during the test that nothing but attention mixes tokens
        self.register_buffer("to_register", torch.tensor(neurons, device=linear.weight.device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Move the largest activations of these neurons, then transform: (B, N, hidden) -> (B, N, D)."""
        if not self.moves_to_register:
            return super().forward(hidden)
        moved = hidden[:, :, self.to_register]
        of_patches = moved[:, self.register + 1 :]
        strongest = of_patches.abs().argmax(dim=1, keepdim=True)
        largest = of_patches.gather(1, strongest)
        kept = torch.cat([moved[:, : self.register], largest, torch.zeros_like(of_patches)], dim=1)
        places = repeat(self.to_register, "j -> b n j", b=hidden.shape[0], n=hidden.shape[1])
        return super().forward(hidden.scatter(2, places, kept))


def _with_register(model: VisionTransformer, neurons: Sequence[Neuron]) -> VisionTransformer:
    """Return a copy of a model with one more register, and these neurons moved to it."""
    changed = copy.deepcopy(model)
    place = changed.num_prefix_tokens
    zeros = torch.zeros_like(changed.pos_embed[:, :1])
    registers = [] if changed.reg_token is None else [changed.reg_token]
    changed.reg_token = nn.Parameter(torch.cat([*registers, zeros], dim=1))
    if not changed.no_embed_class:
        parts = changed.pos_embed[:, :place], zeros, changed.pos_embed[:, place:]
        changed.pos_embed = nn.Parameter(torch.cat(parts, dim=1), requires_grad=changed.pos_embed.requires_grad)
    changed.num_prefix_tokens += 1
    changed.config |= {"num_registers": changed.config["num_registers"] + 1}
    for layer in sorted({layer for layer, _ in neurons}):
        mlp: Any = changed.blocks[layer].mlp
        mlp.fc2 = RegisterLinear(mlp.fc2, sorted({neuron for of, neuron in neurons if of == layer}), place)
    return changed.eval()


def _draw_as_many(neurons: Sequence[Neuron], width: int, seed: int) -> list[Neuron]:
    """Draw a random neuron of the same layer for each neuron, all of them different."""
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[Neuron, None] = {}
    for layer, _ in neurons:
        count = len(drawn)
        while len(drawn) == count:
            drawn[layer, int(torch.randint(width, (), generator=generator))] = None
    return list(drawn)


def _norms(model: VisionTransformer, images: Tensor) -> Tensor:
    """Return the norms of the patches after each layer, (L, B, N)."""
    layers = model.get_intermediate_layers(images, n=len(model.blocks))
    return torch.stack([tokens.float().norm(dim=-1) for tokens in layers])


def _scores(model: VisionTransformer, images: Tensor, marked: Tensor, last: int) -> Tensor:
    """Return how much longer vectors each neuron adds to marked patches than to other patches: (layers, j)."""
    scores: dict[int, Tensor] = {}

    def keep(layer: int, fc2: nn.Linear, args: tuple[Tensor]) -> None:
        activations = args[0][:, model.num_prefix_tokens :].abs()
        at, elsewhere = (activations[where].mean(dim=0) for where in (marked, ~marked))
        block: Any = model.blocks[layer]
        column = block.ls2(rearrange(fc2.weight, "d j -> j d")).norm(dim=1)
        scores[layer] = (at - elsewhere) * column

    with ExitStack() as stack:
        for layer in range(last + 1):
            fc2: Any = model.get_submodule(f"blocks.{layer}.mlp.fc2")
            stack.enter_context(fc2.register_forward_pre_hook(partial(keep, layer)))
        model(images)
    return torch.stack([scores[layer] for layer in range(last + 1)])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
