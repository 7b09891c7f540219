"""Knockout: cuts edges, heads and layers of attention in a running model, and measures how far a logit falls.

A cut is an experiment: it says what the logit rests on. A weight of attention only says where a token reads.

Letters in the einops patterns: b images, k cuts that run together, c image channels, y x rows and columns of pixels,
h heads, n queries, m keys.
"""

from collections.abc import Callable, Sequence

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.analysis.batches import calls_of_layers, in_batches
from vit.analysis.modules import emptied_layers
from vit.capture.anatomy import examine
from vit.capture.attention import capture_unchecked, run_intercepted
from vit.capture.experiments.graph import gradients_of
from vit.capture.experiments.moved import differentiable
from vit.capture.parts.logits import logits_of
from vit.capture.parts.order import Orders, token_orders
from vit.support.checks import check_positive_int
from vit.support.precision import at_least_float32, in_double

Classes = int | Tensor | None
Unit = tuple[int, ...]  # what is cut in a layer: all of it (), a head, or a head and a key


def cut_layers(
    model: nn.Module, images: Tensor, target: Classes = None, *, against: Classes = None, batch_size: int = 32
) -> Tensor:
    """Measure the fall of a logit without the attention of each layer: images (B, C, H, W) -> (B, L).

    No head of the layer adds anything; the bias of its output projection stays. For the arguments, see ``cut_edges``.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> cut_layers(model, torch.randn(5, 3, 32, 32), target=7).shape
    torch.Size([5, 2])
    """
    cuts = _cut(model, images, target, against, batch_size, lambda _: [()], lambda attn, _: torch.zeros_like(attn))
    return torch.cat(cuts, dim=1)


def cut_heads(
    model: nn.Module, images: Tensor, target: Classes = None, *, against: Classes = None, batch_size: int = 32
) -> list[Tensor]:
    """Measure the fall of a logit without each head: images (B, C, H, W) -> one (B, H) for each layer.

    The head adds nothing, as in ``prune_heads``. For the arguments, see ``cut_edges``.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in cut_heads(model, torch.randn(5, 3, 32, 32))]
    [(5, 3), (5, 3)]
    """

    def heads(attn: Tensor) -> list[Unit]:
        return [(head,) for head in range(attn.shape[1])]

    def without(attn: Tensor, unit: Unit) -> Tensor:
        attn = attn.clone()
        attn[:, unit[0]] = 0
        return attn

    return _cut(model, images, target, against, batch_size, heads, without)


def cut_edges(
    model: nn.Module,
    images: Tensor,
    target: Classes = None,
    *,
    against: Classes = None,
    query: int | None = None,
    batch_size: int = 32,
) -> list[Tensor]:
    """Measure the fall of a logit without each edge query <- key of each head: one (B, H, N) for each layer.

    The weight of the key becomes zero, and the other weights of the row grow in proportion until the row has its former
    sum. So the head reads the other tokens instead, as with a mask on its logits (Geva et al. 2023, attention
    knockout). Without this, the output of the head would also shrink, and a cut would measure two things. A head that
    reads only this key then reads nothing.

    Every edge takes a pass over the images, many in one batch: this is for small models. ``attribute_edges`` estimates
    the same by one backward pass.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in cut_edges(model, torch.randn(2, 3, 32, 32))]
    [(2, 3, 17), (2, 3, 17)]

    Args:
        model: A ViT of any library, in eval mode.
        images: Images, normalised as the model expects.
        target: The class whose logit is measured: one for all images, or one for each, (B,). None takes the predicted
            classes.
        against: The class whose logit is subtracted, in the same form. None subtracts nothing.
        query: The token whose row is cut, such as 0 for a class token. None cuts the rows of the tokens that the logits
            are read from (see ``Anatomy.readout``): the class token, or if the patches are averaged, each patch.
        batch_size: Number of images in one forward pass, copies included.

    Raises:
        ValueError: If attention cannot be intercepted (see ``capture_attention``) or has negative weights, a layer has
            lost all heads, or there is no such class or token.
    """
    rows = _rows(model, images, query)

    def edges(attn: Tensor) -> list[Unit]:
        return [(head, key) for head in range(attn.shape[1]) for key in range(attn.shape[-1])]

    def without(attn: Tensor, unit: Unit) -> Tensor:
        head, key = unit
        _check_weights(attn)
        attn, of_layer = attn.clone(), _rows_of(attn, rows)
        row = attn[:, head, of_layer]
        kept = row.clone()
        kept[..., key] = 0
        attn[:, head, of_layer] = kept * _ratio(row.sum(dim=-1, keepdim=True), kept.sum(dim=-1, keepdim=True))
        return attn

    cuts = _cut(model, images, target, against, batch_size, edges, without, _orders(model, images))
    heads = [attn.shape[1] for attn in _one_image(model, images)]
    return [rearrange(layer, "b (h m) -> b h m", h=count) for layer, count in zip(cuts, heads, strict=True)]


