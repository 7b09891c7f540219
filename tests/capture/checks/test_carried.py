"""What an attention adds, and what is made of it before the next layer: a factor or a gate is refused by ``value``."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.capture.test_invented_models import EXACT, IMAGES, WIDTH, Layer, invented
from vit.explain import contributions, explain

NOT_ALONE = "does not add the output of its attention alone and directly"


class Gated(Layer):
    """A gate of each token around the layer, as in a mixture of depths."""

    def forward(self, tokens):
        gate = tokens.mean(dim=-1, keepdim=True).sigmoid()
        return tokens + gate * (super().forward(tokens) - tokens)


class Interpolated(Layer):
    """A mean of the layer and its input."""

    def forward(self, tokens):
        return 0.3 * tokens + 0.7 * super().forward(tokens)


class Adapted(Layer):
    """An adapter takes the output of the attention, and is added to the sum."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

    def forward(self, tokens):
        mixed = self.attend(self.norm1(tokens))
        tokens = tokens + mixed + self.up(self.down(mixed))
        return tokens + self.mlp(self.norm2(tokens))


def by_channel(x, y):
    gate = x.mean(dim=-1, keepdim=True).sigmoid()
    return (gate * (y - x)).mT.clone().mT + x


def in_parts(x, y):
    return torch.cat([y[..., :4], 0.5 * y[..., 4:]], dim=-1)


def by_addcmul(x, y):
    return torch.addcmul(x, x.mean(dim=-1, keepdim=True).sigmoid(), y - x)


def beyond(x, y):
    return y + (y - x)


def as_mean(x, y):
    return torch.stack([x, y]).mean(dim=0)


@pytest.mark.parametrize("method", ["value", "value_rollout"])
@pytest.mark.parametrize("edit", [by_channel, in_parts, by_addcmul, beyond, as_mean])
def test_a_change_at_the_end_of_a_layer_is_refused_however_it_is_written(edit, method):
    class Edited(Layer):
        def forward(self, tokens):
            return edit(tokens, super().forward(tokens))

    with pytest.raises(ValueError, match=NOT_ALONE):
        explain(invented(Edited(), Edited()), IMAGES, method)


def test_tokens_that_are_not_read_may_be_gated():
    class GatesPatches(Layer):
        def forward(self, tokens):
            left = super().forward(tokens)
            return torch.cat([left[:, :1], in_parts(tokens, left)[:, 1:]], dim=1)

    model, plain = invented(Layer(), GatesPatches()), invented(Layer(), Layer())
    assert_close(explain(model, IMAGES, "value"), explain(plain, IMAGES, "value"), **EXACT)


class InTwoStages(Layer):
    """No skip connection, and a second linear layer behind the projection."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        tokens = self.second(self.attend(self.norm1(tokens)))
        return tokens + self.mlp(self.norm2(tokens))


class PostNorm(Layer):
    """The norms come after the sums."""

    def forward(self, tokens):
        tokens = self.norm1(tokens + self.attend(tokens))
        return self.norm2(tokens + self.mlp(tokens))


class WithNoise(Layer):
    """Something else is added before the MLP, and after it."""

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(tokens))
        tokens = tokens + self.own.mean() * torch.ones_like(tokens)
        return tokens + self.mlp(self.norm2(tokens)) - self.own.mean() * torch.ones_like(tokens)


@pytest.mark.parametrize("method", ["value", "value_rollout"])
@pytest.mark.parametrize("layer", [Gated, Interpolated, Adapted])
def test_a_factor_a_gate_or_an_adapter_after_the_sum_is_refused(layer, method):
    with pytest.raises(ValueError, match=NOT_ALONE):
        explain(invented(layer(), layer()), IMAGES, method)


@pytest.mark.parametrize("layer", [Gated, Interpolated])
def test_the_end_of_the_last_layer_is_looked_at_if_no_module_follows(layer):
    def run(model, images):
        return model.head(model.through(model.embed(images))[:, 0])

    with pytest.raises(ValueError, match=NOT_ALONE):
        explain(invented(Layer(), layer(), run=run), IMAGES, "value")
    assert explain(invented(Layer(), Layer(), run=run), IMAGES, "value").isfinite().all()


def test_a_second_projection_without_a_skip_connection_is_refused():
    with pytest.raises(ValueError, match=NOT_ALONE):
        explain(invented(InTwoStages(), Layer()), IMAGES, "value", layer=0)


@pytest.mark.parametrize("layer", [PostNorm, WithNoise])
def test_norms_and_other_sums_leave_what_was_added(layer):
    model = invented(layer(), layer())
    tokens = model.embed(IMAGES)
    for each in model.layers:
        entering, tokens = tokens, each(tokens)
    q, k, v = each.split(entering if layer is PostNorm else each.norm1(entering))
    attn = (q @ k.mT / 2).softmax(dim=-1)[:, :, 0]
    added = torch.einsum("bhm,bhmd,chd->bmc", attn, v, each.proj.weight.unflatten(1, (3, -1)))
    expected = added.norm(dim=-1)[:, 1:].unflatten(1, (3, 5)).detach()
    assert_close(explain(model, IMAGES, "value"), expected, **EXACT)


class ByContent(Layer):
    """Keys are masked by what they hold: other weights may leave none."""

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        hidden = (tokens[..., 0] < 0)[:, None, None]
        weights = (q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


def test_keys_that_are_masked_by_content_are_no_obstacle():
    for method in ("value", "value_rollout"):
        assert explain(invented(ByContent(), ByContent()), IMAGES, method).isfinite().all()


def test_a_projection_of_two_stages_has_no_contributions():
    class LowRank(Layer):
        def __init__(self):
            super().__init__()
            self.proj = nn.Sequential(nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH))

    with pytest.raises(ValueError, match="does not add its attention and its MLP, and nothing else"):
        contributions(invented(LowRank(), LowRank()), IMAGES)
