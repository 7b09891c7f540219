"""What the logits read of an image without its tokens: refused, where the tokens stand in any arrangement."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.capture.test_invented_models import (
    EXACT,
    IMAGES,
    PATCHES,
    WIDTH,
    Layer,
    cls,
    invented,
    noted_by,
    rolled,
)
from vit.capture import capture_attention
from vit.explain import explain

OTHERWISE = "the logits of Invented read more of an image than the tokens that enter its first attention"


def with_branch(model, images):
    """Features of a convolution join the tokens before the second layer, as in a Conformer."""
    features = nn.functional.avg_pool2d(images, 3, 2, 1).flatten(2).mT @ model.more.weight[:3]

    def step(number, layer, tokens):
        return layer(tokens + nn.functional.pad(features, (0, 0, 1, 0)) if number == 1 else tokens)

    return model.read(model.through(model.embed(images), step))


def test_a_branch_is_found_with_as_many_channels_as_tokens():
    def run(model, images, joins=1.0):
        features = joins * nn.functional.avg_pool2d(images, 3, 2, 1).flatten(2).mT @ model.more.weight[:3]

        def step(number, layer, tokens):
            return layer(tokens + features if number == 1 else tokens)

        tokens = model.patches(images).flatten(2).mT
        return model.head(model.norm(model.through(tokens, step)).mean(dim=1))

    images = IMAGES[..., :8]  # 12 patches of 12 channels
    with pytest.raises(ValueError, match=OTHERWISE):
        explain(invented(run=run), images, "rollout")
    explain(invented(run=lambda model, images: run(model, images, joins=0.0)), images, "rollout")


def smoothed_at_first(layer, q, k, v):
    """Each patch has a little of the value of the one before."""
    values = torch.cat([v[:, :, :2], v[:, :, 2:] + 0.03 * v[:, :, 1:-1]], dim=2)
    return (q @ k.mT / 2).softmax(dim=-1) @ values


MODELS = {
    "a branch of convolutions": lambda: invented(run=with_branch),
    "values that the first layer has mixed": lambda: invented(Layer(smoothed_at_first), Layer(), Layer()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["attention", "rollout", "relevance", "value"])
def test_maps_of_attention_are_refused(name, method):
    with pytest.raises(ValueError, match=OTHERWISE):
        explain(MODELS[name](), IMAGES, method)


def test_maps_that_need_no_attention_are_drawn_all_the_same():
    assert explain(MODELS["a branch of convolutions"](), IMAGES, "occlusion", grid=(3, 5)).shape == (3, 3, 5)


def of_all_layers(join):
    """A model that reads the class tokens of all layers, joined by a function, one after another."""

    def run(model, images):
        tokens, found = model.embed(images), []
        for layer in model.layers:
            found.append(tokens := layer(tokens))
        return join(model, found)

    return invented(run=run)


EARLIER = {
    "mean": lambda model, found: model.read(torch.stack(found).mean(dim=0)),
    "mostly of the first": lambda model, found: model.read(found[0] + 1e-3 * found[-1]),
    "side by side": lambda model, found: model.head(torch.cat(found, dim=-1)[:, 0].unflatten(1, (3, -1)).sum(dim=1)),
}


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.parametrize("method", ["attention", "rollout", "relevance"])
def test_logits_that_read_tokens_of_several_layers_have_no_map_of_attention(name, method):
    with pytest.raises(
        ValueError, match="read more than its last tokens, such as tokens of an earlier layer, of a second stream"
    ):
        explain(of_all_layers(EARLIER[name]), IMAGES, method)


def two_streams(model, images):
    """A reversible model: attention reads one stream of tokens, and is added to the other."""
    one = other = model.embed(images)
    for layer in model.layers:
        one = one + layer.attend(layer.norm1(other))
        other = other + layer.mlp(layer.norm2(one))
    return model.read((one + other) / 2)


def test_a_second_stream_around_the_last_layer_is_named():
    with pytest.raises(ValueError, match="such as tokens of an earlier layer, of a second stream or pixels"):
        explain(invented(run=two_streams), IMAGES, "rollout")


def arranged(change, back):
    """A model whose tokens stand in another arrangement before the first layer."""
    return invented(run=lambda model, images: model.read(model.through(back(change(model.embed(images))))))


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (lambda x: x.transpose(0, 1) * 1, lambda x: x.transpose(0, 1)),
        (lambda x: x.unflatten(1, (4, 4)) * 1, lambda x: x.flatten(1, 2)),
    ],
    ids=["tokens before images", "rows and columns"],
)
def test_tokens_in_any_arrangement_are_found(change, back):
    model = arranged(change, back)
    expected = noted_by(model, IMAGES)
    assert_close([attn.detach() for attn in capture_attention(model, IMAGES)], expected, **EXACT)
    row = rolled(expected)[:, 0, 1:].unflatten(1, (3, 5))
    assert cls(model) == {0: 1.0}
    assert_close(explain(model, IMAGES), row, **EXACT)
    assert (PATCHES, WIDTH) == (15, 12)


@pytest.mark.parametrize("first", [Layer(), Layer(smoothed_at_first)], ids=["plain", "mixed values"])
def test_tokens_that_are_written_into_a_buffer_are_refused_with_this_reason(first):
    """No function returns all of them, so whether values are mixed before the first attention is not seen."""

    def run(model, images):
        tokens = model.positions.new_zeros(len(images), 16, WIDTH)
        tokens[:, :1] = model.first + model.positions[:, :1]
        tokens[:, 1:] = model.patches(images).flatten(2).mT + model.positions[:, 1:]
        return model.read(model.through(tokens))

    with pytest.raises(ValueError, match=f"{OTHERWISE}.* or tokens that are written into a buffer"):
        explain(invented(first, Layer(), Layer(), run=run), IMAGES, "rollout")
