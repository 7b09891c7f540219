"""Captures the attention of decoders: among tokens, from tokens to a context, and in an encoder before the decoder."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vit.capture.checks.alone import BATCH_TOLERANCE, project_attention
from vit.capture.checks.capturable import check_capturable
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import differentiable
from vit.capture.interception.intercept import InterceptAttention
from vit.capture.parts.logits import logits_of
from vit.capture.tolerance import tolerance

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SequenceEdit = Callable[[Kind, int, Tensor], Tensor]


@dataclass
class SequenceAttentions:
    """The attention of each layer of a decoder and of its encoder, if any, in one autograd graph with the logits.

    Attributes:
        encoder: Attention among the tokens of the image, (B, H, M, M) for each layer of the encoder.
        decoder: Causal attention among the tokens of the sequence, (B, H, T, T) for each layer of the decoder.
        cross: Attention from tokens of the sequence to those of the image, (B, H, T, M) for each layer of the decoder.
        logits: Logits of the next token at each position, (B, T, V).
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def capture_sequence(model: nn.Module, *inputs: Tensor) -> SequenceAttentions:
    """Return the attention of every layer of ``model(*inputs)``: a decoder alone, or an encoder and a decoder.

    The weights show which kind an attention is. Causal attention belongs to the decoder. Other attention before the
    first causal layer belongs to the encoder. Other attention after it is from the decoder's tokens to the encoder's.
    Attention of a single token to itself counts as causal.

    >>> import vit
    >>> from vit.model.decoder import ImageToSequence, TransformerDecoder
    >>> encoder = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=3)
    >>> decoder = TransformerDecoder(12, 24, depth=2, num_heads=3, max_length=6, context_dim=24)
    >>> reader = ImageToSequence(encoder, decoder, start=10, end=11).eval()
    >>> found = capture_sequence(reader, torch.randn(2, 3, 8, 8), torch.tensor([[10, 3, 7], [10, 1, 11]]))
    >>> [tuple(layers[-1].shape) for layers in (found.encoder, found.decoder, found.cross)]
    [(2, 3, 5, 5), (2, 3, 3, 3), (2, 3, 3, 5)]

    Args:
        model: A decoder of any library in eval mode, such as our ``ImageToSequence`` and ``ImageGPT``, or
            transformers' ``VisionEncoderDecoderModel``.
        inputs: What the model takes, such as images (B, C, H, W) and tokens (B, T).

    Raises:
        ValueError: If attention cannot be intercepted, none of it is causal, capturing it changes the logits, or the
            first image has other attention alone than in the batch.
    """
    inputs = tuple(differentiable(tensor) for tensor in inputs)
    found = _captured(model, inputs)
    with torch.no_grad():
        check_logits_unchanged(model, None, found.logits, logits_of(model(*inputs)))
        if len(inputs[0]) > 1:
            count = len(inputs[0])
            alone = (tensor[:1] if tensor.ndim and len(tensor) == count else tensor for tensor in inputs)
            _check_first_alone(model, found, _captured(model, tuple(alone)))
    if not found.decoder:
        raise ValueError(f"no attention of {type(model).__name__} is causal: capture_attention is for encoders")
    return found


def _captured(model: nn.Module, inputs: tuple[Tensor, ...]) -> SequenceAttentions:
    found = SequenceAttentions()

    def keep(kind: Kind, _: int, attn: Tensor) -> Tensor:
        getattr(found, kind).append(attn)
        return attn

    found.logits = run_sequence(model, *inputs, edit=keep)
    return found


def _check_first_alone(model: nn.Module, found: SequenceAttentions, alone: SequenceAttentions) -> None:
    """Raise a ValueError if the first image has other attention alone, as with heads before images: (H * B, N, M)."""
    allowed = tolerance(model, alone.logits, BATCH_TOLERANCE)
    for kind in KINDS:
        of_batch, of_one = (
            [project_attention(attn[:1]).float() for attn in getattr(each, kind)] for each in (found, alone)
        )
        alike = len(of_batch) == len(of_one) and all(
            one.shape == other.shape and (one - other).abs().max() <= allowed * other.abs().max()
            for one, other in zip(of_batch, of_one, strict=True)
        )
        if not alike:
            raise ValueError(
                f"the {kind} attention of {type(model).__name__} differs between an image alone and the same image in "
                "a batch: its axes are not (images, heads, queries, keys), or images of a batch change each other: "
                "give images one at a time"
            )


def run_sequence(model: nn.Module, *inputs: Tensor, edit: SequenceEdit) -> Tensor:
    """Return the logits of a decoder while ``edit`` reads or replaces its attention.

    Args:
        model: A decoder in eval mode.
        inputs: What the model takes.
        edit: Called as ``edit(kind, layer, attn)``. The kind is "encoder", "decoder" or "cross". Layers of each kind
            are counted from 0. The weights that ``edit`` returns multiply the values.

    Raises:
        ValueError: If attention cannot be intercepted.
    """
    check_capturable(model)
    if any(getattr(module, "num_heads", None) == 0 for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has a layer without heads, so its attention calls cannot be told apart by their "
            "order: capture the model before it is pruned, or keep a head in each layer"
        )
    counts = dict.fromkeys(KINDS, 0)
    batches = {len(each) for each in inputs if each.ndim > 1}  # one image may have several texts

    def with_marked_keys(_: int, attn: Tensor) -> Tensor:
        if len(attn) not in batches:
            raise ValueError(
                f"{type(model).__name__} attends within windows, or to some images only ({len(inputs[0])} inputs gave "
                f"attention of shape {tuple(attn.shape)}): read its encoder alone, by InterceptAttention"
            )
        kind = _kind_of(attn, is_decoding=counts["decoder"] > 0)
        counts[kind] += 1
        return edit(kind, counts[kind] - 1, attn)

    with InterceptAttention(model, with_marked_keys, len(inputs[0])) as intercepted:
        logits = logits_of(model(*inputs))
    unseen = [*intercepted.unseen, *intercepted.followed.unused.values()]
    if unseen or not sum(counts.values()):
        what = f"of shape {unseen[0]}" if unseen else "a kernel of its own, or none"
        raise ValueError(
            f"{type(model).__name__} has attention that cannot be intercepted ({what}): switch it to "
            "scaled_dot_product_attention if it offers that"
        )
    return logits


def _kind_of(attn: Tensor, *, is_decoding: bool) -> Kind:
    queries, keys = attn.shape[-2:]
    if queries == keys and not attn.triu(diagonal=1).any():
        return "decoder"
    return "cross" if is_decoding else "encoder"
