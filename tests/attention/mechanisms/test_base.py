"""Construction of mechanisms by name, and the inputs they declare."""

import pytest
import torch

from vit.attention import MECHANISMS
from vit.attention.mechanisms import Mechanism, build


class Recorded(Mechanism):
    """Records the arguments of its constructor."""

    def __init__(self, num_heads: int, strength: float = 1.0, block_index: int = 0):
        super().__init__()
        self.given = (num_heads, strength, block_index)

    def forward(self, q, k, v, *, mask=None):
        return v


def made(**options):
    return build("recorded", {"recorded": Recorded}, options, num_heads=3, head_dim=5, block_index=7).given


def test_a_constructor_gets_the_offered_arguments_that_it_names_and_the_options():
    assert made() == (3, 1.0, 7)
    assert made(strength=2.0) == (3, 2.0, 7)


def test_an_option_overrides_an_offered_argument():
    assert made(block_index=1) == (3, 1.0, 1)


def test_unknown_options_and_names_are_refused_with_the_known_ones():
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


def test_none_is_accepted_for_an_optional_number():
    assert build("sparse", MECHANISMS, {"block": None, "stride": 3}).stride == 3


def test_a_mechanism_takes_the_keyword_arguments_of_its_forward():
    assert Recorded.takes == {"mask"}
    assert Recorded.weights_take == set()
    assert MECHANISMS["gated"].takes == {"tokens", "mask", "causal"}
    assert MECHANISMS["gated"].weights_take == {"mask", "causal"}
    assert MECHANISMS["window"].takes == MECHANISMS["window"].weights_take == {"grid"}


def test_weights_are_refused_by_mechanisms_that_never_form_them():
    q = torch.randn(1, 1, 2, 3)
    for name in ("linear", "performer", "lowrank", "linformer"):
        mechanism = build(name, MECHANISMS, {}, head_dim=3, grid_size=(1, 2))
        message = "never forms the matrix of attention weights, .*; train with attention 'softmax'"
        with pytest.raises(ValueError, match=f"{type(mechanism).__name__} {message}"):
            mechanism.weights(q, q)
