"""The tokens that enter an attention are those that fix its values or its weights."""

import pytest

from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.capture.parts.attention_input import attention_input
from vit.capture.parts.token_places import Boundary

PAIR = IMAGES[:2]


class TwoNorms(Layer):
    """The second norm is that of queries alone."""

    def attend(self, tokens):
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        q, k, v = (x.unflatten(-1, (3, -1)).transpose(1, 2) for x in (self.norm2(q), k, v))
        return self.proj(self.join(self.mix(self, q, k, v)))


@pytest.mark.parametrize("call", [0, 1])
def test_a_norm_of_queries_is_passed_over(call):
    model = invented(TwoNorms(), TwoNorms())
    layer = model.layers[call]
    norms = [Boundary(layer.norm1, "output"), Boundary(layer, "input")]
    # The norm of queries is called by the MLP, too.
    queries = Boundary(layer.norm2, "output")
    assert attention_input(model, PAIR, call, norms) == norms[0]
    assert attention_input(model, PAIR, call, [queries, *norms]) == norms[0]
    assert attention_input(model, PAIR, call, [queries]) is None


def test_tokens_of_a_later_layer_fix_nothing():
    model = invented(Layer(), Layer())
    assert attention_input(model, PAIR, 0, [Boundary(model.layers[1].norm1, "output")]) is None


def test_tokens_that_fix_the_weights_alone_are_taken():
    """As where the values are those of the first layer (ResFormer)."""

    class ValuesOfFirst(Layer):
        def attend(self, tokens):
            q, k, _ = self.split(tokens)
            return self.proj(self.join(self.mix(self, q, k, self.kept())))

    model = invented(Layer(), ValuesOfFirst())
    kept = []
    model.layers[0].qkv.register_forward_hook(lambda _, __, output: kept.append(output))
    model.layers[1].kept = lambda: kept[-1].unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)[2]
    place = Boundary(model.layers[1].norm1, "output")
    assert attention_input(model, PAIR, 1, [place]) == place


def test_a_norm_that_is_called_twice_before_an_attention_is_passed_over():
    class MlpFirst(Layer):
        def forward(self, tokens):
            tokens = tokens + self.mlp(self.norm1(tokens))
            return tokens + self.attend(self.norm1(tokens))

    model = invented(MlpFirst())
    places = [Boundary(model.layers[0].norm1, "output"), Boundary(model.layers[0], "input")]
    assert attention_input(model, PAIR, 0, places) == places[1]
