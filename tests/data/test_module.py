"""The base of all data modules."""

import re
from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule, Trainer

from vit.data.loader import MemoryLoader, StreamLoader
from vit.data.module import ImageDataModule, ImageSet
from vit.data.sampler import BatchSampler
from vit.data.split import stratified_split
from vit.support.files import cache_folder

IMAGES = torch.arange(47 * 3 * 5 * 7).reshape(47, 3, 5, 7).remainder(251).to(torch.uint8)
LABELS = torch.arange(47) % 3


class Toy(ImageDataModule):
    """Forty-seven images of 5x7 in three classes: the first thirty-seven for training, the others for test."""

    num_classes = 3
    image_size = (5, 7)
    in_channels = 3

    def load_sets(self):
        return {"train": ImageSet(IMAGES[:37], LABELS[:37]), "test": ImageSet(IMAGES[37:], LABELS[37:])}


class WithoutTest(Toy):
    """The toy without test images, but with validation images of its own."""

    def load_sets(self):
        return {"train": ImageSet(IMAGES[:37], LABELS[:37]), "val": ImageSet(IMAGES[37:], LABELS[37:])}


def ready(cls=Toy, **kwargs):
    data = cls(**kwargs)
    data.setup("fit")
    return data


def rows(images):
    """Each image as one hashable value."""
    return [tuple(image.flatten().tolist()) for image in images]


def labelled(part):
    """Each image with its label as one hashable value."""
    return [*zip(rows(part.images), part.labels.tolist(), strict=True)]


def test_the_same_share_of_each_class_is_held_out_of_the_training_images_whatever_the_seed():
    sets, other = (ready(val_fraction=0.2, seed=seed).sets for seed in (0, 1))
    assert sets["val"].labels.bincount().tolist() == [3, 2, 2]
    held_out, kept, test = (labelled(sets[stage]) for stage in ("val", "train", "test"))
    assert sorted(held_out + kept) == sorted(labelled(ImageSet(IMAGES[:37], LABELS[:37])))
    assert test == labelled(ImageSet(IMAGES[37:], LABELS[37:]))
    assert labelled(other["val"]) == held_out


def test_nothing_is_held_out_where_there_are_validation_images():
    sets = ready(WithoutTest, val_fraction=0.2).sets
    assert rows(sets["train"].images) == rows(IMAGES[:37])
    assert rows(sets["val"].images) == rows(IMAGES[37:])


def test_the_fraction_zero_trains_on_all_images_and_validates_on_none():
    data = ready(val_fraction=0.0)
    assert len(data.sets["train"].labels) == 37
    assert data.val_dataloader() == []


class Singles(Toy):
    """Three images, each of a class of its own."""

    def load_sets(self):
        return {"train": ImageSet(IMAGES[:3], LABELS[:3])}


def test_a_fraction_that_holds_out_no_images_is_an_error():
    message = r"^val_fraction \(0\.5\) of 3 images holds out none: each image is the only one "
    with pytest.raises(ValueError, match=message):
        ready(Singles, val_fraction=0.5)


def test_the_splits_are_loaded_only_once():
    data = ready()
    before = dict(data.sets)
    data.setup("test")
    assert all(data.sets[stage] is before[stage] for stage in ("train", "val", "test"))


def test_training_batches_are_shuffled_and_augmented():
    data = ready(batch_size=5, seed=3, flip=True)
    images, labels = next(iter(data.train_dataloader()))
    indices = next(iter(BatchSampler(len(data.sets["train"].labels), 5, shuffle=True, seed=3)))
    originals = data.sets["train"].images[indices]
    kept = (images == originals).flatten(1).all(dim=1)
    mirrored = (images == originals.flip(3)).flatten(1).all(dim=1)
    assert (kept | mirrored).all()
    assert kept.any()
    assert mirrored.any()
    assert torch.equal(labels, data.sets["train"].labels[indices])


