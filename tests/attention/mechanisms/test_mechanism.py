"""Construction of mechanisms by name, and the inputs they declare."""

from typing import get_args

import pytest
import torch
from torch import nn

import vit
from vit.attention import MECHANISMS
from vit.attention.mechanisms import KnownName, Mechanism, build
from vit.training.optimizer import parameter_groups


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
    with pytest.raises(ValueError, match="attention 'performer' has no argument 'head_dim': it takes num_features"):
        build("performer", MECHANISMS, {"head_dim": 7}, head_dim=5)
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
    assert MECHANISMS["window"].takes == MECHANISMS["window"].weights_take == {"grid", "causal"}


def test_weights_are_refused_by_mechanisms_that_never_form_them():
    q = torch.randn(1, 1, 2, 3)
    for name in ("linear", "performer", "lowrank", "linformer"):
        mechanism = build(name, MECHANISMS, {}, head_dim=3, grid_size=(1, 2))
        message = "never forms the matrix of attention weights, .*; train with attention 'softmax'"
        with pytest.raises(ValueError, match=f"{type(mechanism).__name__} {message}"):
            mechanism.weights(q, q)


class Scored(Mechanism):
    """A mechanism with a table for each head, a matrix, and a layer that it initialises itself."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(num_heads, 2, 2))
        self.matrix = nn.Parameter(torch.zeros(2, 2))
        self.layer = nn.Linear(3, 5)

    def init_weights(self) -> None:
        nn.init.ones_(self.matrix)
        nn.init.constant_(self.layer.weight, 7.0)

    def forward(self, q, k, v):
        return v


@pytest.fixture
def scored(monkeypatch):
    monkeypatch.setitem(vit.attention.MECHANISMS, "scored", Scored)


def models():
    yield vit.VisionTransformer(image_size=8, embed_dim=12, depth=2, num_heads=3, attention="scored"), "blocks.1.attn."
    decoder = vit.TransformerDecoder(5, 12, 1, 3, 4)
    decoder.blocks[0].attn.mechanism = Scored(3)
    yield decoder, "blocks.0.attn."


def test_a_model_leaves_the_weights_that_a_mechanism_draws(scored):
    for model, start in models():
        with torch.no_grad():
            model.get_submodule(f"{start}mechanism.layer").weight.fill_(torch.nan)
        model.init_weights()
        mechanism = model.get_submodule(f"{start}mechanism")
        assert (mechanism.layer.weight == 7).all()
        assert (mechanism.matrix == 1).all()


def test_the_parameters_of_a_mechanism_have_no_weight_decay_unless_they_are_matrices(scored):
    for model, start in models():
        groups = parameter_groups(model, lr=1e-3, weight_decay=0.1)
        decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        mechanism = model.get_submodule(f"{start}mechanism")
        found = {name: decay[id(parameter)] for name, parameter in mechanism.named_parameters()}
        assert found == {"table": 0.0, "matrix": 0.1, "layer.weight": 0.1, "layer.bias": 0.0}
        assert mechanism.no_weight_decay() == {"table"}  # the layer tells of its own weights


def test_positional_logits_have_no_weight_decay_and_the_mixtures_of_linformer_have_some():
    sizes = {"image_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 3}
    names = vit.VisionTransformer(attention="positional", **sizes).no_weight_decay()
    assert {name.split(".")[-1] for name in names} >= {"patch_to_patch", "prefix_to_patch"}
    mixing = vit.VisionTransformer(attention="linformer", attention_kwargs={"landmarks": 2}, **sizes)
    assert not [name for name in mixing.no_weight_decay() if "mixture" in name]


def test_the_names_that_type_checkers_know_are_those_of_the_table():
    assert get_args(KnownName) == tuple(MECHANISMS)
