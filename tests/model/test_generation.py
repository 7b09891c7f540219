"""Generation: greedy and random tokens, beams, and sequences that end one by one."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vit.model import generation
from vit.model.decoder import TransformerDecoder
from vit.model.generation import Sampling, beam_search, sample

V, T, END = 5, 6, 4


@pytest.fixture(scope="module")
def decoder():
    torch.manual_seed(1)  # with these weights sequences end after 1, 2 and 4 tokens
    decoder = TransformerDecoder(V, 12, depth=1, num_heads=3, max_length=T, context_dim=7)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    return decoder.double().eval()


@pytest.fixture(scope="module")
def prompts():
    torch.manual_seed(1)
    return torch.randint(END, (30, 2)), torch.randn(30, 3, 7, dtype=torch.float64)


def log_probability(decoder, prompt, context, tokens):
    """The log-probability of a continuation, by one pass over the whole sequence."""
    logits = decoder(torch.cat([prompt, tokens])[None, :-1], context[None])[0, len(prompt) - 1 :]
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None]).sum()


def continuation(generated, row):
    return generated.tokens[row, : generated.lengths[row]]


def test_greedy_takes_the_most_probable_token_step_by_step(decoder, prompts):
    found = sample(decoder, *prompts, 4, END, Sampling())
    for row, (prompt, context) in enumerate(zip(*prompts, strict=True)):
        tokens = []
        while len(tokens) < 4 and END not in tokens:
            logits = decoder(torch.tensor([[*prompt.tolist(), *tokens]]), context[None])[0, -1]
            tokens.append(logits.argmax().item())
        assert continuation(found, row).tolist() == tokens
    assert len({*found.lengths.tolist()}) > 1  # they end one by one


def test_scores_are_the_log_probabilities_of_what_is_written(decoder, prompts):
    for found in (sample(decoder, *prompts, 4, END, Sampling()), beam_search(decoder, *prompts, 4, END, 3)):
        for row, (prompt, context) in enumerate(zip(*prompts, strict=True)):
            expected = log_probability(decoder, prompt, context, continuation(found, row))
            assert_close(found.scores[row].double(), expected, rtol=0, atol=1e-5)


def test_generation_keeps_no_graph(decoder, prompts):
    for found in (sample(decoder, *prompts, 2, END, Sampling()), beam_search(decoder, *prompts, 2, END, 3)):
        assert not found.scores.requires_grad


def test_behind_its_end_a_sequence_is_filled_with_the_end(decoder, prompts):
    for found in (sample(decoder, *prompts, 4, END, Sampling()), beam_search(decoder, *prompts, 4, END, 3)):
        for row, length in zip(found.tokens, found.lengths.tolist(), strict=True):
            assert set(row[length:].tolist()) <= {END}
            assert END not in row[: length - 1]
        assert found.tokens.shape[1] == found.lengths.max()


def test_what_has_ended_takes_no_more_time(decoder, prompts):
    rows = []
    hook = decoder.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    found = sample(decoder, *prompts, 4, END, Sampling())
    hook.remove()
    assert rows == [int((found.lengths > step).sum()) for step in range(len(rows))]
    assert rows[-1] < rows[0] == 30


def test_one_beam_is_greedy(decoder, prompts, monkeypatch):
    greedy = sample(decoder, *prompts, 4, END, Sampling())
    assert torch.equal(greedy.tokens, beam_search(decoder, *prompts, 4, END, 1).tokens)
    # The search itself, to whose beams the greedy sequence is added.
    found = []
    monkeypatch.setattr(generation, "_best", lambda *beams: found.extend(beams) or greedy)
    beam_search(decoder, *prompts, 4, END, 1)
    assert torch.equal(found[0][:, 0], greedy.tokens)
    assert_close(found[1][:, 0], greedy.scores)
    assert torch.equal(found[2][:, 0].long(), greedy.lengths)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_enough_beams_find_the_best_of_all_sequences(decoder, prompts, length_penalty):
    whole = itertools.chain(
        *(((*start, END) for start in itertools.product(range(END), repeat=length - 1)) for length in (1, 2, 3)),
        itertools.product(range(END), repeat=3),
    )
    candidates = [torch.tensor(tokens) for tokens in whole]
    some = tuple(part[:5] for part in prompts)
    found = beam_search(decoder, *some, 3, END, len(candidates), length_penalty=length_penalty)
    for row, (prompt, context) in enumerate(zip(*some, strict=True)):
        scores = [log_probability(decoder, prompt, context, x) / len(x) ** length_penalty for x in candidates]
        best = candidates[int(torch.stack(scores).argmax())]
        assert continuation(found, row).tolist() == best.tolist()


def test_beams_are_never_worse_than_greedy_and_often_better(decoder, prompts):
    greedy, beams = sample(decoder, *prompts, 4, END, Sampling()), beam_search(decoder, *prompts, 4, END, 2)
    gain = beams.scores / beams.lengths - greedy.scores / greedy.lengths
    assert gain.min() > -1e-6
    assert gain.max() > 1e-3


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_forbidden_token_is_on_no_beam(decoder, prompts, num_beams):
    free = beam_search(decoder, *prompts, 4, END, num_beams)
    often = free.tokens[free.tokens != END].bincount().argmax().item()
    found = beam_search(decoder, *prompts, 4, END, num_beams, forbidden=often)
    assert often not in found.tokens
    greedy = sample(decoder, *prompts, 4, END, Sampling(forbidden=often))
    assert (found.scores / found.lengths >= greedy.scores / greedy.lengths - 1e-6).all()


def test_random_tokens_have_the_probabilities_of_the_model(decoder, prompts):
    prompt, context = (part[:1].expand(4000, *part.shape[1:]) for part in prompts)
    sampling = Sampling(temperature=2.0, generator=torch.Generator().manual_seed(0))
    drawn = sample(decoder, prompt, context, 1, END, sampling).tokens[:, 0].bincount(minlength=V) / 4000
    expected = (decoder(prompt[:1], context[:1])[0, -1] / 2).softmax(dim=-1)
    assert_close(drawn.double(), expected, rtol=0, atol=4 * 0.5 / 4000**0.5)


LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.7}, {1, 3}),  # 4 / 9 and 3 / 9 of what the three have
        ({"forbidden": 1}, {0, 2, 3}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_tokens_are_drawn_from_those_that_are_left(options, tokens):
    sampling = Sampling(temperature=1.0, generator=torch.Generator().manual_seed(0), **options)
    log_probabilities = sampling.log_probabilities(LOGITS.expand(400, 4))
    assert set(sampling.choose(log_probabilities).tolist()) == tokens


def test_a_forbidden_token_is_not_taken_greedily_either():
    sampling = Sampling(forbidden=1)
    assert sampling.choose(sampling.log_probabilities(LOGITS)).tolist() == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, r"temperature \(-1\) must be a number of at least 0: 1 draws as the model predicts"),
        ({"top_k": 0}, r"top_k \(0\) must be a positive whole number"),
        ({"top_p": 0}, r"top_p \(0\) must be in \(0, 1\]: 0.9 is usual"),
        ({"top_p": 1.5}, r"top_p \(1.5\)"),
    ],
)
def test_numbers_out_of_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_sequences_of_a_decoder_that_has_diverged_are_refused(decoder, prompts):
    broken = copy.deepcopy(decoder)
    broken.blocks[0].mlp.fc1.weight.data[0, 0] = torch.nan
    for write in (
        lambda: sample(broken, *prompts, 4, END, Sampling()),
        lambda: sample(broken, *prompts, 4, END, Sampling(temperature=1.0)),
        lambda: beam_search(broken, *prompts, 4, END, 3),
    ):
        with pytest.raises(ValueError, match="30 of 30 sequences have a score of NaN: the model has diverged, or over"):
            write()


@pytest.mark.parametrize("penalty", [float("nan"), float("inf")])
def test_a_length_penalty_is_a_finite_number(decoder, prompts, penalty):
    with pytest.raises(ValueError, match=rf"length_penalty \({penalty}\) must be a finite number: 1 is usual"):
        beam_search(decoder, *prompts, 4, END, 3, length_penalty=penalty)


def test_a_decoder_in_training_mode_writes_nothing(decoder, prompts):
    training = copy.deepcopy(decoder).train()
    for write in (
        lambda: sample(training, *prompts, 2, END, Sampling()),
        lambda: beam_search(training, *prompts, 2, END, 2),
    ):
        with pytest.raises(ValueError, match=r"is in training mode, in which dropout .*: call \.eval\(\) first"):
            write()


def test_an_impossible_beam_is_refused(decoder, prompts):
    with pytest.raises(ValueError, match=r"num_beams \(0\) must be a positive whole number"):
        beam_search(decoder, *prompts, 3, END, 0)


def test_more_tokens_than_the_decoder_holds_are_refused_before_the_first_step(decoder, prompts):
    with pytest.raises(ValueError, match=r"6 tokens after a prompt of 2 .* max_length \(6\): ask for at most 5"):
        sample(decoder, *prompts, 6, END, Sampling())


def test_no_sequence_gives_no_sequence(decoder):
    empty = torch.zeros(0, 1, dtype=torch.long), torch.zeros(0, 3, 7, dtype=torch.float64)
    assert sample(decoder, *empty, 3, END, Sampling()).tokens.shape == (0, 0)
    assert sample(decoder, *empty, 3, None, Sampling()).tokens.shape == (0, 3)
    assert beam_search(decoder, *empty, 3, END, 2).tokens.shape == (0, 0)


@pytest.mark.parametrize(
    ("prompt", "end", "message"),
    [
        (torch.zeros(3, dtype=torch.long), END, r"the prompt has shape \(3,\): give \(batch, T\)"),
        (torch.zeros(3, 0, dtype=torch.long), END, r"the prompt has shape \(3, 0\)"),
        (torch.zeros(3, 7, dtype=torch.long), END, r"a prompt of 7 is longer than max_length \(6\): shorten it"),
        (torch.tensor([[1.9]] * 3), END, r"the prompt is torch.float32: give whole numbers of tokens"),
        (torch.zeros(3, 1, dtype=torch.long), V, r"end \(5\) is outside the vocabulary of 5"),
        (torch.zeros(3, 1, dtype=torch.long), -1, r"end \(-1\) is outside the vocabulary"),
    ],
)
def test_prompts_and_ends_that_do_not_fit_are_refused(decoder, prompt, end, message):
    context = torch.zeros(3, 3, 7, dtype=torch.float64)
    for write in (
        lambda: sample(decoder, prompt, context, 1, end, Sampling()),
        lambda: beam_search(decoder, prompt, context, 1, end, 2),
    ):
        with pytest.raises(ValueError, match=message):
            write()


def test_a_forbidden_token_is_one_of_the_vocabulary(decoder, prompts):
    with pytest.raises(ValueError, match=r"forbidden \(99\) is outside the vocabulary of 5: take a token below it"):
        sample(decoder, *prompts, 1, END, Sampling(forbidden=99))


def test_prompts_of_smaller_numbers_are_taken(decoder, prompts):
    prompt, context = prompts
    expected = sample(decoder, prompt, context, 4, END, Sampling()).tokens
    assert torch.equal(sample(decoder, prompt.int(), context, 4, END, Sampling()).tokens, expected)


def test_a_tiny_temperature_takes_the_most_probable_token(decoder, prompts):
    expected = sample(decoder, *prompts, 4, END, Sampling()).tokens
    assert torch.equal(sample(decoder, *prompts, 4, END, Sampling(temperature=1e-40)).tokens, expected)
