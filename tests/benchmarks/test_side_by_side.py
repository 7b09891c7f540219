"""Timing of candidates in turn, with a clock that the test drives."""

import time

import pytest
import side_by_side
import torch
from side_by_side import compared, interleaved, matmul_ceiling

CPU = torch.device("cpu")


@pytest.fixture
def advance(monkeypatch):
    """A clock that moves by the seconds of a call, and on no other occasion."""
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: sum(seconds))
    return seconds.append


def test_every_other_round_has_the_reverse_order():
    calls = []
    candidates = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(candidates, rounds=3, warm_up=2, device=CPU)
    assert "".join(calls) == "abc" + "cba" + "abc" + "cba" + "abc"
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_preparation_of_a_call_is_not_timed(advance):
    candidates = {"slow": lambda: advance(3), "fast": lambda: advance(1)}
    prepared = []

    def prepare(name):
        prepared.append(name)
        advance(100)

    times = interleaved(candidates, rounds=2, warm_up=1, device=CPU, prepare=prepare)
    assert times == {"slow": [3, 3], "fast": [1, 1]}
    assert prepared == ["fast", "slow", "slow", "fast", "fast", "slow"]


def test_speeds_are_compared_within_a_round():
    # The machine grows slower; the medians of the seconds alone would make ours 4 / 3 as fast as the peer.
    times = {"ours": [1.0, 3.0, 8.0], "peer": [2.0, 4.0, 16.0], "slow peer": [4.0, 8.0, 32.0]}
    rows = compared(times, 12, ["peer", "slow peer"])
    assert [rows[name]["against_best_peer"][1] for name in rows] == [2, 1, 0.5]
    assert rows["ours"]["images_per_second"] == [(4 + 1.5) / 2, 4, 8]


def test_without_a_peer_there_are_speeds_only():
    assert compared({"ours": [2.0]}, 1, ["peer"]) == {"ours": {"images_per_second": [0.5, 0.5, 0.5]}}


def test_the_ceiling_is_the_fastest_of_the_products(advance, monkeypatch):
    monkeypatch.setattr(side_by_side.F, "linear", lambda x, weight: advance(len(x)))
    products = [(1, 7, 2), (3, 4, 4), (2, 3, 5)]  # at one second for each row, the channels make the difference
    assert matmul_ceiling(products, torch.bfloat16, CPU) == 2 * 4 * 4
