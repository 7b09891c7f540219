"""Images of a batch that a model treats unlike the first two: refused, whichever method reads its tokens."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, WIDTH, Layer, backwards, changing, invented, noted_by, rolled
from vit.capture import capture_attention
from vit.capture.checks.every_image import _changed
from vit.explain import explain


def facing_left(images):
    """Images that are mirrored if their right half is brighter."""
    left, right = (half.mean(dim=(1, 2, 3)) for half in images.chunk(2, dim=-1))
    return torch.where((left < right)[:, None, None, None], images.flip(-1), images)


@pytest.fixture
def posing():
    """Three images, of which the last alone is brighter at the right, and a model that turns it."""
    images = IMAGES + torch.tensor([9.0] * 5 + [0.0] * 5)  # no change of a few pixels turns them
    images[2] = images[2].flip(-1)
    return invented(run=lambda model, images: model.read(model.through(model.embed(facing_left(images))))), images


def shine(model, tokens):
    """Neighbours are mixed in as far as an image is bright."""
    return tokens + model.brightness[:, None, None].relu() * tokens.roll(1, 1)


def bright(model, images):
    model.brightness = images.mean(dim=(1, 2, 3)) - 2
    return changing(shine)(model, images)


@pytest.mark.parametrize("method", ["rollout", "relevance", "attention", "gradcam"])
def test_an_image_that_a_model_turns_by_what_it_shows_has_no_map(posing, method):
    model, images = posing
    with pytest.raises(ValueError, match="takes its patches from other pixels of image 2 than of the first one"):
        explain(model, images, method)


class Highway(Layer):
    """Dark images have no skip connection beside its attention."""

    def forward(self, tokens):
        tokens = self.keeps * tokens + self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


def keep_bright(model, images):
    for layer in model.layers:
        layer.keeps = (images.mean(dim=(1, 2, 3)) > 0)[:, None, None]  # only Highway asks for it
    return model.read(model.through(model.embed(images)))


@pytest.mark.parametrize("method", ["rollout", "relevance"])
def test_an_image_without_the_skip_connection_of_the_first_is_refused(method):
    model = invented(Layer(), Highway(), Layer(), run=keep_bright)
    images = torch.cat([IMAGES, IMAGES.flip(0)])
    images = images - images.mean(dim=(1, 2, 3), keepdim=True) + 1
    assert explain(model, images, method).shape == (6, 3, 5)
    images[4] -= 2
    with pytest.raises(ValueError, match="no skip connection beside attention 1 for image 4 of the batch"):
        explain(model, images, method)
    assert_close(capture_attention(model, images)[1].detach(), noted_by(model, images)[1], **EXACT)


def test_an_image_without_the_skip_connection_of_the_first_in_the_last_layer_is_refused():
    model = invented(Layer(), Layer(), Highway(), run=keep_bright)
    images = torch.cat([IMAGES, IMAGES.flip(0)])
    images = images - images.mean(dim=(1, 2, 3), keepdim=True) + 1
    assert explain(model, images, "rollout").shape == (6, 3, 5)
    images[4] -= 2
    with pytest.raises(ValueError, match="no skip connection beside attention 2 for image 4 of the batch"):
        explain(model, images, "rollout")


def test_images_that_are_all_alike_are_read(posing):
    model, images = posing
    same = images[[0, 1, 0, 1]]
    expected = rolled(noted_by(model, same))[:, 0, 1:].unflatten(1, (3, 5))
    assert_close(explain(model, same), expected, **EXACT)


@pytest.mark.parametrize("place", [1, 2])
def test_an_image_whose_tokens_are_mixed_is_refused_in_the_middle_of_a_batch(place):
    model, images = invented(run=bright), torch.cat([IMAGES, IMAGES[:1]])
    images[place] += 4
    with pytest.raises(ValueError, match=rf"mixes the tokens of image {place} of the batch .* not those of the first"):
        capture_attention(model, images)
    if place == 2:  # the first two show it otherwise
        with pytest.raises(ValueError, match=r"mixes the tokens of image 2 of the batch"):
            explain(model, images, "rollout")
    assert len(capture_attention(model, images[[0, 3, 0]])) == 3


@pytest.mark.parametrize(("taken", "given"), [(1, 15), (15, 1), (13, 15)])
def test_one_token_that_is_mixed_into_another_quarter_is_found(taken, given):
    def mixed(model, tokens):
        into = torch.zeros_like(tokens)
        into[:, given] = tokens[:, taken]
        return tokens + model.brightness[:, None, None].relu() * into

    def run(model, images):
        model.brightness = images.mean(dim=(1, 2, 3)) - 2
        return changing(mixed)(model, images)

    images = torch.cat([IMAGES, IMAGES[:1]])
    images[2] += 4
    with pytest.raises(ValueError, match=r"mixes the tokens of image 2 of the batch .* not those of the first"):
        explain(invented(run=run), images, "rollout")


def test_layers_whose_tokens_stand_in_another_order_are_brought_back_first():
    images = torch.cat([IMAGES, IMAGES.flip(0)])
    model = invented(run=backwards)
    first, second, third = noted_by(model, images)
    assert_close(
        [attn.detach() for attn in capture_attention(model, images)], [first, second.flip(-1, -2), third], **EXACT
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda image: 0 * image,
        lambda image: 0 * image + 7,
        lambda image: 1e-9 * image,
        lambda image: 1e6 * image,
        lambda image: image - 6,
    ],
    ids=["black", "one colour", "hardly any contrast", "a million times brighter", "dark"],
)
@pytest.mark.parametrize(
    "norm", [nn.Identity, nn.ReLU, lambda: nn.GroupNorm(1, WIDTH, eps=0)], ids=["", "ReLU", "norm"]
)
def test_an_unusual_image_is_treated_like_the_others(change, norm):
    model = invented()
    model.patches = nn.Sequential(model.patches, norm()).double()
    images = torch.cat([IMAGES, IMAGES[:2].flip(-1)])
    images[3] = change(images[3])
    expected = rolled(noted_by(model, images))[:, 0, 1:].unflatten(1, (3, 5))
    assert_close(explain(model, images), expected, **EXACT)


def test_a_corner_of_each_image_is_changed():
    for images in (torch.zeros(3, 1, 4, 6), torch.zeros(3, 1, 4, 6, dtype=torch.uint8)):
        (rows, columns) = (_changed(images) != images).all(dim=(0, 1)).nonzero().amax(dim=0).tolist()
        assert (rows, columns) == (1, 2)
        assert (_changed(images) != images).sum() == 3 * 6


def test_two_images_cost_no_pass_of_their_own():
    passed = []
    for count in (2, 3):
        model = invented()
        counts = []
        model.register_forward_pre_hook(lambda _, args, counts=counts: counts.append(len(args[0])))
        capture_attention(model, IMAGES[:count])
        passed.append(len(counts))
    assert passed[1] == passed[0] + 2 + 4 + 5  # a corner, and each quarter; and whether images change each other
    assert isinstance(model, nn.Module)
