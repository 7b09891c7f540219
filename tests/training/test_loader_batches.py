"""Batches of other loaders than ours: pairs, dictionaries and lists, bytes and floats, normalised or not."""

from types import SimpleNamespace

import pytest
import torch

from vit.data import Digits
from vit.data.image_set import ImageSet
from vit.data.module import ImageDataModule
from vit.objectives import MultilabelClassifier, ViTClassifier
from vit.training.loader_batches import UserBatches, are_normalised, check_labels_of_batch, pair_of

IMAGES, LABELS = torch.rand(3, 1, 4, 4), torch.tensor([0, 2, 1])


def module_of(mean=(0.5,), std=(0.25,)):
    normalisation = {"mean": None if mean is None else list(mean), "std": None if std is None else list(std)}
    buffers = {name: torch.tensor(value or [0.5])[:, None, None] for name, value in normalisation.items()}
    network = SimpleNamespace(num_classes=3)
    return SimpleNamespace(hparams=normalisation, network=network, global_rank=0, training=True, **buffers)


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGES, LABELS),
        [LABELS, IMAGES],
        {"pixel_values": IMAGES, "anything": LABELS},
        {"image": IMAGES, "label": LABELS, "index": torch.arange(3), "file": ["a", "b", "c"]},
        (IMAGES, LABELS, {"extra": 1}),
        {"image": IMAGES, "y": LABELS, "scale": torch.tensor(2.0), "classes_seen": torch.arange(9)},
    ],
)
def test_images_and_labels_are_found_in_every_form(batch):
    images, labels = pair_of(batch)
    assert images is IMAGES
    assert labels is LABELS


def test_images_alone_have_no_labels():
    assert pair_of(IMAGES) == (IMAGES, None)
    assert pair_of([IMAGES]) == (IMAGES, None)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"left": IMAGES, "right": IMAGES, "y": LABELS}, r"one tensor of images .* has left \(3, 1, 4, 4\), right"),
        ((IMAGES[0], LABELS), r"one tensor of images .* has 0 \(1, 4, 4\), 1 \(3,\)"),
        ({"image": IMAGES, "a": LABELS, "b": LABELS}, r"one tensor of labels, and this one has .*: name it label"),
        ("text", "and this one has 0 str"),
        ([], "and this one has nothing"),
        ((IMAGES[:0], LABELS[:0]), r"no images \(0 \(0, 1, 4, 4\), 1 \(0,\)\): let the loader leave empty batches out"),
    ],
)
def test_a_batch_that_does_not_tell_is_refused_with_what_it_has(batch, message):
    with pytest.raises(ValueError, match=message):
        pair_of(batch)


ROWS = torch.nn.functional.one_hot(LABELS, 3)


@pytest.mark.parametrize(
    ("labels", "training"), [(ROWS, True), (ROWS.bool(), True), (ROWS, False), (ROWS.float(), False)]
)
def test_rows_with_one_class_each_are_class_numbers(labels, training):
    module = module_of()
    module.training = training
    assert UserBatches().read((IMAGES, labels), module)[1].tolist() == LABELS.tolist()


def test_shares_are_kept_for_the_training_and_several_labels_are_left_to_the_objective():
    module, checked, shares = module_of(), [], torch.tensor([[0.5, 0.5, 0.0]] * 3)
    module.check_labels = checked.append
    assert UserBatches().read((IMAGES, shares), module)[1] is shares
    assert checked == []
    module.training = False
    for labels in (shares, torch.tensor([[1, 1, 0]] * 3)):
        assert UserBatches().read((IMAGES, labels), module)[1].equal(labels)
        assert checked.pop().equal(labels)


