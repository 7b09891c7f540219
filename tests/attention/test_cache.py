"""The caches of a growing sequence: keys and values, and a state of constant size."""

import copy

import pytest
import torch
from torch.testing import assert_close

from vit.attention import KeyValueCache, MultiHeadAttention, StateCache
from vit.model.decoder_block import DecoderCache

B, H, D, E = 2, 3, 5, 7


def test_it_returns_all_so_far_in_order():
    k, v = torch.randn(B, H, 6, D), torch.randn(B, H, 6, E)
    cache = KeyValueCache(max_length=6)
    for start, end in [(0, 1), (1, 4), (4, 6)]:
        all_k, all_v = cache.append(k[:, :, start:end], v[:, :, start:end])
        assert cache.length == end
        assert_close(all_k, k[:, :, :end], rtol=0, atol=0)
        assert_close(all_v, v[:, :, :end], rtol=0, atol=0)


def test_a_step_copies_no_earlier_token():
    cache = KeyValueCache(max_length=3)
    first, _ = cache.append(torch.randn(B, H, 1, D), torch.randn(B, H, 1, E))
    second, _ = cache.append(torch.randn(B, H, 2, D), torch.randn(B, H, 2, E))
    assert first.data_ptr() == second.data_ptr()


def test_cached_tensors_carry_no_gradient():
    k = torch.randn(B, H, 1, D, requires_grad=True)
    assert not any(x.requires_grad for x in KeyValueCache(1).append(k, k))


def test_a_cache_that_is_too_short_is_refused_with_the_number_of_tokens():
    cache = KeyValueCache(max_length=4)
    cache.append(torch.randn(B, H, 3, D), torch.randn(B, H, 3, E))
    with pytest.raises(
        ValueError, match=r"room for 4 tokens .*, and 5 are needed \(3 so far and 2 new\): make a longer"
    ):
        cache.append(torch.randn(B, H, 2, D), torch.randn(B, H, 2, E))
    assert cache.length == 3
    with pytest.raises(ValueError, match=r"max_length \(0\) must be a positive whole number"):
        KeyValueCache(0)


@pytest.mark.parametrize("other", [(B + 1, H, 1, D), (B, H + 1, 1, D), (B, H, 1, D + 1)])
def test_tokens_of_another_layer_or_batch_are_refused_and_not_cached(other):
    cache = KeyValueCache(max_length=4)
    k, v = torch.randn(B, H, 3, D), torch.randn(B, H, 3, D)
    cache.append(k, v)
    with pytest.raises(ValueError, match=r"the cache holds torch\.float32 of shape .* make a cache for each layer"):
        cache.append(torch.randn(other), torch.randn(other))
    with pytest.raises(ValueError, match=r"the new tokens are torch\.float64"):
        cache.append(k[:, :, :1].double(), v[:, :, :1].double())
    assert cache.length == 3


def test_rows_are_kept_in_the_order_asked_for():
    k, v = torch.randn(B, H, 3, D), torch.randn(B, H, 3, E)
    cache = KeyValueCache(max_length=4)
    cache.select(torch.tensor([0]))  # nothing is cached yet
    cache.append(k, v)
    cache.select(torch.tensor([1, 0, 1]))
    all_k, all_v = cache.append(k[[0, 0, 0], :, :1], v[[0, 0, 0], :, :1])
    assert_close(all_k[:, :, :3], k[[1, 0, 1]], rtol=0, atol=0)
    assert_close(all_v[:, :, :3], v[[1, 0, 1]], rtol=0, atol=0)
    assert cache.length == 4


def test_a_sequence_is_continued_in_two_ways_by_a_copy_of_its_cache():
    attention, cache = MultiHeadAttention(12, 3, causal=True), KeyValueCache(4)
    x, other = torch.randn(2, B, 4, 12)
    with torch.no_grad():
        attention(x[:, :2], cache=cache)
        copied = copy.copy(cache)
        first = attention(x[:, 2:3], cache=cache)
        attention(other[:, 2:3], cache=copied)
        assert_close(torch.cat([first, attention(x[:, 3:], cache=cache)], dim=1), attention(x)[:, 2:])


