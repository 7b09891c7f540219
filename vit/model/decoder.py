"""Transformer decoders: a language model, and a model that writes a sequence of tokens for an image."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import KeyValueCache, MultiHeadAttention, StateCache
from vit.attention.cache import restored_on_error
from vit.attention.masks import causal_mask
from vit.attention.mechanisms.initial_weights import draw_weights, set_values
from vit.attention.mechanisms.mechanism import undecayed_parameters
from vit.attention.multihead_checks import check_takes_angles, check_takes_mask
from vit.model.decoder_block import DecoderBlock, DecoderCache
from vit.model.generation import (
    INTEGER_DTYPES,
    Generated,
    Sampling,
    beam_search,
    check_in_vocabulary,
    first_outside,
    sample,
)
from vit.model.positions import rotary_angles, sinusoidal_positions
from vit.support.checks import check_choice, check_natural, check_positive_int, check_share, check_switch

DecoderPositions = Literal["learned", "sincos", "rope"]


class TransformerDecoder(nn.Module):
    """Predicts the next token at each position: embedding, positions, decoder blocks, output.

    >>> decoder = TransformerDecoder(vocab_size=12, embed_dim=48, depth=2, num_heads=3, max_length=6, context_dim=24)
    >>> decoder(torch.tensor([[10, 3, 7]]), context=torch.randn(1, 17, 24)).shape
    torch.Size([1, 3, 12])

    Args:
        vocab_size: Number of different tokens.
        embed_dim: Channels of a token.
        depth: Number of decoder blocks.
        num_heads: Attention heads of a block; must divide ``embed_dim``.
        max_length: Maximum number of tokens of a sequence.
        context_dim: Channels of a context token, such as a token of an image encoder. None means no context.
        positions: Kind of positions. "learned" vectors or fixed sine-cosine codes ("sincos") are added to the tokens.
            "rope" turns queries and keys by angles (Su et al. 2021). The mechanisms "linear", "additive", "general" and
            "recurrent" refuse it, because they need more than the dot product of queries and keys.
        tie_output: Whether the token embedding is also the output matrix (Press and Wolf 2017). This saves a matrix.
        dropout: Probability of zeroing a channel after the embedding and after each projection, in [0, 1).
        drop_path: Probability that a sequence skips a residual branch of the last block, in [0, 1). It grows linearly
            from 0 at the first block.
        prefix: Number of first tokens that see each other both ways, such as a prompt (Raffel et al. 2020); every later
            token sees them and the tokens before it. 0 is causal. The mechanism must take a mask.
        block_kwargs: Further arguments of ``DecoderBlock``: num_kv_heads, mlp_ratio, qkv_bias, qk_norm, attention,
            attention_kwargs, causal.

    Raises:
        ValueError: If sizes do not fit, or a choice is unknown.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        max_length: int,
        *,
        context_dim: int | None = None,
        positions: DecoderPositions = "learned",
        tie_output: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        prefix: int = 0,
        **block_kwargs: Any,
    ) -> None:
        super().__init__()
        check_switch("tie_output", tie_output)
        sizes = {"vocab_size": vocab_size, "embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}
        for name, size in (sizes | {"max_length": max_length}).items():
            check_positive_int(name, size)
        check_choice("positions", positions, get_args(DecoderPositions))
        check_share("dropout", dropout, "0.1 is usual")
        check_share("drop_path", drop_path, "0.1 is usual")
        check_natural("prefix", prefix, "0 is causal")
        if prefix > max_length:
            raise ValueError(f"prefix ({prefix}) is longer than max_length ({max_length}): shorten it")
        if prefix and not block_kwargs.get("causal", True):
            raise ValueError(
                f"prefix ({prefix}) changes nothing if causal is False, as all tokens see each other: set "
                "prefix to 0, or causal to True"
            )
        self.prefix = prefix
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.head_dim = embed_dim // num_heads
        self.kind_of_positions = positions
        self.token_embed = nn.Embedding(vocab_size, embed_dim)
        is_added = positions != "rope"
        self.pos_embed = (
            nn.Parameter(torch.empty(1, max_length, embed_dim), positions == "learned") if is_added else None
        )
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(
                embed_dim,
                num_heads,
                context_dim=context_dim,
                dropout=dropout,
                drop_path=drop_path * i / max(depth - 1, 1),
                block_index=i,
                **block_kwargs,
            )
            for i in range(depth)
        )
        for block in self.blocks:
            block.attn.is_rotary = not is_added
            if not is_added:
                check_takes_angles(block.attn)
                parts = block.attn.mechanism.rotated_parts
                if self.head_dim % (2 * parts):
                    raise ValueError(
                        f"embed_dim ({embed_dim}) over num_heads ({num_heads}) must be a multiple of {2 * parts} for "
                        f"positions 'rope', which turn pairs of channels in each of {parts} parts of a head"
                    )
            if prefix:
                check_takes_mask(block.attn)
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = None if tie_output else nn.Linear(embed_dim, vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the initial weights: linear layers uniform (Glorot and Bengio 2010), embeddings normal."""
        draw_weights(self)
        nn.init.normal_(self.token_embed.weight, std=0.02)
        if self.kind_of_positions == "learned":
            nn.init.normal_(self.pos_embed, std=0.02)
        elif self.kind_of_positions == "sincos":
            set_values(self.pos_embed, sinusoidal_positions(*self.pos_embed.shape[1:])[None])

    def forward(
        self, tokens: Tensor, context: Tensor | None = None, *, caches: list[DecoderCache] | None = None
    ) -> Tensor:
        """Compute the logits of the next token at each position: (B, T) -> (B, T, vocab_size).

        For the arguments, see ``forward_features``.
        """
        states = self.forward_features(tokens, context, caches=caches)
        return F.linear(states, self.token_embed.weight) if self.head is None else self.head(states)

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def forward_features(
        self, tokens: Tensor, context: Tensor | None = None, *, caches: list[DecoderCache] | None = None
    ) -> Tensor:
        """Compute the states that predict the next tokens, after the final norm: (B, T) -> (B, T, D).

        Args:
            tokens: Numbers of the tokens. If there are caches, only the tokens after the cached tokens.
            context: Encoder output that the tokens attend to, (B, M, context_dim).
            caches: Caches from ``new_caches``. This call fills and extends them, unless it raises an error.

        Raises:
            ValueError: If there are more tokens than ``max_length`` or fewer than ``prefix``, the number of caches is
                wrong, or a token is outside the vocabulary (checked only in eager mode on the CPU).
        """
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(
                f"there are {len(caches)} caches for {len(self.blocks)} blocks: take those of new_caches()"
            )
        start = caches[0].tokens.length if caches else 0
        self._check_tokens(tokens, start)
        states = self.token_embed(tokens.long())
        angles = None
        if self.pos_embed is None:
            dtype = torch.promote_types(states.dtype, torch.float32)
            places = torch.arange(start, start + tokens.shape[1], device=tokens.device, dtype=dtype)
            angles = rotary_angles(places, self.head_dim)
        else:
            states = states + self.pos_embed[:, start : start + tokens.shape[1]]
        states = self.drop(states)
        mask = None
        if self.prefix and not start:  # later tokens see all tokens before them, prefix or not
            mask = causal_mask(tokens.shape[1], tokens.shape[1], tokens.device)
            mask = mask | (torch.arange(tokens.shape[1], device=tokens.device) < self.prefix)
        with restored_on_error(part for cache in caches or [] for part in cache.parts):
            for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
                states = block(states, context, cache=cache, angles=angles, mask=mask)
        return self.norm(states)

    def new_caches(self, context_length: int = 0) -> list[DecoderCache]:
        """Return an empty cache for each block, for a context of ``context_length`` tokens.

        The cache of the tokens has a constant size if the mechanism has a state ("linear", "recurrent").
        """

        def of_tokens(attention: nn.Module) -> KeyValueCache | StateCache:
            has_state = isinstance(attention, MultiHeadAttention) and attention.mechanism.has_state
            return StateCache() if has_state else KeyValueCache(self.max_length)

        def of_context() -> KeyValueCache | None:
            return KeyValueCache(context_length) if context_length else None

        return [DecoderCache(of_tokens(block.attn), of_context()) for block in self.blocks]

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: embeddings and learned positions."""
        positions = set() if self.pos_embed is None else {"pos_embed"}
        return {"token_embed.weight"} | positions | undecayed_parameters(self)

    def _check_tokens(self, tokens: Tensor, start: int) -> None:
        if tokens.ndim != 2 or tokens.dtype not in INTEGER_DTYPES:
            raise ValueError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give whole numbers (batch, T)")
        end = start + tokens.shape[1]
        if end > self.max_length:
            raise ValueError(
                f"{end} tokens are more than max_length ({self.max_length}): shorten them, or build a longer decoder"
            )
        if end < self.prefix:
            raise ValueError(
                f"{end} tokens are fewer than the prefix ({self.prefix}), whose tokens see each other: give all of "
                "them at once"
            )
        # Only on the CPU in eager mode: a GPU would have to wait, and an exported program cannot branch on values.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = first_outside(tokens, self.vocab_size)
            if outside is not None:
                raise ValueError(
                    f"token {outside} is outside the vocabulary of {self.vocab_size} (0 to {self.vocab_size - 1}): "
                    "check how texts were encoded, or take a larger vocab_size"
                )


class ImageToSequence(nn.Module):
    """Maps images to sequences of tokens: the output of an encoder is the context of a decoder.

    >>> import vit
    >>> encoder = vit.VisionTransformer(image_size=(8, 16), patch_size=4, embed_dim=24, depth=1, num_heads=3)
    >>> decoder = TransformerDecoder(12, 48, depth=1, num_heads=3, max_length=6, context_dim=24)
    >>> reader = ImageToSequence(encoder, decoder, start=10, end=11).eval()
    >>> images = torch.randn(2, 3, 8, 16)
    >>> reader(images, torch.tensor([[10, 3], [10, 7]])).shape  # the logits after "start" and after a digit
    torch.Size([2, 2, 12])
    >>> reader.generate(images, max_length=4).shape[0]
    2

    Args:
        encoder: A model whose ``forward_features`` maps images to tokens (B, M, D).
        decoder: A decoder whose ``context_dim`` is D.
        start: The token before the first token of a sequence.
        end: The token after the last token of a sequence.

    Raises:
        ValueError: If ``start`` or ``end`` is outside the vocabulary.
    """

    def __init__(self, encoder: nn.Module, decoder: TransformerDecoder, start: int, end: int) -> None:
        super().__init__()
        for name, token in (("start", start), ("end", end)):
            check_in_vocabulary(name, token, decoder.vocab_size)
        self.encoder = encoder
        self.decoder = decoder
        self.start = start
        self.end = end

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Compute the logits of the next token at each position: (B, C, H, W), (B, T) -> (B, T, vocab_size)."""
        return self.decoder(tokens, self.encoder.forward_features(images))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def no_weight_decay(self) -> set[str]:
        """Return the names of the encoder's and decoder's parameters without weight decay."""
        return {f"{part}.{name}" for part, module in self.named_children() for name in module.no_weight_decay()}

    def generate(
        self,
        images: Tensor,
        max_length: int | None = None,
        num_beams: int = 1,
        temperature: float = 0.0,
        use_cache: bool = True,
    ) -> Tensor:
        """Write the sequence of each image: (B, C, H, W) -> (B, T). Finished sequences are padded with ``end``.

        For the arguments, see ``write``.
        """
        return self.write(images, max_length, num_beams, temperature, use_cache).tokens

    @torch.no_grad()
    def write(
        self,
        images: Tensor,
        max_length: int | None = None,
        num_beams: int = 1,
        temperature: float = 0.0,
        use_cache: bool = True,
    ) -> Generated:
        """Write the sequence of each image, (B, C, H, W), and return it with its score and length.

        The start token is never written, unless it is also ``end``. If a sequence does not end, it stops after
        ``max_length`` tokens.

        Args:
            images: Images, (B, C, H, W).
            max_length: Maximum number of tokens of a sequence, including ``end``. None takes the decoder's limit.
            num_beams: Number of sequences that beam search follows for each image. 1 is greedy.
            temperature: If above 0, tokens are drawn at random from the softmax of ``logits / temperature``.
            use_cache: Whether to keep keys and values between steps. In eval mode this saves time and changes no token.
        """
        check_positive_int("num_beams", num_beams, "1 is greedy")
        if max_length is not None:
            check_positive_int("max_length", max_length)
        if self.encoder.training:
            raise ValueError("the encoder is in training mode, in which it drops at random: call .eval() first")
        context = self.encoder.forward_features(images)
        prompt = torch.full((len(images), 1), self.start, device=images.device)
        steps = self.decoder.max_length if max_length is None else max_length
        forbidden = None if self.start == self.end else self.start
        if num_beams > 1:
            if temperature:
                raise ValueError(f"beam search (num_beams {num_beams}) draws nothing: set temperature to 0")
            options = {"forbidden": forbidden, "use_cache": use_cache}
            return beam_search(self.decoder, prompt, context, steps, self.end, num_beams, **options)
        sampling = Sampling(temperature=temperature, forbidden=forbidden)
        return sample(self.decoder, prompt, context, steps, self.end, sampling, use_cache=use_cache)