def test_a_classifier_learns_from_no_rows_that_are_not_shares_and_from_no_class_alone():
    sizes = {"image_size": 4, "in_channels": 1, "patch_size": 4, "embed_dim": 4, "depth": 1, "num_heads": 1}
    classifier = ViTClassifier(**sizes, num_classes=3)
    several = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    with pytest.raises(ValueError, match=r"row \d of the labels sums to [\d.]+ and not to one: give the share of each"):
        UserBatches().read((IMAGES, several), classifier)
    smoothed = torch.tensor([[0.9, 0.05, 0.05]] * 3)
    assert UserBatches().read((IMAGES, smoothed), classifier)[1] is smoothed
    alone = ViTClassifier(**sizes, num_classes=1)
    for labels in (torch.tensor([[1.0], [0.0], [1.0]]), torch.zeros(3, dtype=torch.long)):
        with pytest.raises(ValueError, match="the probability of one class alone is always 1: add --model Multilabel"):
            UserBatches().read((IMAGES, labels), alone)
    of_several = MultilabelClassifier(**sizes, num_classes=3)
    assert UserBatches().read((IMAGES, several), of_several)[1] is several


@pytest.mark.parametrize(
    ("images", "normalised"),
    [
        (torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8), False),
        (torch.rand(2, 3, 4, 4), False),
        (torch.zeros(2, 3, 4, 4), False),
        (torch.linspace(-0.04, 1.05, 48), False),  # resized by a spline
        (torch.linspace(-2.1, 2.6, 48), True),
        (torch.linspace(-1, 1, 48), True),
    ],
)
def test_normalised_images_are_told_by_their_darkest_pixel(images, normalised):
    assert are_normalised(images) is normalised


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.linspace(0, 255, 9), r"float images go from 0 to 255: give bytes \(uint8\), or divide by 255"),
        (torch.arange(9), r"images are torch.int64: give bytes \(uint8\), or floats in \[0, 1\]"),
        (torch.tensor([0.0, torch.nan]), "some are no numbers"),
        (torch.tensor([-1.0, torch.inf]), "some are no numbers"),
    ],
)
def test_pixels_of_another_range_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        are_normalised(images)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), "a label is 3, and the classes are 0 to 2: set --model.num_classes 4, or number"),
        (torch.tensor([0, -100]), "a label is -100, and the classes are 0 to 2: number them from 0"),
        (torch.tensor([0.0, 1.0]), r"labels are torch.float32 of shape \(2,\): give the number of the class"),
        (torch.tensor([[0], [1]]), r"labels are torch.int64 of shape \(2, 1\)"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels_of_batch(labels, 3)


def test_labels_that_are_classes_padding_or_shares_are_taken():
    for labels in (torch.tensor([0, 2, -1]), torch.tensor([[0.5, 0.5, 0.0]])):
        check_labels_of_batch(labels, 3)


def test_a_label_that_pads_a_batch_is_none_to_learn_from():
    module, padded = module_of(), torch.tensor([0, 2, -1])
    with pytest.raises(ValueError, match=r"^\d labels of a training batch are -1: leave images without a class out$"):
        UserBatches().read((IMAGES, padded), module)
    module.training = False
    assert UserBatches().read((IMAGES, padded), module)[1].equal(padded)


def test_the_normalisation_of_a_loader_is_undone_in_every_batch_also_in_a_bright_one():
    batches, plain = UserBatches(), torch.linspace(0, 1, 48).reshape(3, 1, 4, 4)
    images, labels = batches.read(((plain - 0.5) / 0.25, LABELS.int()), module_of())
    torch.testing.assert_close(images, plain)
    assert labels.dtype == torch.long
    bright = torch.full((3, 1, 4, 4), 0.75)
    torch.testing.assert_close(batches.read(((bright - 0.5) / 0.25, LABELS), module_of())[0], bright)


@pytest.mark.parametrize(("first", "then"), [("plain", "normalised"), ("bytes", "normalised"), ("normalised", "plain")])
def test_a_loader_that_normalises_where_another_one_does_not_is_refused(first, then):
    plain = torch.linspace(0, 1, 48).reshape(3, 1, 4, 4)
    kinds = {"plain": plain, "normalised": (plain - 0.5) / 0.25, "bytes": (255 * plain).byte()}
    batches = UserBatches()
    batches.read((kinds[first], LABELS), module_of())
    batches.is_first = True
    batches.read((kinds[first], LABELS), module_of())
    batches.is_first = True
    said = r"from -2.00 to 2.00, so they are normalised, and those .* were not: normalise all or none$"
    if then == "plain":
        said = r"from 0.00 to 1.00, so they are not normalised, and those .* were: .*, and take larger batches if these"
    with pytest.raises(ValueError, match=said):
        batches.read((kinds[then], LABELS), module_of())


def test_bytes_are_taken_beside_a_loader_that_normalises():
    batches, plain = UserBatches(), torch.linspace(0, 1, 48).reshape(3, 1, 4, 4)
    batches.read(((plain - 0.5) / 0.25, LABELS), module_of())
    batches.is_first = True
    pixels = (255 * plain).byte()
    assert batches.read((pixels, LABELS), module_of())[0] is pixels


class Bright(ImageDataModule):
    """Images without deep shadows: normalised, they go from -0.17 to 1.16."""

    num_classes, class_names, image_size, in_channels, mean, std = 3, ["a", "b", "c"], (4, 4), 1, [0.3], [0.6]

    def load_sets(self):
        images = torch.linspace(50, 255, 96).byte().reshape(6, 1, 4, 4)
        return {split: ImageSet(images, torch.arange(6) % 3) for split in ("train", "test")}


def test_our_data_module_says_itself_that_it_normalises():
    seen = {}
    for normalised in (False, True):
        data = Bright(normalised=normalised, val_fraction=0)
        data.setup("test")
        module = module_of(Bright.mean, Bright.std)
        module._trainer = SimpleNamespace(datamodule=data, predicting=False)
        images, _ = UserBatches().take(next(iter(data.test_dataloader())), module)
        seen[normalised] = images if normalised else images / 255
    torch.testing.assert_close(seen[True], seen[False])


def test_bytes_and_floats_up_to_one_are_taken_as_they_are(capsys):
    for images in (IMAGES, (255 * IMAGES).byte()):
        assert UserBatches().read((images, LABELS), module_of(mean=None, std=None))[0] is images
    assert capsys.readouterr().out == ""


def test_an_unknown_normalisation_is_asked_for():
    with pytest.raises(ValueError, match=r"images go from -2.00 to 2.00, so they are normalised, and their mean"):
        UserBatches().read((torch.linspace(-2, 2, 48).reshape(3, 1, 4, 4), LABELS), module_of(mean=None))


def test_a_normalisation_that_leaves_other_pixels_than_from_0_to_1_is_said(capsys):
    UserBatches().read((torch.linspace(-4, 4, 48).reshape(3, 1, 4, 4), LABELS), module_of())
    assert "pixels go from -0.50 to 1.50 and not from 0 to 1" in capsys.readouterr().out


def test_a_dark_batch_after_bright_ones_shows_that_a_loader_normalises():
    batches, module = UserBatches(), module_of()
    batches.read((0.4 + 0.5 * IMAGES, LABELS), module)  # normalised by 0.5 and 0.5, but all are bright
    with pytest.raises(
        ValueError, match="so they are normalised, and those of an earlier batch, or of another loader, w"
    ):
        batches.read((4 * IMAGES - 2, LABELS), module)


def test_an_objective_without_labels_takes_images_alone_and_a_classifier_does_not():
    module = module_of()
    module._trainer = SimpleNamespace(datamodule=None, predicting=False)
    module.needs_labels = False
    images, labels = UserBatches().take(IMAGES, module)
    assert images is IMAGES
    assert labels.tolist() == [-1, -1, -1]
    module.needs_labels = True
    with pytest.raises(ValueError, match="a batch has images and no labels: give pairs"):
        UserBatches().take(IMAGES, module)


def test_several_processes_do_not_divide_the_images_of_our_data_to_predict_them():
    trainer = SimpleNamespace(datamodule=Digits(), predicting=True, world_size=2)
    module = SimpleNamespace(_trainer=trainer)
    with pytest.raises(
        ValueError, match=r"Digits cannot predict with 2 devices, as rows would be out of order .* set devices to 1"
    ):
        UserBatches().take((IMAGES, LABELS), module)
