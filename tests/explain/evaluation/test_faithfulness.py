"""Removal curves, SaCo and the Gini index, by hand on a model that adds up its pixels."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.capture.wrapped_model import Around
from vit import VisionTransformer
from vit.explain.evaluation.faithfulness import STEPS, gini, random_if_equal, removal_curves, saco
from vit.explain.maps.subject import Subject


class Adder(nn.Module):
    """Two classes, with the weighted sum of the pixels for one and nothing for the other; a patch is a pixel."""

    patch_size = 1

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.tensor(weights)

    def forward(self, images):
        total = (images[:, 0] * self.weights).sum(dim=(1, 2))
        return torch.stack([total, torch.zeros_like(total)], dim=1)


WEIGHTS = [[4.0, 1.0], [2.0, -3.0]]


@pytest.fixture
def adder():
    return Subject(Adder(WEIGHTS).eval(), torch.ones(1, 1, 2, 2))


def sigmoid(*totals):
    return torch.tensor([totals]).sigmoid()


def test_patches_are_painted_from_the_highest_down_and_from_the_lowest_up(adder):
    curves = removal_curves(adder, torch.tensor([WEIGHTS]), "mean_fill")
    # 0, 10, ..., 90 % of 4 patches are 0 0 0 1 1 2 2 2 3 3; the whole is 4, without the 4 it is 0, then -2, then -3
    assert_close(curves.most_first, sigmoid(4.0, 4.0, 4.0, 0.0, 0.0, -2.0, -2.0, -2.0, -3.0, -3.0))
    assert_close(curves.least_first, sigmoid(4.0, 4.0, 4.0, 7.0, 7.0, 6.0, 6.0, 6.0, 4.0, 4.0))
    assert_close(curves.area_most_first, curves.most_first.mean(dim=1))
    assert_close(curves.area_least_first, curves.least_first.mean(dim=1))


def test_positive_and_negative_count_the_steps_that_keep_the_class(adder):
    curves = removal_curves(adder, torch.tensor([WEIGHTS]), "mean_fill")
    assert curves.positive.item() == pytest.approx(0.5)  # at a total of 0 the first class still stands first
    assert curves.negative.item() == pytest.approx(1.0)


def test_a_reversed_map_swaps_the_curves(adder):
    right, wrong = (removal_curves(adder, sign * torch.tensor([WEIGHTS]), "mean_fill") for sign in (1, -1))
    assert_close(right.most_first, wrong.least_first)
    assert_close(right.least_first, wrong.most_first)


def test_the_class_that_was_asked_about_is_followed():
    asked = Subject(Adder(WEIGHTS).eval(), torch.ones(1, 1, 2, 2), target=1)
    curves = removal_curves(asked, torch.tensor([WEIGHTS]), "mean_fill")
    assert_close(curves.most_first[0, 3], torch.tensor(0.5))
    assert_close(curves.most_first[0, 0], torch.tensor(-4.0).sigmoid())


def test_a_model_that_crops_is_measured_as_the_model_within_on_the_crop(random_vit):
    plain, maps = random_vit(), torch.rand(2, 3, 5).double()
    images = torch.randn(2, 3, 9, 13).double()
    whole = Subject(Around(plain, lambda vit, images: vit(images[..., 1:7, 2:12])).eval(), images)
    crop = Subject(plain, images[..., 1:7, 2:12])
    assert_close(saco(whole, maps), saco(crop, maps))
    for one, other in zip(*(removal_curves(subject, maps, "mean_fill") for subject in (whole, crop)), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_dropped_token_is_gone(pool):
    torch.manual_seed(0)
    model = (
        VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, pool=pool, num_registers=1).double().eval()
    )
    images, maps = torch.randn(2, 3, 6, 10).double(), torch.rand(2, 3, 5).double()
    curves = removal_curves(Subject(model, images), maps)
    removed = STEPS // 2 * 15 // STEPS
    for image, row, curve in zip(images, maps.flatten(1), curves.most_first, strict=True):
        kept = row.argsort(descending=True)[removed:].sort().values + 2
        with torch.no_grad():
            tokens = model.embed(image[None])[:, torch.cat([torch.arange(2), kept])]
            for block in model.blocks:
                tokens = block(tokens)
            probabilities = model.forward_head(model.norm(tokens)).softmax(dim=-1)
        assert_close(curve[STEPS // 2], probabilities[0, model(image[None]).argmax()])


def test_one_token_is_left_at_the_end_even_without_a_class_token():
    model = VisionTransformer(4, 2, embed_dim=12, depth=1, num_heads=3, pool="mean", class_token=False).eval()
    curves = removal_curves(Subject(model, torch.randn(1, 3, 4, 4)), torch.rand(1, 2, 2))
    assert curves.most_first.isfinite().all()


def test_equal_patches_are_not_removed_in_reading_order():
    images = torch.rand(2, 1, 4, 4)
    first, second = random_if_equal(torch.zeros(2, 64), images).tolist()
    assert random_if_equal(torch.zeros(1, 64), images[1:]).tolist() == [second]  # in any batch
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != list(range(64))
    assert first != second  # one order for all images would be a map
    assert random_if_equal(torch.tensor([[3.0, 1.0, 2.0]]), images[:1]).tolist() == [[2, 0, 1]]


def test_saco_is_one_for_the_true_costs_and_minus_one_for_their_opposite(adder):
    costs = adder.score(adder.logits).sigmoid() - sigmoid(0.0, 3.0, 2.0, 7.0)
    assert saco(adder, costs.view(1, 2, 2)).item() == pytest.approx(1.0)
    assert saco(adder, -costs.view(1, 2, 2)).item() == pytest.approx(-1.0)


def test_saco_weighs_a_wrong_pair_by_how_far_its_values_are_apart(adder):
    # Costs fall as 4, 2, 1, -3. The map puts the -3 above the 1, 0.5 apart; all six pairs are 17 apart in sum.
    wrong = torch.tensor([[[6.0, 1.0], [4.0, 1.5]]])
    apart = [2.0, 4.5, 5.0, 2.5, 3.0, 0.5]
    assert saco(adder, wrong).item() == pytest.approx((sum(apart) - 2 * 0.5) / sum(apart))


def test_a_constant_map_has_a_saco_of_zero_though_groups_differ_in_size():
    model = Adder(torch.rand(3, 5).tolist()).eval()
    assert saco(Subject(model, torch.ones(1, 1, 3, 5)), torch.ones(1, 3, 5)).item() == 0.0


def test_gini_by_hand():
    assert gini(torch.tensor([[[1.0, 3.0]]])).item() == pytest.approx(0.25)
    assert gini(torch.tensor([[[0.0, 0.0]]])).item() == 0.0
    assert gini(torch.tensor([[[-5.0, 1.0]]])).item() == pytest.approx(0.5)  # negative values do not count


def test_tokens_that_a_window_needs_are_not_dropped():
    model = VisionTransformer(8, 2, embed_dim=12, depth=1, num_heads=3, attention="window").eval()
    with pytest.raises(ValueError, match=r"cannot be left out.*occlusion"):
        removal_curves(Subject(model, torch.randn(1, 3, 8, 8)), torch.rand(1, 4, 4))


@pytest.mark.parametrize("removal", ["token_drop", "mean_fill"])
def test_the_whole_image_is_passed_once_for_all_curves(model, images, removal):
    subject, sizes = Subject(model, images[:5]), []
    maps = torch.rand(5, *subject.anatomy.grid)
    handle = model.blocks[0].register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    curves = [removal_curves(subject, maps, removal) for _ in range(2)]
    handle.remove()
    assert sizes.count(5) == 1 + 2 * 2 * (STEPS - 1)
    assert_close(curves[0].most_first[:, 0], subject.logits.softmax(dim=-1).amax(dim=1))
    assert_close(curves[0].least_first[:, 0], curves[0].most_first[:, 0])


def test_a_model_of_one_logit_has_no_probability_to_fall(random_vit):
    subject = Subject(random_vit(num_classes=1), torch.randn(2, 3, 6, 10).double())
    for measure in (removal_curves, saco):
        with pytest.raises(ValueError, match="has one logit only, whose probability by softmax is always 1"):
            measure(subject, torch.rand(2, 3, 5).double())


class Labels(Adder):
    """The same with two labels, each by itself."""

    def __init__(self, weights):
        super().__init__(weights)
        self.pretrained_cfg = {"thresholds": [0.5, 0.5]}


@pytest.mark.parametrize("measure", [removal_curves, saco])
def test_a_model_of_several_labels_is_not_measured_by_the_share_of_one_class(measure):
    subject = Subject(Labels(WEIGHTS).eval(), torch.ones(1, 1, 2, 2))
    with pytest.raises(ValueError, match="Labels gives several labels an image, and removal is measured by the probab"):
        measure(subject, torch.rand(1, 2, 2))


def test_no_map_of_a_model_that_sees_nothing_is_faithful():
    subject = Subject(Adder([[0.0] * 4] * 4).eval(), torch.rand(3, 1, 4, 4))
    assert saco(subject, torch.rand(3, 4, 4)).tolist() == [0, 0, 0]


def test_a_map_that_is_constant_up_to_rounding_has_no_order():
    class Even(nn.Module):
        patch_size = 1

        def forward(self, images):
            return images.flatten(1)[:, :5] * torch.tensor([3.0, 1.0, -2.0, 0.5, 4.0])

    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    subject = Subject(Even().eval(), images)
    assert not saco(subject, torch.full((4, 8, 8), 0.1)).any()
    noisy = 1 + 1e-7 * torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(1))
    assert not saco(subject, noisy).any()
    flat = removal_curves(subject, torch.ones(4, 8, 8), "mean_fill")
    assert_close(removal_curves(subject, noisy, "mean_fill").area_between, flat.area_between)