@pytest.mark.parametrize(
    "option",
    [
        {"crop_scale": (0.35, 1.0)},
        *(
            {"crop_padding": 2},
            {"flip": True},
            {"flip": "alternate"},
            {"policy": "randaugment"},
            {"policy": "trivialaugment"},
        ),
        *({"erasing": 0.5}, {"mixup": 0.8}, {"cutmix": 0.8}, {"mixup": 1}, {"cutmix": 1}),
    ],
)
def test_each_augmentation_reaches_the_training_batches(option):
    def epoch(**kwargs):
        return torch.cat([images for images, _ in ready(batch_size=5, **kwargs).train_dataloader()]).float()

    assert not torch.equal(epoch(**option), epoch())


@pytest.mark.parametrize("mix", [{"mixup": 0.8}, {"cutmix": 1.0}])
def test_batches_are_mixed_until_a_share_of_the_training_is_done_by_default_to_the_end_and_beyond(mix):
    data = ready(batch_size=5, mix_until=0.6, **mix)
    batches, mixed = iter(data.train_dataloader()), []
    for data.progress in (0.0, 0.3, 0.59, 0.6, 0.9, 1.0):
        _, targets = next(batches)
        mixed.append(targets.shape == (5, 3))
    assert mixed == [True, True, True, False, False, False]
    always = ready(batch_size=5, **mix)
    always.progress = 1.0
    _, targets = next(iter(always.train_dataloader()))
    assert targets.shape == (5, 3)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_evaluation_takes_each_image_once_in_order_and_unchanged(stage):
    data = ready(batch_size=3, crop_padding=2, flip=True, policy="randaugment", erasing=1.0, mixup=0.8, cutmix=1.0)
    images, labels = zip(*getattr(data, f"{stage}_dataloader")(), strict=True)
    assert torch.equal(torch.cat(images), data.sets[stage].images)
    assert torch.equal(torch.cat(labels), data.sets[stage].labels)


def test_testing_without_test_images_is_an_error():
    with pytest.raises(ValueError, match=r"^WithoutTest has no test images: add a test/ folder, or run validate"):
        ready(WithoutTest).test_dataloader()