# A state.


def test_a_state_is_kept_without_gradient_and_its_rows_are_chosen():
    cache, q = StateCache(), torch.randn(B, H, 1, D)
    cache.select(torch.tensor([0]))  # nothing is kept yet
    assert cache.state_before(q) is None
    state = torch.randn(B, H, D, E, requires_grad=True)
    cache.replace(state, tokens=3)
    assert cache.length == 3
    assert not cache.state_before(q).requires_grad
    cache.select(torch.tensor([1, 0, 1]))
    assert_close(cache.state_before(torch.randn(3, H, 1, D)), state[[1, 0, 1]].detach(), rtol=0, atol=0)


def test_a_state_of_another_layer_or_batch_is_refused():
    cache = StateCache()
    cache.replace(torch.randn(B, H, D, E), tokens=1)
    for shape in ((B + 1, H, 1, D), (B, H + 1, 1, D)):
        with pytest.raises(
            ValueError, match=r"the cache holds a state of \(2, 3\) .*: make a cache for each layer and"
        ):
            cache.state_before(torch.randn(shape))


def test_a_state_is_of_causal_self_attention_by_a_mechanism_that_has_one():
    x = torch.randn(B, 4, H * D)
    attention = MultiHeadAttention(H * D, H, causal=True, mechanism="linear")
    with pytest.raises(ValueError, match="a StateCache keeps no context: pass a KeyValueCache beside it"):
        attention(x, x, cache=StateCache())
    with pytest.raises(ValueError, match="LinearAttention takes no mask"):
        attention(x, mask=torch.ones(4, 4, dtype=torch.bool), cache=StateCache())
    with pytest.raises(ValueError, match="a cache of self-attention needs causal=True"):
        MultiHeadAttention(H * D, H, mechanism="linear")(x, cache=StateCache())
    with pytest.raises(ValueError, match=r"SoftmaxAttention has no state of constant size, .* keep them in a KeyValue"):
        MultiHeadAttention(H * D, H, causal=True)(x, cache=StateCache())


def test_a_mask_that_is_refused_leaves_the_cache_as_it_was():
    attention = MultiHeadAttention(12, 3, causal=True, mechanism="window").eval()
    cache, x = KeyValueCache(4), torch.randn(2, 4, 12)
    attention(x[:, :2], cache=cache)
    with pytest.raises(ValueError, match="WindowAttention takes no mask"):
        attention(x[:, 2:], mask=torch.ones(2, 4, dtype=torch.bool), cache=cache)
    assert_close(attention(x[:, 2:], cache=cache), attention(x)[:, 2:])


def test_a_mask_that_does_not_fit_leaves_the_cache_of_a_context_empty():
    attention = MultiHeadAttention(12, 3, context_dim=12).eval()
    cache, x, contexts = KeyValueCache(5), torch.randn(2, 4, 12), torch.randn(2, 2, 5, 12)
    with pytest.raises(ValueError, match="mask"):
        attention(x, contexts[0], mask=torch.ones(7, 3, dtype=torch.bool), cache=cache)
    assert_close(attention(x, contexts[1], cache=cache), attention(x, contexts[1]))


def test_a_sequence_is_continued_in_two_ways_by_a_copy_of_the_caches_of_a_block():
    k, v = torch.randn(2, 1, 2, 3, 4)
    one = DecoderCache(KeyValueCache(5), None)
    one.tokens.append(k, v)
    other = copy.copy(one)
    one.tokens.append(k[..., :1, :], v[..., :1, :])
    assert (one.tokens.length, other.tokens.length) == (4, 3)
    other.tokens.append(k[..., 1:2, :], v[..., 1:2, :])
    assert_close(one.tokens.context(len(k), 4)[0][..., 3:, :], k[..., :1, :])
