"""Chunked attention, against the explicit form."""

import json
import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import assert_same_forward_and_backward, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import ChunkedAttention

B, H, N, M, D, E = 2, 3, 5, 23, 7, 11
CHUNKS = pytest.mark.parametrize("chunk", [1, 7, M, M + 1])


@CHUNKS
def test_it_is_exact_forward_and_backward_for_every_chunk_size(chunk):
    inputs = qkv(N, M, D, E)
    assert_same_forward_and_backward(ChunkedAttention(chunk)(*inputs), scaled_dot_product_attention(*inputs)[0], inputs)


@CHUNKS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [None, "boolean", "additive", "padding", "per query"])
def test_masks_apply_across_chunks(chunk, causal, kind):
    inputs = qkv(N, M, D, E)
    mask = torch.rand(B, 1, N, M) > 0.5
    mask[:, :, 2] = False  # a query without keys
    mask[0, :, :, :8] = False  # first chunks without keys
    masks = {
        None: None,
        "boolean": mask,
        "additive": torch.randn(1, H, N, M).masked_fill(~mask, -torch.inf),
        "padding": mask[:, :, :1],
        "per query": mask[:, :, :, 9:10],
    }
    ours = ChunkedAttention(chunk)(*inputs, mask=masks[kind], causal=causal)
    expected, _ = scaled_dot_product_attention(*inputs, mask=masks[kind], causal=causal)
    assert_same_forward_and_backward(ours, expected, inputs)


def test_causal_queries_may_be_more_than_the_keys():
    q, k = torch.randn(1, 1, 5, D), torch.randn(1, 1, 3, D)
    assert_close(ChunkedAttention(2)(q, k, k, causal=True), scaled_dot_product_attention(q, k, k, causal=True)[0])


def test_large_logits_that_grow_from_chunk_to_chunk_do_not_overflow():
    q, k, v = qkv(N, M, D, E, scale=10.0, dtype=torch.float32)
    k = k[:, :, (q.detach()[:, :, :1] @ k.detach().mT)[0, 0, 0].argsort()]
    assert_close(ChunkedAttention(4)(q, k, v), scaled_dot_product_attention(q, k, v)[0], rtol=1e-4, atol=1e-4)


def test_float32_is_accurate_to_five_digits_and_bfloat16_to_two():
    q, k, v = qkv(N, M, D, E, dtype=torch.float32)
    expected, _ = scaled_dot_product_attention(*(x.double() for x in (q, k, v)))
    assert_close(ChunkedAttention(5)(q, k, v).double(), expected, rtol=1e-5, atol=1e-5)
    narrow = ChunkedAttention(5)(*(x.bfloat16() for x in (q, k, v)))
    assert narrow.dtype == torch.bfloat16
    assert_close(narrow.double(), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("batched", [(0, None, None), (None, 0, None), (None, None, 0), (None, 0, 0)], ids=str)
def test_under_vmap_any_of_its_inputs_may_be_batched(batched):
    inputs = [torch.randn(B, H, length, d, dtype=torch.float64) for length, d in ((N, D), (M, D), (M, E))]
    arguments = [x if dim is None else torch.stack([x, x + 1, -x]) for x, dim in zip(inputs, batched, strict=True)]

    def gradients(attend):
        loss = torch.func.grad(lambda q, k, v: attend(q, k, v).square().sum(), argnums=(0, 1, 2))
        return torch.func.vmap(loss, in_dims=batched)(*arguments)

    expected = gradients(lambda q, k, v: (q @ k.mT * D**-0.5).softmax(-1) @ v)
    assert_close(gradients(ChunkedAttention(5)), expected, **EXACT)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"chunk \(0\) must be a positive whole number"):
        ChunkedAttention(0)
    q, k, v = qkv(N, M, D, E)
    with pytest.raises(ValueError, match="does not fit attention of shape"):
        ChunkedAttention()(q, k, v, mask=torch.ones(N, M + 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="there are 23 keys and 22 values"):
        ChunkedAttention()(q, k, v[:, :, 1:])
    with pytest.raises(ValueError, match=r"no gradient to a mask: detach it, or use attention 'softmax'"):
        ChunkedAttention()(q, k, v, mask=torch.zeros(N, M, requires_grad=True))


def peak_bytes(attend, tokens, trace):
    """Peak memory of a forward and a backward pass, without the inputs."""
    q, k, v = (torch.randn(1, 2, tokens, 32, requires_grad=True) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        attend(q, k, v).sum().backward()
    profiler.export_chrome_trace(str(trace))
    events = [event["args"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    before = events[0]["Total Allocated"] - events[0]["Bytes"]
    return max(event["Total Allocated"] for event in events) - before


def test_its_memory_is_under_a_tenth_of_the_explicit_form_and_grows_with_the_number_of_tokens(tmp_path):
    trace = tmp_path / "trace.json"
    explicit = peak_bytes(lambda *qkv: scaled_dot_product_attention(*qkv)[0], 2048, trace)
    chunked = peak_bytes(ChunkedAttention(32), 2048, trace)
    assert explicit >= 3 * 2048**2 * 2 * 4  # three N x N matrices of two heads in float32
    assert chunked < 0.1 * explicit
    slope = math.log(chunked / peak_bytes(ChunkedAttention(32), 1024, trace), 2)
    assert slope < 1.2