def test_the_base_class_is_not_a_data_set():
    with pytest.raises(
        ValueError, match=r"^ImageDataModule is not a data set: choose CIFAR10, .*, PlantedDigits or Shards$"
    ):
        ready(ImageDataModule)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"batch_size": 0}, "batch_size (0) must be a positive whole number"),
        ({"val_fraction": 1.0}, "val_fraction (1.0) must be in [0, 1): 0.1 holds out one image in ten"),
        ({"val_fraction": -0.1}, "val_fraction (-0.1) must be in [0, 1): 0.1 holds out one image in ten"),
        ({"crop_padding": -1}, "crop_padding (-1) must be a whole number of at least 0: 0 is no shift"),
        ({"flip": "sometimes"}, "unknown flip 'sometimes': choose True, False or 'alternate'"),
        (
            {"policy_from": 5},
            "policy_from (5) without a policy changes nothing: set policy to randaugment",
        ),
        (
            {"policy_from": 0.5},
            "policy_from (0.5) must be a whole number of at least 0: 0 applies the policy from the first epoch on",
        ),
        ({"policy": "auto"}, "unknown policy 'auto': choose 'none', 'randaugment' or 'trivialaugment'"),
        ({"erasing": 1.1}, "erasing (1.1) must be in [0, 1]"),
        ({"mixup": -1}, "mixup (-1) must be a number of at least 0: 0 is no mixup"),
        ({"cutmix": -1.0}, "cutmix (-1.0) must be a number of at least 0: 0 is no cutmix"),
        ({"mix_until": 0.0}, "mix_until (0.0) must be in (0, 1]: for no mixing, set mixup and cutmix to 0"),
        ({"balance": "classes"}, "unknown balance 'classes': choose 'none', 'sampling' or 'loss'"),
        (
            {"num_workers": -1},
            "num_workers (-1) must be a whole number of at least 0: 0 decodes in the process of the training",
        ),
        ({"memory_limit": -1}, "memory_limit (-1) must be a number of at least 0: 0 keeps no images in memory"),
    ],
)
def test_an_argument_out_of_its_range_is_named(option, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Toy(**option)


@pytest.mark.parametrize("crop_scale", [(0.0, 1.0), (0.5, 0.4), (0.5, 1.1), (0.5,), 0.5, (float("nan"), 1.0)])
def test_a_crop_scale_that_is_no_range_of_shares_is_an_error(crop_scale):
    message = f"crop_scale ({crop_scale!r}) must be the smallest and the largest share, in (0, 1]: (0.35, 1.0) is usual"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Toy(crop_scale=crop_scale)


@pytest.mark.parametrize(("cores", "workers"), [(3, 3), (64, 8), (None, 1)])
def test_by_default_one_process_per_core_decodes_but_at_most_eight(cores, workers, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert Toy().num_workers == workers
    assert Toy(num_workers=0).num_workers == 0


@pytest.mark.parametrize(("memory_limit", "loader"), [(1.0, MemoryLoader), (0.0, StreamLoader)])
def test_files_are_decoded_into_memory_if_they_fit_and_streamed_otherwise(memory_limit, loader, image_files):
    class Files(Toy):
        image_size = (7, 11)

        def load_sets(self):
            return {"train": self.decode_or_stream(image_files, 13)}

    data = ready(Files, memory_limit=memory_limit, num_workers=0, batch_size=13, val_fraction=0.25)
    (kept,) = cache_folder().iterdir()
    assert (kept.stat().st_size > 13 * 105) == (loader is MemoryLoader)
    for stage, batches in (("train", data.train_dataloader()), ("val", data.val_dataloader())):
        assert type(batches) is loader
        kept_and_held_out = stratified_split(torch.tensor(image_files.labels), 0.25)
        indices = kept_and_held_out[stage == "val"]
        ((images, labels),) = batches
        assert sorted(rows(images)) == sorted(rows([image_files[index][0] for index in indices]))
        assert sorted(labels.tolist()) == sorted(image_files.labels[index] for index in indices)


@pytest.mark.parametrize(("total", "decoded"), [(20, True), (21, False)])
def test_the_images_of_all_splits_together_fit_in_memory_up_to_the_limit_in_gigabytes(image_files, total, decoded):
    data = Toy(memory_limit=105e-9 * 20, num_workers=0)
    assert isinstance(data.decode_or_stream(image_files, total).images, torch.Tensor) is decoded


class Unbalanced(Toy):
    """Thirty-one training images in classes of 19, 8 and 4."""

    def load_sets(self):
        return {"train": ImageSet(IMAGES[:31], torch.tensor([0] * 19 + [1] * 8 + [2] * 4))}


def test_classes_may_be_drawn_equally_often_and_by_default_all_images_count_alike():
    data = ready(Unbalanced, val_fraction=0.0, balance="sampling", batch_size=31)
    ((_, labels),) = data.train_dataloader()
    assert sorted(labels.bincount().tolist()) == [10, 10, 11]
    assert data.class_weights is None
    plain = ready(Unbalanced, val_fraction=0.0, batch_size=31)
    ((_, labels),) = plain.train_dataloader()
    assert labels.bincount().tolist() == [19, 8, 4]
    assert plain.class_weights is None


def test_classes_may_have_weights_inverse_to_their_training_images():
    data = ready(Unbalanced, val_fraction=0.25, balance="loss")
    labels = data.sets["train"].labels
    assert labels.bincount().tolist() == [14, 6, 3]
    weights = data.class_weights
    assert (weights * labels.bincount()).tolist() == pytest.approx([23 / 3] * 3)
    assert weights[labels].mean() == pytest.approx(1)
    ((_, drawn),) = ready(Unbalanced, val_fraction=0.0, balance="loss", batch_size=31).train_dataloader()
    assert drawn.bincount().tolist() == [19, 8, 4]


def test_weights_of_classes_have_the_mean_one_over_the_images_also_if_a_class_has_none():
    class Lacking(Toy):
        num_classes = 4
        class_names = ("a", "b", "c", "d")

        def load_sets(self):
            return {"train": ImageSet(IMAGES[:31], torch.tensor([0] * 19 + [1] * 8 + [3] * 4))}

    data = ready(Lacking, val_fraction=0.0, balance="loss")
    labels = data.sets["train"].labels
    assert data.class_weights[labels].mean() == pytest.approx(1)
    assert (data.class_weights * labels.bincount()).tolist() == pytest.approx([31 / 3, 31 / 3, 0, 31 / 3])


@pytest.mark.parametrize(("batch_size", "world_size", "left_out"), [(5, 1, 2), (37, 1, 0), (128, 1, 0), (5, 3, 7)])
def test_the_images_that_fill_no_batch_are_counted(batch_size, world_size, left_out):
    data = ready(batch_size=batch_size, val_fraction=0.0)
    data.trainer = SimpleNamespace(global_rank=0, world_size=world_size)
    assert data.left_out == left_out


def test_each_process_takes_its_share_of_a_batch_on_its_device():
    data = ready(batch_size=5, val_fraction=0.0)
    strategy = SimpleNamespace(root_device=torch.device("meta"))
    data.trainer = SimpleNamespace(global_rank=1, world_size=3, strategy=strategy, overfit_batches=0)
    loader = data.train_dataloader()
    assert loader.images.is_meta
    expected = BatchSampler(37, 5, shuffle=True, rank=1, world_size=3)
    assert [batch.tolist() for batch in loader.sampler] == [batch.tolist() for batch in expected]


class Recorder(LightningModule):
    """A model without training that records its batches."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.seen = {"train": [], "val": [], "test": []}

    def training_step(self, batch):
        self.seen["train"].append(batch)

    def validation_step(self, batch):
        self.seen["val"].append(batch)

    def test_step(self, batch):
        self.seen["test"].append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


@pytest.fixture
def trainer(tmp_path):
    def make(**kwargs):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return Trainer(
            accelerator="cpu", devices=1, num_sanity_val_steps=0, default_root_dir=tmp_path, **quiet, **kwargs
        )

    return make


def test_lightning_takes_the_batches_of_every_stage(trainer):
    recorder, data = Recorder(), Toy(batch_size=5)
    run = trainer(max_epochs=2, enable_checkpointing=False)
    run.fit(recorder, datamodule=data)
    run.test(recorder, datamodule=data, verbose=False)
    assert {stage: len(batches) for stage, batches in recorder.seen.items()} == {"train": 12, "val": 2, "test": 2}


@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_lightning_fits_without_validation_images(trainer):
    recorder = Recorder()
    trainer(max_epochs=1, enable_checkpointing=False).fit(recorder, datamodule=Toy(batch_size=5, val_fraction=0.0))
    assert len(recorder.seen["train"]) == 7
    assert recorder.seen["val"] == []


def test_each_image_is_in_the_test_of_one_fold_and_no_fold_has_named_test_images(capsys):
    tested = []
    for fold in range(5):
        sets = ready(folds=5, fold=fold, val_fraction=0.2, seed=fold).sets
        parts = [labelled(sets[stage]) for stage in ("train", "val", "test")]
        assert sorted(row for part in parts for row in part) == sorted(labelled(ImageSet(IMAGES[:37], LABELS[:37])))
        assert (sets["test"].labels.bincount(minlength=3) >= 2).all()
        assert [rows(IMAGES[int(number)][None]) for number in sets["test"].files] == [
            [image] for image in rows(sets["test"].images)
        ]
        tested += parts[2]
    assert sorted(tested) == sorted(labelled(ImageSet(IMAGES[:37], LABELS[:37])))
    assert (
        capsys.readouterr().out.splitlines()
        == ["10 test images that the data name are left out: the folds are parts of the others"] * 5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 5}, "fold (None) must be a whole number from 0 to 4, one of 5 folds"),
        ({"folds": 5, "fold": 5}, "fold (5) must be a whole number from 0 to 4, one of 5 folds"),
        ({"folds": 5, "fold": -1}, "fold (-1) must be a whole number from 0 to 4, one of 5 folds"),
        ({"folds": 5, "fold": True}, "fold (True) must be a whole number from 0 to 4, one of 5 folds"),
        ({"folds": 1, "fold": 0}, "folds (1) must be at least 2: one part is for test, and the others for training"),
        ({"folds": 0, "fold": 0}, "folds (0) must be a positive whole number: 5 is usual"),
        ({"fold": 0}, "fold (0) is one of several: add their number, such as --data.folds 5"),
    ],
)
def test_a_fold_that_is_none_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Toy(**arguments)
