"""The choice of the kernel, which changes the speed only."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import SoftmaxAttention, softmax_kernels
from vit.model.encoder_block import EncoderBlock

B, H, N, M, D = 2, 3, 5, 7, 11


class FusedCalls(TorchFunctionMode):
    """Counts the calls of the fused kernel."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is F.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


class Softmaxes(TorchFunctionMode):
    """Notes the bytes of each softmax."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") == "softmax":
            self.sizes.append(result.nbytes)
        return result


def is_fused(dtype, keys=M, requires_grad=False, **around):
    q = torch.randn(1, 1, 1, 1, dtype=dtype, requires_grad=requires_grad)
    k = v = torch.randn(1, 1, keys, 1, dtype=dtype)
    with FusedCalls() as calls:
        SoftmaxAttention()(q, k, v, **around)
    return bool(calls.count)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_the_fused_kernel_is_used_where_it_is_not_slower(dtype, requires_grad):
    assert is_fused(dtype, requires_grad=requires_grad)


def test_the_explicit_form_of_a_training_ends_at_the_length_where_it_was_measured_to_be_slower():
    assert not is_fused(torch.bfloat16, 4096, requires_grad=True)
    assert is_fused(torch.bfloat16, 4097, requires_grad=True)


@pytest.mark.parametrize("around", [{"causal": True}, {"mask": torch.ones(1, 1, 1, 1, dtype=torch.bool)}], ids=list)
def test_masked_attention_without_gradients_is_not_in_parts_and_explicit_up_to_its_length(around):
    assert not is_fused(torch.bfloat16, 1024, **around)
    assert is_fused(torch.bfloat16, 1025, **around)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("traced", [torch.jit.trace, torch.export.export])
def test_attention_that_is_traced_is_not_in_the_parts_of_its_example(monkeypatch, traced):
    monkeypatch.setattr(softmax_kernels, "PART_BYTES", 1)
    q = torch.randn(1, 1, 3, 8, dtype=torch.bfloat16)
    graph = str(traced(SoftmaxAttention(), (q, q, q)).graph)
    assert len(re.findall(r"aten\W+softmax", graph)) == 1


def test_attention_without_gradients_is_in_parts_at_any_length():
    with torch.no_grad():
        assert not is_fused(torch.bfloat16, 5000, requires_grad=True)


@pytest.mark.parametrize("part_bytes", [1, 2 * M, 3 * 2 * M, 2 * N * M, 2 * 2 * N * M, 10**9])
def test_attention_in_parts_is_the_equation_however_many_heads_or_queries_a_part_has(monkeypatch, part_bytes):
    q, k, v = (torch.randn(B, H, n, d, dtype=torch.bfloat16) for n, d in ((N, D), (M, D), (M, 3)))
    expected = scaled_dot_product_attention(*(x.double() for x in (q, k, v)))[0]
    monkeypatch.setattr(softmax_kernels, "PART_BYTES", part_bytes)
    sizes = []
    with Softmaxes(sizes):
        output = SoftmaxAttention()(q, k, v)
    assert_close(output.double(), expected, rtol=0.03, atol=0.03)
    assert max(sizes) <= max(part_bytes, 2 * M)
    assert sum(sizes) == 2 * B * H * N * M


def test_the_fused_kernel_is_used_on_other_devices_than_the_cpu():
    q = torch.randn(B, H, N, D, dtype=torch.bfloat16, device="meta")
    with FusedCalls() as calls:
        SoftmaxAttention()(q, q, q)
    assert calls.count == 1


def test_a_block_under_autocast_to_bfloat16_uses_the_explicit_form():
    block = EncoderBlock(embed_dim=21, num_heads=3)
    with FusedCalls() as calls, torch.autocast("cpu", dtype=torch.bfloat16):
        block(torch.randn(B, N, 21))
    assert calls.count == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.bfloat16, 0.02)])
def test_both_kernels_give_the_same_output_and_gradients(dtype, tolerance):
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, n, D, dtype=dtype, requires_grad=True) for n in (N, M, M))
    ours = SoftmaxAttention()(q, k, v)
    explicit, _ = scaled_dot_product_attention(q, k, v)
    fused = F.scaled_dot_product_attention(q, k, v)
    direction = torch.randn_like(fused)
    gradients = torch.autograd.grad(fused, (q, k, v), direction)
    for output in (ours, explicit):
        assert_close(output, fused, rtol=tolerance, atol=tolerance)
        ours = torch.autograd.grad(output, (q, k, v), direction)
        assert_close(ours, gradients, rtol=tolerance, atol=tolerance)


class PlanKnownError(Exception):
    """Ends a compilation once its plan is known, before any C++ is compiled."""


def fused_kernels(function, *arguments):
    """Names of the fused attention kernels that the compiler plans for a forward and a backward pass."""
    planned = set()

    def look(graph):
        planned.update(str(node.target) for node in graph.nodes if "scaled_dot_product" in str(node.target))
        raise PlanKnownError

    with pytest.raises(Exception, match="PlanKnownError"):
        torch.compile(function, options={"joint_custom_post_pass": look})(*arguments)
    return planned


def test_compiling_does_not_turn_the_explicit_form_back_into_the_fused_kernel():
    def scaled_after_the_product(q, k, v):
        return (q @ k.mT * D**-0.5).softmax(dim=-1) @ v

    q, k, v = (torch.randn(B, H, N, D, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    assert fused_kernels(scaled_after_the_product, q, k, v)  # the compiler does so, and its plan shows it
    assert not fused_kernels(SoftmaxAttention(), q, k, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(4, 11), (11, 4)])
def test_values_of_another_width_use_the_fused_kernel_as_well(key_dim, value_dim, causal):
    q, k, v = (torch.randn(B, H, M, d, dtype=torch.float64, requires_grad=True) for d in (key_dim, key_dim, value_dim))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        output = SoftmaxAttention()(q, k, v, causal=causal)
    assert any("flash" in event.key for event in profiler.key_averages())
    expected, _ = scaled_dot_product_attention(q, k, v, causal=causal)
    assert_close(output, expected, rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(output, (q, k, v), direction)
    expected_gradients = torch.autograd.grad(expected, (q, k, v), direction)
    assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


# Masks.


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [None, "boolean", "additive", "padding"])
@pytest.mark.parametrize("n", [1, N, M])
def test_masks_act_alike_in_both_kernels_forward_and_backward(dtype, causal, kind, n):
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, length, D, dtype=dtype, requires_grad=True) for length in (n, M, M))
    mask = torch.rand(B, 1, n, M) > 0.4
    mask[0, :, 0] = False
    masks = {
        None: None,
        "boolean": mask,
        "additive": torch.randn(B, H, n, M).masked_fill(~mask, -torch.inf),
        "padding": mask[:, :, :1],
    }
    expected = scaled_dot_product_attention(*(x.double() for x in (q, k, v)), mask=masks[kind], causal=causal)[0]
    output = SoftmaxAttention()(q, k, v, mask=masks[kind], causal=causal)
    tolerance = 1e-9 if dtype == torch.float64 else 0.05
    assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(output, (q, k, v), direction.to(dtype))
    expected_gradients = torch.autograd.grad(expected, (q, k, v), direction)
    assert_close(gradients, expected_gradients, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_that_do_not_fit_are_refused_by_both_kernels(dtype):
    q = torch.randn(B, H, N, D, dtype=dtype)
    with pytest.raises(ValueError, match="does not fit attention of shape"):
        SoftmaxAttention()(q, q, q, mask=torch.ones(N, N + 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"the mask is torch\.int64"):
        SoftmaxAttention()(q, q, q, mask=torch.ones(N, N, dtype=torch.int64))
    with pytest.raises(ValueError, match="there are 5 keys and 4 values"):
        SoftmaxAttention()(q, q, q[:, :, 1:])


def test_an_additive_mask_may_have_another_dtype():
    q = torch.randn(B, H, N, D)
    mask = torch.randn(N, N, dtype=torch.float64)
    assert_close(SoftmaxAttention()(q, q, q, mask=mask), scaled_dot_product_attention(q, q, q, mask=mask)[0])


def test_causal_attention_of_a_whole_sequence_allocates_no_mask():
    class NoMask(FusedCalls):
        """Fails if a mask is passed."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            assert (kwargs or {}).get("attn_mask") is None
            return super().__torch_function__(function, types, args, kwargs)

    q, last = torch.randn(B, H, N, D), torch.randn(B, H, 1, D)
    with NoMask() as calls:
        SoftmaxAttention()(q, q, q, causal=True)
        SoftmaxAttention()(last, q, q, causal=True)
    assert calls.count == 2
