"""The line about the memory of the first step."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vit.training.batch_advice import advise_batch, measure_memory

GB = 10**9


def advice(activations, total, has_own_memory=True, **changes):
    known = {"batch_size": 100, "most": 10**6, "lr": 1e-3} | changes
    return advise_batch(activations, GB, total, has_own_memory=has_own_memory, **known)


def test_the_largest_doubling_that_fits_is_named_with_both_rules_for_the_learning_rate():
    said = advice(2 * GB, 20 * GB)  # 1 + 8 * 2 = 17 of 18
    assert said.startswith("memory: 3.0 of 20.0 GB with batches of 100: --data.batch_size 800 would fit")
    assert "--model.lr 0.0028 (by the square root" in said
    assert "to 0.008 (linear" in said


@pytest.mark.parametrize(
    ("total", "changes", "size"),
    [(18 * GB, {}, 400), (1000 * GB, {"most": 1_000}, 800), (1000 * GB, {"most": 300}, 200)],
    ids=["a tenth stays free", "no more than all images", "few images"],
)
def test_batches_are_limited_by(total, changes, size):
    assert f"--data.batch_size {size} would fit" in advice(2 * GB, total, **changes)


@pytest.mark.parametrize(("total", "changes"), [(5 * GB, {}), (1000 * GB, {"most": 199})])
def test_nothing_is_said_if_twice_the_batch_does_not_fit(total, changes):
    assert advice(2 * GB, total, **changes) is None


def test_of_a_computers_memory_only_much_use_is_said():
    assert advice(2 * GB, 7 * GB, has_own_memory=False) is None
    said = advice(3 * GB, 7 * GB, has_own_memory=False)
    assert said.startswith("memory: 4.0 of 7.0 GB with batches of 100, more than half: --data.batch_size 50 takes less")
    assert advice(3 * GB, 7 * GB, has_own_memory=False, batch_size=1) is None


def test_the_memory_of_this_process_is_a_part_of_that_of_the_computer():
    used, stays, total = measure_memory(nn.Linear(2, 2), [], torch.device("cpu"))
    assert 10**7 < used < total
    assert stays == 0


def test_on_a_gpu_images_and_weights_count_once_and_averages_are_no_activations(monkeypatch):
    model = nn.Linear(1_000, 1, bias=False)  # 4,000 bytes, as its gradient and each of AdamW's two averages
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1_000)).sum().backward()
    optimizer.step()
    images, activations, counter = 10**6, 500_000, 4  # AdamW counts its steps in 4 bytes
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: images + 4 * 4_000 + counter)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: images + 2 * 4_000 + activations)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=10**9))
    measured = measure_memory(model, [optimizer], torch.device("cuda"))
    assert measured == (activations + 4_000, images + 4 * 4_000 + counter, 10**9)