def attribute_edges(
    model: nn.Module,
    images: Tensor,
    target: Classes = None,
    *,
    against: Classes = None,
    query: int | None = None,
    batch_size: int = 32,
) -> list[Tensor]:
    """Estimate ``cut_edges`` by one backward pass: one (B, H, N) for each layer.

    The estimate is the gradient of the logit with respect to the weights, times the change of the weights by the cut
    (attribution patching: Nanda 2023; Syed et al. 2023). It is right to first order. ``rank_correlation`` says how near
    it comes to the cuts themselves.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in attribute_edges(model, torch.randn(5, 3, 32, 32))]
    [(5, 3, 17), (5, 3, 17)]
    """
    rows, calls, orders = _rows(model, images, query), _calls(model, images, batch_size), _orders(model, images)
    measure = asked_logit(model, images, target, against, batch_size)
    batches = []
    for index, batch in enumerate(in_batches(model, images, batch_size)):
        with torch.inference_mode(False), torch.enable_grad(), gradients_of(model, "use cut_edges"):
            attentions = capture_unchecked(model, differentiable(batch), calls, orders)
            asked = measure(attentions.logits, index * batch_size)
            slopes = torch.autograd.grad(asked.sum(), [*attentions])
        batches.append([_estimate(attn.detach(), slope, rows) for attn, slope in zip(attentions, slopes, strict=True)])
    return [torch.cat(layer) for layer in zip(*batches, strict=True)]


def _estimate(attn: Tensor, slope: Tensor, rows: Sequence[int]) -> Tensor:
    """Sum over rows the gradient times what a cut of each key takes away: (B, H, N, M) twice -> (B, H, M)."""
    _check_weights(attn)
    of_layer = _rows_of(attn, rows)
    # This needs double precision: beside a large weight, the rest of the row is a small difference.
    weights, slope = (in_double(x[:, :, of_layer]) for x in (attn, slope))
    parts = weights * slope
    whole = parts.sum(dim=-1, keepdim=True)
    total = weights.sum(dim=-1, keepdim=True)
    falls = parts - (_ratio(total, total - weights) - 1) * (whole - parts)
    return at_least_float32(reduce(falls, "b h n m -> b h m", "sum").to(attn.dtype)).cpu()


def _ratio(total: Tensor, left: Tensor) -> Tensor:
    """Return by how much the weights left grow; 1 if nothing is left."""
    is_left = left > 1e-6 * total
    return torch.where(is_left, total / torch.where(is_left, left, 1), 1)


