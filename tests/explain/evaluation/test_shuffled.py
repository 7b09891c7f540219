"""Models with shuffled weights, and the controls that are made with them."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.evaluation.shuffled import SEEDS, head_parameters, mean_of_others, shuffled, untrained_maps
from vit.explain.maps import Subject, signed_map

HEAD = {"norm.weight", "norm.bias", "head.weight", "head.bias"}


def test_there_are_at_least_five_shuffles():
    assert SEEDS >= 5


def test_each_parameter_keeps_its_entries_in_another_order_and_the_model_keeps_its_weights(model, images):
    before = copy.deepcopy(model.state_dict())
    subject = Subject(model, images)
    other = shuffled(subject, 0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        mixed = dict(other.model.named_parameters())[name]
        assert torch.equal(mixed.flatten().sort().values, tensor.flatten().sort().values)
        assert torch.equal(mixed, tensor) == (tensor.unique().numel() == 1), name
    assert torch.equal(other.target, model(images).argmax(dim=-1))  # of the trained model


def test_another_seed_gives_another_model_and_named_parameters_alone_are_shuffled(model, images):
    subject = Subject(model, images)
    one, other = (shuffled(subject, seed).model.head.weight for seed in (0, 1))
    assert not torch.equal(one, other)
    of_head = shuffled(subject, 0, ["head.weight"]).model
    changed = [
        name for name, p in of_head.named_parameters() if not torch.equal(p, dict(model.named_parameters())[name])
    ]
    assert changed == ["head.weight"]


def test_a_model_without_parameters_has_no_untrained_copy(images):
    class Fixed(nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3))

    with pytest.raises(ValueError, match="Fixed has no parameters to shuffle"):
        shuffled(Subject(Fixed().eval(), images, grid=(3, 5)), 0)


def test_the_head_is_final_norm_and_head(model, images):
    assert set(head_parameters(Subject(model, images))) == HEAD


def test_the_head_is_found_by_the_graph_and_not_by_the_order_of_registration(images):
    class HeadFirst(nn.Module):
        def __init__(self, vit):
            super().__init__()
            self.head, vit.head = vit.head, nn.Identity()
            self.unused, self.vit = nn.Linear(3, 3), vit

        def forward(self, images):
            return self.head(self.vit(images))

    torch.manual_seed(0)
    vit = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7).eval()
    found = head_parameters(Subject(HeadFirst(vit).eval(), images))
    assert set(found) == {"head.weight", "head.bias", "vit.norm.weight", "vit.norm.bias"}


def test_the_head_of_a_frozen_model_is_found_in_inference_mode(model, images):
    frozen = copy.deepcopy(model).requires_grad_(False)
    with torch.inference_mode():
        assert set(head_parameters(Subject(frozen, images))) == HEAD


def test_layers_that_share_a_module_have_no_head_of_their_own(images):
    shared = VisionTransformer((6, 10), 2, embed_dim=12, depth=3, num_heads=3).eval()
    shared.blocks = nn.ModuleList([shared.blocks[0]] * 3)
    with pytest.raises(ValueError, match="has no module for each layer"):
        head_parameters(Subject(shared, images))


def test_every_image_has_the_map_of_one_of_several_untrained_models(model, images):
    subject = Subject(model, images)
    found = untrained_maps(subject, ["relevance"])["relevance"]
    for image, seed in ((0, 0), (3, 3), (SEEDS + 2, 2)):
        alone = shuffled(Subject(model, images[image : image + 1]), seed)
        assert_close(found[image], signed_map("relevance", alone)[0])
    assert_close(untrained_maps(Subject(model, images[:2]), ["relevance"])["relevance"], found[:2])


def test_untrained_maps_see_the_passes_of_their_own_images_alone(model):
    images = torch.randn(2 * SEEDS + 3, 3, 16, 16)
    assert untrained_maps(Subject(model, images), ["value_rollout"])["value_rollout"].shape[0] == len(images)


def test_the_mean_map_of_the_other_images_leaves_the_own_map_out_and_weighs_maps_alike():
    maps = torch.tensor([[[1.0, 0.0]], [[0.0, 10.0]], [[0.0, -100.0]]])
    assert_close(mean_of_others(maps), torch.tensor([[[0.0, 0.0]], [[0.5, -0.5]], [[0.5, 0.5]]]))
    assert_close(mean_of_others(maps[:1]), torch.ones(1, 1, 2))
    assert mean_of_others(torch.zeros(3, 2, 2)).eq(0).all()


def test_all_methods_share_one_untrained_model_for_each_seed(model, images, monkeypatch):
    made = []
    monkeypatch.setattr(
        "vit.explain.evaluation.shuffled.shuffled", lambda subject, seed: made.append(seed) or shuffled(subject, seed)
    )
    found = untrained_maps(Subject(model, images[:3]), ["rollout", "relevance"])
    assert made == [0, 1, 2]
    assert_close(found["rollout"], untrained_maps(Subject(model, images[:3]), ["rollout"])["rollout"])
    assert untrained_maps(Subject(model, images[:3]), []) == {}
