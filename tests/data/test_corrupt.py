"""Data made worse on purpose: what changes, how much, and what stays."""

import math

import pytest
import torch

from vit.data import Digits, ImageFolder
from vit.data.corrupt import CORRUPTIONS, change_labels, corrupt_images
from vit.data.image_set import ImageSet
from vit.data.module import ImageDataModule

LABELS = torch.arange(3000) % 5


@pytest.fixture(scope="module")
def photographs():
    """Smooth random images with three channels, 13x17, more than one part of them."""
    coarse = torch.rand(300, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (13, 17), mode="bilinear")
    return (255 * smooth).round().to(torch.uint8)


def digits(**kwargs):
    data = Digits(**kwargs)
    data.setup("fit")
    return data


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_share_of_labels_that_is_asked_for_names_another_class(share):
    changed = change_labels(LABELS, share, num_classes=5)
    assert int((changed != LABELS).sum()) == round(share * len(LABELS))
    assert set(changed.tolist()) <= set(range(5))


def test_each_other_class_is_equally_probable():
    steps = (change_labels(LABELS, 1.0, num_classes=5) - LABELS) % 5
    assert steps.bincount().tolist() == [0, *(pytest.approx(750, abs=100),) * 4]


def test_the_wrong_labels_of_a_smaller_share_are_wrong_in_a_larger_one_as_well():
    few, many = (change_labels(LABELS, share, num_classes=5) for share in (0.1, 0.4))
    assert torch.equal(few[few != LABELS], many[few != LABELS])


def test_which_labels_change_depends_on_a_seed_of_their_own():
    torch.manual_seed(1)
    first = change_labels(LABELS, 0.3, num_classes=5)
    state = torch.random.get_rng_state()
    assert torch.equal(change_labels(LABELS, 0.3, num_classes=5), first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(change_labels(LABELS, 0.3, num_classes=5, seed=1), first)


@pytest.mark.parametrize("labels", [torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)])
def test_labels_that_are_not_one_of_several_classes_are_refused(labels):
    with pytest.raises(ValueError, match=r"label_noise \(0.5\) gives an image one of the other classes"):
        change_labels(labels, 0.5, num_classes=1 if labels.ndim == 1 else 3)


def test_only_training_labels_change_and_the_data_module_says_how_many():
    clean, noisy = digits().sets, digits(label_noise=0.2)
    assert all(torch.equal(clean[stage].images, noisy.sets[stage].images) for stage in clean)
    changed = {stage: int((clean[stage].labels != noisy.sets[stage].labels).sum()) for stage in clean}
    count = len(clean["train"].labels)
    assert changed == {"train": round(0.2 * count), "val": 0, "test": 0}
    assert noisy.made_worse == [f"{round(0.2 * count)} of {count:,} training labels are wrong (seed 0)"]
    assert digits().made_worse == []


@pytest.mark.parametrize("memory_limit", [4.0, 0.0])
def test_wrong_labels_are_those_of_the_batches_also_where_images_are_streamed(memory_limit, write_image, tmp_path):
    for number in range(30):
        write_image(f"root/{'ab'[number % 2]}/{number}.png")
    options = {"num_workers": 0, "batch_size": 5, "val_fraction": 0, "test_fraction": 0}
    data = ImageFolder(str(tmp_path / "root"), label_noise=0.4, memory_limit=memory_limit, **options)
    data.setup("fit")
    loader = data.train_dataloader()
    names = [data.sets["train"].files[index] for index in torch.cat([*loader.sampler.batches(0)])]
    served = torch.cat([labels for _, labels in loader]).tolist()
    wrong = sum(name[0] != "ab"[label] for name, label in zip(names, served, strict=True))
    assert (wrong, len(served)) == (12, 30)
    assert data.made_worse == ["12 of 30 training labels are wrong (seed 0)"]


@pytest.mark.parametrize(
    ("corrupted", "stages"), [("train", ["train"]), ("test", ["test"]), ("both", ["train", "val", "test"])]
)
def test_the_images_that_are_named_are_corrupted(corrupted, stages):
    clean, worse = digits().sets, digits(corrupt={"contrast": 0.5}, corrupted=corrupted)
    differing = [stage for stage in clean if not torch.equal(clean[stage].images, worse.sets[stage].images)]
    assert sorted(differing) == sorted(stages)
    assert worse.made_worse == [
        f"{len(clean[stage].labels):,} {stage} images are corrupted: contrast 0.5" for stage in stages
    ]
    assert all(torch.equal(clean[stage].labels, worse.sets[stage].labels) for stage in clean)


