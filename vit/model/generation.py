"""Generation token by token: greedy and random sampling, and beam search, with or without a cache.

Letters in the einops patterns: b sequences, k beams of a sequence, t tokens, v tokens of the vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.support.checks import check_non_negative, check_positive_int, check_positive_share
from vit.support.precision import most_precise

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # of numbers of tokens


def check_scores(scores: Tensor) -> None:
    """Raise a ValueError if the score of a sequence is not a number: (B,). Its tokens mean nothing."""
    broken = sum(map(math.isnan, scores.tolist()))
    if broken:
        raise ValueError(
            f"{broken} of {len(scores)} sequences have a score of NaN: the model has diverged, or overflows in half "
            "precision; take earlier weights, or float32"
        )


@dataclass
class Generated:
    """Sequences that a decoder has written.

    Attributes:
        tokens: The tokens without the prompt, (B, T). Finished rows are padded with the end token.
        scores: The sum of the log-probabilities of each sequence's tokens, end token included, (B,).
        lengths: Number of tokens of each sequence, end token included, (B,).

    Raises:
        ValueError: If a score is not a number.
    """

    tokens: Tensor
    scores: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        check_scores(self.scores)


@dataclass
class Sampling:
    """How a token is chosen from its logits.

    Args:
        temperature: Tokens are drawn from the softmax of ``logits / temperature``. 0 takes the most probable token.
        top_k: Number of most probable tokens to draw from. None means all tokens.
        top_p: Tokens are drawn from the smallest set of most probable tokens whose probabilities sum to ``top_p``
            (nucleus sampling, Holtzman et al. 2020). None means all tokens.
        forbidden: A token that is never written.
        generator: Source of the random draws, on the device of the model. None means PyTorch's default.

    Raises:
        ValueError: If a number is out of its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    forbidden: int | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        check_non_negative("temperature", self.temperature, "1 draws as the model predicts, 0 takes the best token")
        if self.top_k is not None:
            check_positive_int("top_k", self.top_k)
        if self.top_p is not None:
            check_positive_share("top_p", self.top_p, "0.9 is usual")

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of the tokens that may be written: (B, V) -> (B, V)."""
        if self.forbidden is not None:
            logits = logits.index_fill(1, torch.tensor([self.forbidden], device=logits.device), -torch.inf)
        return logits.float().log_softmax(dim=-1)

    def choose(self, log_probabilities: Tensor) -> Tensor:
        """Return a token for each sequence: (B, V) -> (B,).

        Raises:
            ValueError: If tokens are drawn, and a log-probability is not a number.
        """
        if not self.temperature:
            return log_probabilities.argmax(dim=-1)
        check_scores(reduce(log_probabilities, "b v -> b", "sum"))  # multinomial would end the process on a GPU
        precise = most_precise(log_probabilities.device)
        ranked, tokens = log_probabilities.to(precise).sort(dim=-1, descending=True, stable=True)
        # Subtract the largest first: otherwise a tiny temperature would make all values infinite.
        probabilities = ((ranked - ranked[:, :1]) / self.temperature).softmax(dim=-1)
        if self.top_k is not None:
            probabilities[:, self.top_k :] = 0
        if self.top_p is not None:
            before = probabilities.cumsum(dim=-1) - probabilities
            probabilities[before >= self.top_p * probabilities.sum(dim=-1, keepdim=True)] = 0
        drawn = torch.multinomial(probabilities, 1, generator=self.generator)
        return tokens.gather(1, drawn)[:, 0]


class GrowingSequences:
    """Growing sequences and the logits of their next token. For the arguments, see ``sample``."""

    def __init__(self, decoder: nn.Module, prompt: Tensor, context: Tensor | None, use_cache: bool) -> None:
        self.decoder = decoder
        self.tokens = prompt
        self.context = context
        self.new = prompt  # tokens that are not in the cache yet
        self.caches = decoder.new_caches(0 if context is None else context.shape[1]) if use_cache else None

    def logits(self) -> Tensor:
        """Compute the logits of the next token: (B, V)."""
        if self.caches is None:
            return self.decoder(self.tokens, self.context)[:, -1]
        return self.decoder(self.new, self.context, caches=self.caches)[:, -1]

    def append(self, chosen: Tensor) -> None:
        """Append one token to each sequence: (B,)."""
        self.new = rearrange(chosen, "b -> b 1")
        self.tokens = torch.cat([self.tokens, self.new], dim=1)

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        self.tokens, self.new = self.tokens[rows], self.new[rows]
        self.context = None if self.context is None else self.context[rows]
        for cache in self.caches or []:
            for part in cache.parts:
                part.select(rows)

    def reorder(self, beams: Tensor) -> None:
        """Replace the beams of each sequence by the given ones, (B, K). All beams of a sequence share its context."""
        first = beams.shape[1] * torch.arange(len(beams), device=beams.device)
        rows = rearrange(rearrange(first, "b -> b 1") + beams, "b k -> (b k)")
        self.tokens, self.new = self.tokens[rows], self.new[rows]
        for cache in self.caches or []:
            cache.tokens.select(rows)


@torch.no_grad()
def sample(
    decoder: nn.Module,
    prompt: Tensor,
    context: Tensor | None,
    steps: int,
    end: int | None,
    sampling: Sampling,
    *,
    use_cache: bool = True,
) -> Generated:
    """Write sequences token by token. A finished sequence leaves the batch.

    Args:
        decoder: A ``TransformerDecoder``.
        prompt: The first tokens, (B, T), at least one.
        context: Encoder output that the tokens attend to, (B, M, context_dim), or None.
        steps: Maximum number of tokens to write.
        end: The token after which a sequence ends. None writes ``steps`` tokens.
        sampling: How a token is chosen.
        use_cache: Whether keys and values are kept between steps.
    """
    prompt = _checked(decoder, prompt, steps, end, sampling.forbidden)
    growing = torch.arange(len(prompt), device=prompt.device)  # sequences that have not ended
    written = prompt.new_full((len(prompt), steps), 0 if end is None else end)
    scores = torch.zeros(len(prompt), device=prompt.device)
    lengths = torch.full_like(growing, steps)
    states = GrowingSequences(decoder, prompt, context, use_cache)
    for step in range(steps):
        log_probabilities = sampling.log_probabilities(states.logits())
        chosen = sampling.choose(log_probabilities)
        written[growing, step] = chosen
        scores[growing] += log_probabilities.gather(1, rearrange(chosen, "b -> b 1"))[:, 0]
        states.append(chosen)
        if end is not None:
            ended = chosen == end
            lengths[growing[ended]] = step + 1
            rest = (~ended).nonzero()[:, 0]
            if not len(rest):
                break
            if len(rest) < len(growing):
                growing = growing[rest]
                states.select(rest)
    return Generated(written if end is None else _trim_to_longest(written, lengths), scores, lengths)


@torch.no_grad()
def beam_search(
    decoder: nn.Module,
    prompt: Tensor,
    context: Tensor | None,
    steps: int,
    end: int,
    num_beams: int,
    *,
    length_penalty: float = 1.0,
    forbidden: int | None = None,
    use_cache: bool = True,
) -> Generated:
    """Follow the ``num_beams`` most probable beginnings of each sequence, and return the best sequence.

    The search keeps the largest sums of log-probabilities. At the end, ``score / length^length_penalty`` decides, so
    short sequences have no advantage (Wu et al. 2016 divide by a shifted length instead). The greedy sequence takes
    part in this comparison, so the result is never worse than the greedy sequence.

    A ``forbidden`` token is never written. For the other arguments, see ``sample``.
    """
    check_positive_int("num_beams", num_beams)
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty ({length_penalty}) must be a finite number: 1 is usual, 0 has no effect")
    prompt = _checked(decoder, prompt, steps, end, forbidden)
    sampling = Sampling(forbidden=forbidden)
    greedy = sample(decoder, prompt, context, steps, end, sampling, use_cache=use_cache)
    states = GrowingSequences(decoder, prompt, context, use_cache)
    states.select(repeat(torch.arange(len(prompt), device=prompt.device), "b -> (b k)", k=num_beams))
    scores = torch.full((len(prompt), num_beams), -torch.inf, device=prompt.device)
    scores[:, 0] = 0  # at first only beam 0 counts; otherwise all beams would be equal
    ended, lengths = torch.zeros_like(scores, dtype=torch.bool), torch.zeros_like(scores)
    stay = torch.full((decoder.vocab_size,), -torch.inf, device=prompt.device)
    stay[end] = 0  # only the end token can follow in a finished beam, with log-probability 0
    for _ in range(steps):
        log_probabilities = sampling.log_probabilities(states.logits())
        continued = rearrange(log_probabilities, "(b k) v -> b k v", k=num_beams)
        continued = torch.where(rearrange(ended, "b k -> b k 1"), stay, continued)
        sums = rearrange(rearrange(scores, "b k -> b k 1") + continued, "b k v -> b (k v)")
        scores, best = sums.topk(num_beams, dim=1)
        beam, token = best // decoder.vocab_size, best % decoder.vocab_size
        states.reorder(beam)
        states.append(rearrange(token, "b k -> (b k)"))
        ended = ended.gather(1, beam)
        lengths = lengths.gather(1, beam) + ~ended
        ended = ended | (token == end)
        if ended.all():
            break
    written = rearrange(states.tokens[:, prompt.shape[1] :], "(b k) t -> b k t", k=num_beams)
    return _best(written, scores, lengths, greedy, end, length_penalty)


def _best(
    written: Tensor, scores: Tensor, lengths: Tensor, greedy: Generated, end: int, length_penalty: float
) -> Generated:
    """Return the best of the beams and the greedy sequence: (B, K, T), (B, K), (B, K) -> (B, T)."""
    longest = max(written.shape[2], greedy.tokens.shape[1])
    beams, single = (F.pad(tokens, (0, longest - tokens.shape[-1]), value=end) for tokens in (written, greedy.tokens))
    tokens = torch.cat([rearrange(single, "b t -> b 1 t"), beams], dim=1)
    scores = torch.cat([rearrange(greedy.scores, "b -> b 1"), scores], dim=1)
    lengths = torch.cat([rearrange(greedy.lengths, "b -> b 1").to(lengths.dtype), lengths], dim=1)
    best = (scores / lengths**length_penalty).argmax(dim=1)  # if scores are equal, the greedy sequence
    rows = torch.arange(len(best), device=best.device)
    lengths = lengths[rows, best].long()
    return Generated(_trim_to_longest(tokens[rows, best], lengths), scores[rows, best], lengths)


def _trim_to_longest(tokens: Tensor, lengths: Tensor) -> Tensor:
    return tokens[:, : int(lengths.max()) if len(lengths) else 0]


def _checked(decoder: nn.Module, prompt: Tensor, steps: int, end: int | None, forbidden: int | None) -> Tensor:
    """Check the arguments, and return the prompt as 64-bit integers.

    Raises:
        ValueError: If ``steps`` is below 1, the prompt is empty, too long or of no whole numbers, a token is outside
            the vocabulary, or the decoder is in training mode.
    """
    if decoder.training:
        raise ValueError("the decoder is in training mode, in which dropout changes what it writes: call .eval() first")
    check_positive_int("steps", steps)
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"the prompt has shape {tuple(prompt.shape)}: give (batch, T), at least one token each")
    if prompt.dtype not in INTEGER_DTYPES:
        raise ValueError(f"the prompt is {prompt.dtype}: give whole numbers of tokens, such as prompt.long()")
    room = decoder.max_length - prompt.shape[1] + 1  # the decoder never reads the last token it writes
    if room < 1:
        raise ValueError(f"a prompt of {prompt.shape[1]} is longer than max_length ({decoder.max_length}): shorten it")
    if steps > room:
        raise ValueError(
            f"{steps} tokens after a prompt of {prompt.shape[1]} do not fit into max_length ({decoder.max_length}): "
            f"ask for at most {room}"
        )
    for name, token in (("end", end), ("forbidden", forbidden)):
        if token is not None:
            check_in_vocabulary(name, token, decoder.vocab_size)
    return prompt.long()


def check_in_vocabulary(name: str, token: int, vocab_size: int) -> None:
    """Raise a ValueError if a token is outside the vocabulary."""
    if not 0 <= token < vocab_size:
        raise ValueError(f"{name} ({token}) is outside the vocabulary of {vocab_size}: take a token below it")


def first_outside(numbers: Tensor, count: int) -> int | None:
    """Return a number that is not from 0 to ``count - 1``; None if there is none. Reading it waits for a GPU."""
    if not numbers.numel():
        return None
    low, high = (number.item() for number in numbers.aminmax())
    return low if low < 0 else high if high >= count else None
