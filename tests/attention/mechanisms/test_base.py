"""How a mechanism is made, and how it says what it takes."""

import pytest
import torch

from vit.attention import MECHANISMS
from vit.attention.mechanisms import Mechanism, build


class Recorded(Mechanism):
    """Keeps what it is given."""

    def __init__(self, num_heads: int, strength: float = 1.0, block_index: int = 0):
        super().__init__()
        self.given = (num_heads, strength, block_index)

    def forward(self, q, k, v, *, mask=None):
        return v


def made(**options):
    return build("recorded", {"recorded": Recorded}, options, num_heads=3, head_dim=5, block_index=7).given


def test_a_constructor_gets_what_it_names_of_what_is_around_and_the_options_of_the_user():
    assert made() == (3, 1.0, 7)
    assert made(strength=2.0) == (3, 2.0, 7)


def test_an_option_overrules_what_is_around():
    assert made(block_index=1) == (3, 1.0, 1)


def test_what_is_not_an_argument_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"attention 'recorded' has no argument 'strenght': it takes strength$"):
        made(strenght=2.0)
    with pytest.raises(ValueError, match="attention 'linear' has no argument 'window': it takes none"):
        build("linear", MECHANISMS, {"window": 3})
    with pytest.raises(ValueError, match="unknown attention 'quantum': choose one of softmax, chunked, window"):
        build("quantum", MECHANISMS, {})


@pytest.mark.parametrize("value", ["many", 2.5, True, [3], None])
def test_an_option_of_another_type_is_refused_in_one_line(value):
    with pytest.raises(ValueError, match=r"^window \(.*\) of attention 'window' must be a whole number$"):
        build("window", MECHANISMS, {"window": value})


def test_none_is_taken_where_it_means_something():
    assert build("sparse", MECHANISMS, {"block": None, "stride": 3}).stride == 3


def test_a_mechanism_takes_what_its_forward_names():
    assert Recorded.takes == {"mask"}
    assert Recorded.weights_take == set()
    assert MECHANISMS["gated"].takes == {"tokens", "mask", "causal"}
    assert MECHANISMS["gated"].weights_take == {"mask", "causal"}
    assert MECHANISMS["window"].takes == MECHANISMS["window"].weights_take == {"grid"}


def test_one_without_weights_says_so():
    q = torch.randn(1, 1, 2, 3)
    for name in ("linear", "performer", "lowrank", "linformer"):
        kwargs = {"head_dim": 3, "grid_size": (1, 2)}
        mechanism = build(name, MECHANISMS, {}, **kwargs)
        message = (
            f"{type(mechanism).__name__} never forms the matrix of attention weights, .*; train with attention 'soft"
        )
        with pytest.raises(ValueError, match=message):
            mechanism.weights(q, q)