def test_contrast_draws_pixels_to_the_mean_of_their_image():
    images = torch.tensor([[[[0, 200]]], [[[100, 140]]]], dtype=torch.uint8)
    assert corrupt_images(images, {"contrast": 0.5}).flatten().tolist() == [50, 150, 110, 130]


def test_a_blur_keeps_the_mean_and_lowers_the_variance(photographs):
    before, after = photographs.double(), corrupt_images(photographs, {"blur": 2.0}).double()
    assert after.mean().item() == pytest.approx(before.mean().item(), rel=0.02)
    assert after.var(dim=(2, 3)).mean() < 0.7 * before.var(dim=(2, 3)).mean()


def test_a_lower_quality_is_further_from_the_image(photographs):
    errors = [
        (corrupt_images(photographs, {"jpeg": quality}).double() - photographs).abs().mean() for quality in (95, 5)
    ]
    assert 0 < errors[0] < errors[1]


@pytest.mark.parametrize(("name", "strength"), [("jpeg", 20), ("blur", 1.5), ("contrast", 0.3)])
def test_an_image_is_corrupted_alike_alone_and_in_a_batch(name, strength, photographs):
    assert {name} <= CORRUPTIONS.keys()
    corrupted = corrupt_images(photographs, {name: strength})
    assert (corrupted.shape, corrupted.dtype) == (photographs.shape, torch.uint8)
    assert torch.equal(corrupt_images(photographs[270:271], {name: strength})[0], corrupted[270])


def test_corruptions_follow_in_their_order(photographs):
    both = corrupt_images(photographs, {"contrast": 0.3, "jpeg": 10})
    assert torch.equal(both, corrupt_images(corrupt_images(photographs, {"contrast": 0.3}), {"jpeg": 10}))
    assert not torch.equal(both, corrupt_images(photographs, {"jpeg": 10, "contrast": 0.3}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_noise": 1.2}, r"label_noise \(1.2\) must be in \[0, 1\]"),
        ({"corrupt": {"fog": 1.0}}, "unknown corruption 'fog': choose 'jpeg', 'blur' or 'contrast'"),
        ({"corrupt": {"jpeg": 101}}, r"strength of jpeg \(101\) must be a quality, a whole number from 1 to 100"),
        ({"corrupt": {"blur": 0}}, r"strength of blur \(0\) must be a number above 0"),
        ({"corrupt": {"blur": 1}, "corrupted": "val"}, "unknown corrupted 'val': choose 'train', 'test' or 'both'"),
    ],
)
def test_what_does_not_exist_is_one_line(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageDataModule(**arguments)


def test_an_image_of_one_row_is_blurred_along_it():
    row = torch.tensor([0, 0, 90, 0, 0], dtype=torch.uint8).view(1, 1, 1, 5)
    blurred = corrupt_images(row, {"blur": 0.5}).flatten().tolist()
    weights = [math.exp(-(x**2) / (2 * 0.5**2)) for x in (-2, -1, 0, 1, 2)]
    assert blurred == [pytest.approx(90 * weight / sum(weights), abs=1) for weight in weights]


def test_jpeg_holds_grey_and_colour_alone():
    with pytest.raises(ValueError, match="jpeg holds images of 1 or 3 channels, and these have 4: leave it out"):
        corrupt_images(torch.zeros(2, 4, 8, 8, dtype=torch.uint8), {"jpeg": 50})


def test_a_corruption_of_test_images_that_are_not_there_is_refused():
    class Untested(Digits):
        def load_sets(self):
            return {"train": super().load_sets()["train"]}

    data = Untested(corrupt={"blur": 1.0})
    with pytest.raises(ValueError, match=r"^corrupt \({'blur': 1.0}\) changes test images, and there are none: add so"):
        data.setup("fit")


def test_images_that_are_decoded_in_each_epoch_are_not_corrupted():
    class Streamed(Digits):
        def load_sets(self):
            return {stage: ImageSet([0] * 4, torch.arange(4)) for stage in ("train", "val", "test")}

    data = Streamed(corrupt={"blur": 1.0})
    with pytest.raises(ValueError, match=r"those of test are decoded in each epoch: raise memory_limit"):
        data.setup("fit")