@torch.no_grad()
def _cut(
    model: nn.Module,
    images: Tensor,
    target: Classes,
    against: Classes,
    batch_size: int,
    units: Callable[[Tensor], list[Unit]],
    without: Callable[[Tensor, Unit], Tensor],
    orders: Orders | None = None,
) -> list[Tensor]:
    """Run the model once for each unit of each layer, and return the falls: one (B, units) for each layer.

    Units that name tokens need the ``orders`` of the layers.
    """
    check_positive_int("batch_size", batch_size)
    calls = _calls(model, images, batch_size)
    measure = asked_logit(model, images, target, against, batch_size)
    cuts = [(layer, unit) for layer, attn in enumerate(_one_image(model, images)) for unit in units(attn)]
    batches = []
    for index, batch in enumerate(in_batches(model, images, batch_size)):
        first_image = index * batch_size
        intact = measure(logits_of(model(batch)), first_image)
        together = max(1, batch_size // len(batch))
        falls = []
        for first in range(0, len(cuts), together):
            chosen = cuts[first : first + together]

            def edit(layer: int, attn: Tensor, chosen: Sequence[tuple[int, Unit]] = chosen) -> Tensor:
                if all(of != layer for of, _ in chosen):
                    return attn
                parts = attn.chunk(len(chosen))
                return torch.cat(
                    [without(x, unit) if of == layer else x for x, (of, unit) in zip(parts, chosen, strict=True)]
                )

            copies = repeat(batch, "b c y x -> (k b) c y x", k=len(chosen))
            logits = run_intercepted(model, copies, edit, calls, orders)
            falls += [intact - measure(cut, first_image) for cut in logits.chunk(len(chosen))]
        batches.append(torch.stack(falls, dim=1).cpu())
    layers = [layer for layer, _ in cuts]
    return list(torch.cat(batches).split([layers.count(layer) for layer in sorted({*layers})], dim=1))


def asked_logit(
    model: nn.Module, images: Tensor, target: Classes, against: Classes, batch_size: int
) -> Callable[[Tensor, int], Tensor]:
    """Return a function that measures the logit asked for: logits of a batch, number of its first image -> (B,)."""
    targets = chosen_classes(model, images, target, batch_size)
    others = None if against is None else chosen_classes(model, images, against, batch_size)

    def measure(logits: Tensor, first: int) -> Tensor:
        part = slice(first, first + len(logits))
        return logit_of(logits, targets[part], None if others is None else others[part])

    return measure


def chosen_classes(model: nn.Module, images: Tensor, classes: Classes, batch_size: int) -> Tensor:
    """Return the class of each image, (B,): those given, or the predicted ones.

    Raises:
        ValueError: If there is no such class, or not one for each image.
    """
    with torch.no_grad():
        logits = torch.cat([logits_of(model(batch)) for batch in in_batches(model, images, batch_size)])
    if classes is None:
        return logits.argmax(dim=-1)
    chosen = torch.as_tensor(classes, device=logits.device)
    if chosen.ndim == 0:
        chosen = repeat(chosen, "-> b", b=len(images))
    if chosen.shape != logits.shape[:1]:
        raise ValueError(f"{len(images)} images have {len(chosen)} classes: give one for all, or one for each")
    if unknown := chosen[(chosen < 0) | (chosen >= logits.shape[-1])].tolist():
        raise ValueError(f"there is no class {unknown[0]}: the model has {logits.shape[-1]}, counted from 0")
    return chosen


def logit_of(logits: Tensor, target: Tensor, against: Tensor | None = None) -> Tensor:
    """Return the logit of a class, less that of another if it is given: (B, classes), (B,) -> (B,)."""
    wide = at_least_float32(logits)
    own = wide.gather(1, rearrange(target, "b -> b 1"))[:, 0]
    return own if against is None else own - wide.gather(1, rearrange(against, "b -> b 1"))[:, 0]


def _calls(model: nn.Module, images: Tensor, batch_size: int) -> list[int]:
    if emptied := emptied_layers(model):
        raise ValueError(f"layer {emptied[0]} has no heads left: cut edges before pruning, or leave each layer a head")
    return calls_of_layers(model, images, batch_size)


def _one_image(model: nn.Module, images: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return capture_unchecked(model, next(in_batches(model, images, 1)), _calls(model, images[:1], 1))


def _orders(model: nn.Module, images: Tensor) -> Orders:
    """Return the places of the tokens of each layer in another order than the first, which tokens are numbered by."""
    num_tokens = _one_image(model, images)[0].shape[-1]
    return token_orders(model, next(in_batches(model, images, 1)), _calls(model, images[:1], 1), num_tokens)


def _rows(model: nn.Module, images: Tensor, query: int | None) -> list[int]:
    if query is None:
        return examine(model, next(in_batches(model, images, 1))).readout.nonzero()[:, 0].tolist()
    tokens = _one_image(model, images)[0].shape[-2]
    if not 0 <= query < tokens:
        raise ValueError(f"there is no token {query}: the model has {tokens}, counted from 0")
    return [query]


def _rows_of(attn: Tensor, rows: Sequence[int]) -> list[int]:
    """Return the rows to cut. An attention with one query, which pools the tokens, has a single row."""
    return [0] if attn.shape[-2] == 1 else list(rows)


def _check_weights(attn: Tensor) -> None:
    if attn.numel() and attn.min() < 0:
        raise ValueError(
            f"attention has negative weights ({attn.min().item():.2g}), as in differential and talking-heads "
            "attention, so that the weights left cannot take over those of a key: use cut_heads or cut_layers"
        )
