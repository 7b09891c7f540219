import pytest
import torch

from vit.analysis.accuracy import accuracy


def test_it_is_the_share_of_images_whose_largest_logit_is_that_of_the_label(ours, images):
    with torch.no_grad():
        predicted = ours(images).argmax(dim=-1)
    labels = predicted.clone()
    labels[:3] = (labels[:3] + 1) % 10
    assert accuracy(ours, images, labels, batch_size=3) == 4 / 7


def test_attention_is_replaced_while_it_is_measured(ours, images):
    seen = []

    def without(layer, attn):
        seen.append(layer)
        return torch.zeros_like(attn)

    with torch.no_grad():
        alone = ours(images).argmax(dim=-1)
    assert accuracy(ours, images, alone, without) < 1
    assert seen == [0, 1, 2]
    assert accuracy(ours, images, alone) == 1  # the model is as before


def test_as_many_labels_as_images_are_needed(ours, images, labels):
    with pytest.raises(ValueError, match="7 images have 6 labels"):
        accuracy(ours, images, labels[:6])
    with pytest.raises(ValueError, match="there are no images"):
        accuracy(ours, images[:0], labels[:0])


def test_attention_without_influence_is_no_layer(watched, images, labels):
    seen = []
    accuracy(watched, images, labels, lambda layer, attn: seen.append(layer) or attn)
    assert seen == [0, 1, 2]
