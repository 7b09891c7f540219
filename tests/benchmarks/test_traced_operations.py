"""Traces of operations: what changes them, and what does not."""

import pytest
import torch
import torch.nn.functional as F
from traced_operations import PASSES, Trace, operations_of

from vit.attention.mechanisms import softmax_kernels
from vit.model.encoder_block import EncoderBlock


def lines_of(run):
    """The trace of a function."""
    with Trace() as trace:
        run()
    return trace.lines


def test_a_line_names_the_function_its_numbers_and_the_tensors_by_their_order():
    x = torch.ones(2, 3)

    def run():
        y = F.gelu(x, approximate="tanh")
        return y + x

    assert lines_of(run) == [
        "%1 float32 [2, 3] = torch.nn.functional.gelu(('%0 float32 [2, 3]',), {'approximate': 'tanh'})",
        "%2 float32 [2, 3] = torch.Tensor.add(('%1', '%0'), {})",
    ]


def test_checks_of_sizes_are_no_operations():
    x = torch.ones(2, 3)

    def checked():
        if x.shape[-1] != 3 or x.ndim != 2 or x.dtype != torch.float32 or x.is_sparse:
            raise ValueError
        return x * 2

    assert lines_of(checked) == lines_of(lambda: x * 2)


@pytest.mark.parametrize(
    "other",
    [lambda x, y: x * y, lambda x, y: x - x, lambda x, y: x - y - y, lambda x, y: torch.sub(x, y, alpha=2)],
    ids=["another function", "other wires", "one more", "another number"],
)
def test_other_operations_have_another_trace(other):
    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    assert lines_of(lambda: x - y) == lines_of(lambda: x - y)
    assert lines_of(lambda: other(x, y)) != lines_of(lambda: x - y)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_has_the_same_operations_again_and_leaves_no_trace(name):
    before = torch.get_rng_state()
    assert operations_of(name) == operations_of(name)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_pass_has_operations_of_its_own():
    assert len({operations_of(name) for name in PASSES}) == len(PASSES)


def test_another_kernel_changes_the_operations_of_passes_in_bfloat16(monkeypatch):
    before = operations_of("inference"), operations_of("training"), operations_of("generation")
    monkeypatch.setattr(softmax_kernels, "PART_BYTES", 1)
    inference, training, generation = before
    assert operations_of("inference") != inference
    assert operations_of("training") == training
    assert operations_of("generation") == generation  # in float32
    monkeypatch.setattr(softmax_kernels, "EXPLICIT_KEYS_TRAINING", 1)
    assert operations_of("training") != training


def test_an_operation_more_in_the_model_is_seen(monkeypatch):
    before = operations_of("inference")
    forward = EncoderBlock.forward
    monkeypatch.setattr(EncoderBlock, "forward", lambda self, x, *args: forward(self, x + 0, *args))
    assert operations_of("inference") != before


def test_an_unknown_pass_is_refused():
    with pytest.raises(ValueError, match=r"no pass 'speed': choose one of inference, training, features"):
        operations_of("speed")
