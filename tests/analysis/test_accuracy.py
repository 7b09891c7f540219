import copy

import pytest
import torch

import vit
from vit.analysis.accuracy import accuracy
from vit.analysis.importance import ablation_importance, head_importance


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


def test_labels_that_are_not_one_class_for_each_image_are_refused(ours, images, labels):
    with pytest.raises(ValueError, match=r"of shape \(7, 1\): give a whole number for each image"):
        accuracy(ours, images, labels[:, None])
    with pytest.raises(ValueError, match=r"torch\.float32 of shape"):
        accuracy(ours, images, labels.float())
    with pytest.raises(ValueError, match=r"1 images have no class \(a label below 0\): leave them out"):
        accuracy(ours, images, torch.cat([labels[:-1], torch.tensor([-1])]))


def test_labels_beyond_the_classes_are_refused(ours, images, labels):
    with torch.no_grad():
        last = ours(images).shape[1] - 1
    accuracy(ours, images, torch.full_like(labels, last))
    with pytest.raises(
        ValueError, match=rf"a label is {last + 1}, and the classes of the model are 0 to {last}: number"
    ):
        accuracy(ours, images, torch.full_like(labels, last + 1))


def test_a_model_in_training_mode_is_refused(ours, images, labels):
    with pytest.raises(ValueError, match="the model is in training mode"):
        accuracy(copy.deepcopy(ours).train(), images, labels)


@pytest.mark.parametrize("measure", [accuracy, head_importance, ablation_importance])
def test_a_model_of_one_logit_has_no_likeliest_class(measure, images):
    model = vit.VisionTransformer(8, 4, in_channels=images.shape[1], embed_dim=12, depth=1, num_heads=3, num_classes=1)
    with pytest.raises(ValueError, match="needs at least two classes"):
        measure(model.eval(), images[..., :8, :8], torch.zeros(len(images)).long())
