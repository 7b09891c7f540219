"""Models that leave early for some images: the first two images of a batch do not speak for the others."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import invented
from vit.capture import capture_attention
from vit.explain import explain

IMAGES = torch.randn(4, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
HARD, EASY = 1.0, -1.0  # the first pixel


def mark(*pixels):
    """Images whose first pixels are these."""
    images = IMAGES.clone()
    images[:, 0, 0, 0] = torch.tensor(pixels)
    return images


def leave_together(model, images):
    """A batch of easy images ends after the first layer."""
    tokens = model.embed(images)
    for layer in model.layers:
        tokens = layer(tokens)
        if (images[:, 0, 0, 0] < 0).all():
            break
    return model.read(tokens)


def leave_alone(model, images):
    """Each easy image is read after the first layer."""
    first = model.layers[0](model.embed(images))
    last = model.layers[2](model.layers[1](first))
    return torch.where((images[:, 0, 0, 0] < 0)[:, None], model.read(first), model.read(last))


def one_token(tokens):
    """The token of the largest first number is read."""
    return tokens[range(len(tokens)), tokens[:, :, 0].argmax(dim=1)]


@pytest.mark.parametrize("images", [mark(EASY, HARD, EASY, HARD), mark(HARD, EASY, EASY, EASY)])
def test_capture_refuses_a_batch_with_another_number_of_layers_than_one_of_its_images(images):
    with pytest.raises(ValueError, match="has 3 attentions for 4 images and 1 for one of them"):
        capture_attention(invented(run=leave_together), images)


@pytest.mark.parametrize("method", ["attention", "rollout", "relevance", "gradient_rollout", "legrad", "value"])
@pytest.mark.parametrize(
    ("run", "images", "message"),
    [
        (leave_together, mark(EASY, EASY, EASY, HARD), "the images of a batch change each other"),
        (leave_alone, mark(HARD, HARD, HARD, EASY), "passes some of these images another way than the first two"),
    ],
    ids=["together", "alone"],
)
def test_maps_refuse_images_that_leave_elsewhere_than_the_first_two(run, images, message, method):
    with pytest.raises(ValueError, match=message):
        explain(invented(run=run), images, method)


def test_images_that_pass_alike_are_explained():
    images = mark(HARD, HARD, HARD, HARD)
    assert_close(explain(invented(run=leave_alone), images), explain(invented(), images), **EXACT)


def test_images_that_read_another_token_than_the_first_two_are_refused():
    model = invented(read=one_token)
    near = torch.cat([IMAGES[:1], 1.02 * IMAGES[:1], IMAGES[1:]])
    with pytest.raises(ValueError, match="reads other tokens for each image"):
        explain(model, near, "rollout")
    assert explain(model, near[:2], "rollout").shape == (2, 3, 5)


def read_early_too(model, images):
    """Easy images also read the tokens after the first layer; no module holds the last tokens."""
    first = model.layers[0](model.embed(images))
    last = model.layers[2](model.layers[1](first))
    late, early = (F.linear(tokens[:, 0] + 0, model.head.weight, model.head.bias) for tokens in (last * 1, first))
    return late + (-images[:, :1, 0, 0]).relu() * early


def pool_early_too(model, images):
    """The same, with a learned query that pools the last tokens."""
    first = model.layers[0](model.embed(images))
    last = model.layers[2](model.layers[1](first))
    weights = (model.more(model.first) @ last.mT).softmax(dim=-1)
    pooled = (weights[:, None] @ last[:, None])[:, 0, 0]
    return model.head(pooled) + (-images[:, :1, 0, 0]).relu() * model.head(first[:, 0])


@pytest.mark.parametrize("method", ["attention", "rollout", "relevance"])
@pytest.mark.parametrize("run", [read_early_too, pool_early_too])
def test_a_later_image_that_reads_an_earlier_layer_too_is_refused(run, method):
    with pytest.raises(ValueError, match="passes some of these images another way than the first two"):
        explain(invented(run=run), mark(HARD, HARD, HARD, EASY), method)
    assert explain(invented(run=run), mark(HARD, HARD, HARD, HARD), method).shape == (4, 3, 5)
