from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import vit
from vit.analysis.labelled import is_split_of_training, labelled_images
from vit.data import Digits, ImageFolder
from vit.data.image_files import ImageFiles

DIGITS = {"class_path": "vit.data.Digits", "init_args": {"val_fraction": 0.2, "crop_padding": 1, "batch_size": 3}}
NAMES = ["cat", "dog"]


def model_of(class_names, **kwargs):
    arguments = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3} | kwargs
    model = vit.VisionTransformer(**arguments, num_classes=len(class_names or [0, 1])).eval()
    channels = model.patch_embed.in_channels
    statistics = {"mean": [0.25] * channels, "std": [0.5] * channels, "crop_ratio": 1.0}
    model.pretrained_cfg = {"class_names": class_names, **statistics}
    return model


def of_digits():
    return model_of(Digits.class_names, in_channels=1)


@pytest.fixture
def photos(tmp_path):
    """Ten pictures in each of two class folders; those of dogs are bright."""
    for name, level in zip(NAMES, (10, 200), strict=True):
        for number in range(10):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (level, level, level)).save(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("folds", [{}, {"folds": 3, "fold": 1}])
def test_the_data_of_the_checkpoint_are_split_as_in_its_training(folds):
    noted = DIGITS | {"init_args": DIGITS["init_args"] | folds}
    name, trained_on, held_out, _ = labelled_images(of_digits(), noted, None, 10_000)
    data = Digits(val_fraction=0.2, **folds)
    data.setup("fit")
    assert name == "Digits"
    for found, stage in ((trained_on, "train"), (held_out, "test")):
        assert len(found.labels) == len(data.sets[stage].labels)
        assert found.labels.bincount().tolist() == data.sets[stage].labels.bincount().tolist()
        pixels = (found.images * 0.5 + 0.25) * 255
        assert pixels.sum().item() == pytest.approx(data.sets[stage].images.sum().item(), rel=1e-4)


def test_as_many_images_as_asked_for_are_drawn_at_random_and_always_the_same():
    draws = [labelled_images(of_digits(), DIGITS, None, 50) for _ in range(2)]
    for of_name in zip(*(draw[1:3] for draw in draws), strict=True):
        first, second = of_name
        assert first.images.shape == (50, 1, 8, 8)
        assert_close(first.images, second.images, rtol=0, atol=0)
    assert len(draws[0][1].labels.unique()) > 5


def test_a_folder_takes_the_place_of_the_data_and_is_scaled_to_the_model(photos):
    name, trained_on, held_out, _ = labelled_images(model_of(NAMES), DIGITS, str(photos), 100)
    assert name == f"ImageFolder {photos}"
    assert trained_on.images.shape[1:] == held_out.images.shape[1:] == (3, 8, 8)
    assert held_out.labels.sort().values.tolist() == [0, 0, 1, 1]
    expected = torch.tensor([(10 / 255 - 0.25) / 0.5, (200 / 255 - 0.25) / 0.5])[held_out.labels]
    assert_close(held_out.images[:, 0, 3, 3], expected, atol=1e-5, rtol=0)


def test_another_folder_or_kind_of_data_has_a_split_of_its_own(photos, subject):
    of_folder = {"class_path": "vit.data.ImageFolder", "init_args": {"root": str(photos)}}
    of_table = {"class_path": "vit.data.ImageTable", "init_args": {"root": str(photos), "table": "labels.csv"}}
    assert is_split_of_training(of_folder, None)
    assert is_split_of_training(of_folder, f"{photos}/../{photos.name}")
    for noted, root in ((of_folder, "elsewhere"), (of_table, str(photos)), (DIGITS, str(photos)), ({}, str(photos))):
        assert not is_split_of_training(noted, root)
    assert "of 7 images held out of the training" in subject.facts()[0]
    assert (
        "of 7 images that the model may have been trained on" in replace(subject, is_split_of_training=False).facts()[0]
    )
    assert "how this training began is not known" in " ".join(replace(subject, init=None).facts())
    assert "is not known" not in " ".join(replace(subject, init="glorot").facts())


def test_files_that_are_not_kept_in_memory_are_decoded(photos):
    noted = {"class_path": "vit.data.ImageFolder", "init_args": {"root": str(photos), "memory_limit": 0.0}}
    streamed = labelled_images(model_of(NAMES), noted, None, 100)
    noted["init_args"]["memory_limit"] = 1.0
    kept = labelled_images(model_of(NAMES), noted, None, 100)
    assert_close(streamed[2].images, kept[2].images, rtol=0, atol=0)


def test_only_the_drawn_images_of_a_folder_are_decoded(photos, monkeypatch):
    decoded = []
    decode = ImageFiles.decode
    monkeypatch.setattr(ImageFiles, "decode", lambda self, indices: decoded.extend(indices) or decode(self, indices))
    monkeypatch.setattr("vit.data.decoded_cache._decode_all", lambda *_: pytest.fail("all images are decoded"))
    _, trained_on, held_out, _ = labelled_images(model_of(NAMES), {}, str(photos), 3)
    assert len(decoded) == len(trained_on.labels) + len(held_out.labels) == 6


def test_where_damaged_files_were_left_out_the_splits_are_those_of_the_training(photos):
    for number in range(0, 10, 3):
        (photos / "cat" / f"{number}.png").write_bytes(b"no image")
    arguments = {"root": str(photos), "skip_damaged": True, "test_fraction": 0.4, "memory_limit": 0.0}
    data = ImageFolder(image_size=8, **arguments)
    data.setup("fit")
    _, _, held_out, _ = labelled_images(
        model_of(NAMES), {"class_path": "ImageFolder", "init_args": arguments}, None, 100
    )
    assert held_out.labels.bincount().tolist() == data.sets["test"].labels.bincount().tolist()


def test_a_damaged_image_that_is_drawn_is_named(photos):
    for path in (photos / "dog").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot read image .*dog"):
        labelled_images(model_of(NAMES), {}, str(photos), 100)


def test_a_model_without_names_takes_as_many_class_folders_as_it_has_classes(photos):
    _, _, held_out, _ = labelled_images(model_of(None), {}, str(photos), 100)
    assert held_out.labels.sort().values.tolist() == [0, 0, 1, 1]
    model = vit.VisionTransformer(8, 4, embed_dim=12, depth=1, num_heads=3, num_classes=5).eval()
    model.pretrained_cfg = {"class_names": None, "mean": [0.5] * 3, "std": [0.5] * 3, "crop_ratio": 1.0}
    with pytest.raises(ValueError, match=r"has 2 classes \(cat, dog\), and the model 5 without names: give a folder"):
        labelled_images(model, {}, str(photos), 5)


def test_validation_images_take_the_place_of_missing_test_images(photos):
    noted = {"class_path": "ImageFolder", "init_args": {"root": str(photos), "test_fraction": 0.0, "val_fraction": 0.3}}
    name, trained_on, held_out, _ = labelled_images(model_of(None), noted, None, 100)
    assert name == f"ImageFolder {photos}, validation images"
    assert (len(trained_on.labels), len(held_out.labels)) == (14, 6)
    noted["init_args"]["val_fraction"] = 0.0
    with pytest.raises(ValueError, match="neither test nor validation images"):
        labelled_images(model_of(None), noted, None, 100)


def test_grey_pictures_suit_a_model_of_one_channel(photos):
    _, _, held_out, _ = labelled_images(model_of(NAMES, in_channels=1), {}, str(photos), 100)
    assert held_out.images.shape[1] == 1


def test_a_table_is_read_again_and_several_labels_are_refused(photos):
    lines = [f"{name}/{number}.png,{name}" for name in NAMES for number in range(10)]
    (photos / "labels.csv").write_text("\n".join(["file,label", *lines]))
    noted = {"class_path": "vit.data.ImageTable", "init_args": {"table": str(photos / "labels.csv"), "root": None}}
    noted["init_args"] |= {"test_fraction": 0.4, "flip": True}
    name, _, held_out, _ = labelled_images(model_of(NAMES), noted, None, 100)
    assert (name, len(held_out.labels)) == (f"ImageTable {photos}", 8)
    (photos / "labels.csv").write_text("\n".join(["file,label", *lines, "cat/0.png,dog"]))
    with pytest.raises(ValueError, match="has several labels or a text for an image: name images of one class each"):
        labelled_images(model_of(NAMES), noted, None, 100)


def test_one_image_of_each_group_is_drawn(monkeypatch):
    groups = {}

    def setup(data, stage, usual=Digits.setup):
        usual(data, stage)
        for split, images in data.sets.items():
            data.sets[split] = replace(images, groups=torch.arange(len(images.labels)) // 3)
            groups[split] = data.sets[split]

    monkeypatch.setattr(Digits, "setup", setup)
    name, _, held_out, _ = labelled_images(of_digits(), DIGITS, None, 500)
    assert name == "Digits, one image of each group"
    assert len(held_out.labels) == len(groups["test"].groups.unique())


@pytest.mark.parametrize("noted", [{}, {"class_path": "os.system"}, {"class_path": "vit.data.UnsortedImages"}])
def test_without_known_data_a_folder_is_asked_for_and_nothing_is_imported(noted):
    with pytest.raises(ValueError, match="does not say what data it was trained on: name its folder by"):
        labelled_images(model_of(NAMES), noted, None, 5)


def test_classes_of_another_model_are_refused_with_both_lists(photos):
    with pytest.raises(
        ValueError, match=r"\(cat, dog\) are not those of the model \(0, 1, 2 and 7 more\): give the data"
    ):
        labelled_images(model_of(Digits.class_names), {}, str(photos), 5)


def test_classes_in_the_order_of_the_training_are_those_of_the_model(photos):
    arguments = {"root": str(photos), "class_names": [*reversed(NAMES)], "test_fraction": 0.4, "image_size": 8}
    noted = {"class_path": "ImageFolder", "init_args": arguments}
    _, _, held_out, _ = labelled_images(model_of([*reversed(NAMES)]), noted, None, 100)
    brightness = [held_out.images[held_out.labels == label].mean() for label in (0, 1)]
    assert brightness[0] > brightness[1]  # dogs are bright


def test_another_root_keeps_the_other_arguments_of_the_checkpoint(photos):
    noted = {"class_path": "ImageFolder", "init_args": {"root": "gone", "test_fraction": 0.4, "crop_scale": (0.3, 1)}}
    name, _, held_out, _ = labelled_images(model_of(NAMES), noted, str(photos), 100)
    assert name == f"ImageFolder {photos}"
    assert len(held_out.labels) == 8
    assert ImageFolder(str(photos)).class_names == NAMES


def test_photographs_are_stretched_for_a_model_that_takes_whole_pictures(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
        for number in range(10):
            image = Image.new("RGB", (64, 8), (255, 0, 0))
            image.paste((0, 0, 9), (16, 0, 48, 8))
            image.save(tmp_path / name / f"{number}.png")
    model = model_of(NAMES)
    model.pretrained_cfg["stretch"] = True
    held_out = labelled_images(model, {}, str(tmp_path), 10_000)[2]
    red = held_out.images[:, 0] * 0.5 + 0.25
    assert (red[:, :, [0, -1]] > 0.9).all()  # both ends
