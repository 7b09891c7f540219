"""Recurrence as attention, against a loop over tokens."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from tests.attention.inputs import assert_same_forward_and_backward, assert_sums_in_float32, qkv
from vit.attention import MultiHeadAttention, StateCache
from vit.attention.functional import gated_scan, gated_weights
from vit.attention.mechanisms import RecurrentAttention
from vit.capture import capture_attention, capture_sequence

H, D, E = 3, 11, 13


def looped(attention, k, v, order):
    """The states after each token, one step at a time, in the order of the tokens."""
    state, states = torch.zeros_like(v[:, :, 0]), {}
    for token in order:
        keep = ((k[:, :, token] * attention.gate).sum(-1) + attention.gate_bias).sigmoid()[..., None]
        state = states[token] = keep * state + (1 - keep) * v[:, :, token]
    return torch.stack([states[token] for token in range(len(order))], dim=2)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 31])
def test_the_whole_pass_is_the_loop_over_tokens_forward_and_backward(n):
    inputs = _, k, v = qkv(n, d=D, e=E)
    attention = randomised(RecurrentAttention(H, D))
    expected = looped(attention, k, v, range(n))
    assert_same_forward_and_backward(attention(*inputs, causal=True), expected, [k, v])


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    ("path", "patches"),
    [("rows", [0, 1, 2, 3, 4, 5, 6, 7, 8]), ("snake", [0, 1, 2, 5, 4, 3, 6, 7, 8])],
)
def test_patches_are_read_along_the_path_and_prefix_tokens_after_them(path, patches, prefix):
    inputs = _, k, v = qkv(prefix + 9, d=D, e=E)
    attention = randomised(RecurrentAttention(H, D, path))
    expected = looped(attention, k, v, [*(prefix + patch for patch in patches), *range(prefix)])
    assert_same_forward_and_backward(attention(*inputs, grid=(3, 3)), expected, [k, v])


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 5), columns=st.integers(1, 5), prefix=st.integers(0, 2))
def test_each_step_of_the_snake_goes_to_a_neighbour_and_every_patch_is_read_once(rows, columns, prefix):
    q, k, _ = qkv(prefix + rows * columns)
    order = RecurrentAttention(H, D, "snake")._order(q, k, (rows, columns)).tolist()
    assert sorted(order) == list(range(prefix + rows * columns))
    places = [divmod(token - prefix, columns) for token in order[: rows * columns]]
    steps = [abs(y - v) + abs(x - u) for (y, x), (v, u) in pairwise(places)]
    assert set(steps) <= {1}


@pytest.mark.parametrize("around", [{"causal": True}, {"grid": (3, 5)}], ids=str)
def test_the_weights_times_the_values_are_the_states_and_sum_to_less_than_one(around):
    q, k, v = qkv(17 if "causal" in around else 16, d=D, e=E)
    attention = randomised(RecurrentAttention(H, D))
    weights = attention.weights(q, k, **around)
    assert_close(weights @ v, attention(q, k, v, **around), **EXACT)
    assert ((weights >= 0) & (weights.sum(dim=-1, keepdim=True) < 1)).all()


def test_a_state_before_the_first_token_fades():
    x, keep, state = torch.randn(2, H, 7, E).double(), torch.rand(2, H, 7, 1).double(), torch.randn(2, H, 1, E).double()
    faded = gated_scan(x, keep) + keep.cumprod(dim=2) * state
    assert_close(gated_scan(x, keep, state), faded, **EXACT)


def test_closed_gates_keep_nothing_and_open_ones_everything():
    weights = gated_weights(torch.tensor([[[0.0, -800.0, 800.0, 800.0]]]).double())
    assert_close(weights[0, 0, 1:], torch.tensor([0.0, 1.0, 0.0, 0.0]).double().expand(3, 4), **EXACT)


@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]], ids=str)
@pytest.mark.parametrize("mechanism", ["linear", "recurrent"])
def test_step_by_step_with_a_state_equals_the_whole_pass_and_the_state_does_not_grow(mechanism, steps):
    attention = randomised(MultiHeadAttention(24, 4, causal=True, mechanism=mechanism, num_kv_heads=2))
    x, cache, sizes = torch.randn(2, 7, 24).double(), StateCache(), set()
    outputs = []
    for part in x.split(steps, dim=1):
        outputs.append(attention(part, cache=cache))
        sizes.add(cache._state.shape)
    assert cache.length == 7
    assert len(sizes) == 1
    assert_close(torch.cat(outputs, dim=1), attention(x), **EXACT)


@pytest.mark.parametrize("mechanism", ["linear", "recurrent"])
def test_a_step_without_tokens_leaves_the_state(mechanism):
    attention = randomised(MultiHeadAttention(24, 4, causal=True, mechanism=mechanism))
    x, cache = torch.randn(2, 7, 24).double(), StateCache()
    steps = [attention(part, cache=cache) for part in x.split([0, 3, 0, 4], dim=1)]
    assert_close(torch.cat(steps, dim=1), attention(x), **EXACT)


def test_sums_are_computed_in_float32_under_autocast_and_for_narrower_inputs():
    attention = randomised(RecurrentAttention(H, D))
    assert_sums_in_float32(lambda q, k, v: attention(q, k, v, causal=True), qkv(17, d=D, e=E), tolerance=1e-4)


def test_a_state_stays_in_float32_for_narrower_inputs():
    attention = RecurrentAttention(H, D)
    output, state = attention.advance(*qkv(5, d=D, e=E, dtype=torch.bfloat16), None)
    assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)


def test_its_weights_are_captured_in_an_encoder_and_in_a_decoder():
    model = randomised(vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="recurrent"))
    images = torch.randn(2, 3, 6, 10).double()
    block, first = model.blocks[0], capture_attention(model, images)[0]
    assert_close(first, block.attn.weights(block.norm1(model.embed(images)), grid=(3, 5)), **EXACT)
    decoder = randomised(vit.TransformerDecoder(5, 12, 2, 3, 7, attention="recurrent"))
    assert [layer.shape for layer in capture_sequence(decoder, torch.randint(5, (2, 7))).decoder] == 2 * [(2, 3, 7, 7)]


def test_the_heads_start_with_memories_from_one_token_to_fifty():
    kept = RecurrentAttention(5, D).gate_bias.sigmoid()
    assert kept[0] == 0.5
    assert 50 < 1 / (1 - kept[-1]) < 60


def test_what_it_cannot_do_is_refused():
    q, k, v = qkv(10)
    with pytest.raises(ValueError, match="RecurrentAttention needs the grid of patches"):
        RecurrentAttention(H, D).double()(q, k, v)
    with pytest.raises(ValueError, match="there are 10 queries and 9 keys, and the queries of causal attention are"):
        RecurrentAttention(H, D).double()(q, k[:, :, 1:], v[:, :, 1:], causal=True)
    with pytest.raises(ValueError, match="unknown path 'columns': choose 'rows' or 'snake'"):
        RecurrentAttention(H, D, "columns")
