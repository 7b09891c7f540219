"""Images in one folder per class."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.photographs import damage, make_photographs
from vit.data import ImageFolder
from vit.data.image_files import ImageFiles, decode

COUNTS = {"ant": 11, "bee": 7, "cow": 5}


@pytest.fixture
def plant(write_image, tmp_path):
    """Write a tree of images: class folders with these numbers of images below a folder."""

    def plant(folder=".", counts=None, **options):
        for name, count in (counts or COUNTS).items():
            for number in range(count):
                write_image(f"root/{folder}/{name}/{number:02}.png", **options)
        return tmp_path / "root"

    return plant


def ready(root, **kwargs):
    data = ImageFolder(str(root), num_workers=0, **kwargs)
    data.setup("fit")
    return data


def rows(images):
    """Each image as one hashable value."""
    return [tuple(image.flatten().tolist()) for image in images]


def content(folder):
    """All images of a folder of class folders, with the number of their class."""
    names = sorted(path.name for path in folder.iterdir())
    return sorted(
        (tuple(decode(path, None, 3).flatten().tolist()), label)
        for label, name in enumerate(names)
        for path in (folder / name).iterdir()
    )


def labelled(part):
    return sorted(zip(rows(part.images), part.labels.tolist(), strict=True))


@pytest.mark.parametrize("held_out", [["val"], ["test"], ["val", "test"]])
def test_each_split_has_the_images_of_its_folder(plant, held_out):
    for folder in ["train", *held_out]:
        root = plant(folder)
    sets = ready(root, val_fraction=0.0).sets
    assert sets.keys() == {"train", *held_out}
    for stage in sets:
        assert labelled(sets[stage]) == content(root / stage)


def test_classes_whose_names_look_alike_are_told(write_image, tmp_path, capsys):
    for name in ("Cat", "cat", "caf\u00e9", "cafe\u0301", "dog", "1", "01", "1.0", "2", "n1"):
        write_image(f"root/{name}/0.png")
        write_image(f"root/{name}/1.png")
    assert len(ImageFolder(str(tmp_path / "root")).class_names) == 10
    said = capsys.readouterr().out
    assert "note: 'Cat' and 'cat' are 2 classes here: if they are one, give them the same name" in said
    assert "note: '01' and '1' and '1.0' are 3 classes here: if they are one, give them the same name" in said
    assert (said.count("are 2 classes here"), "dog" in said, "n1" in said) == (2, False, False)


@pytest.mark.parametrize("named", [["val", "test"], ["test"], ["test", "cat", "dog"]])
def test_splits_without_one_for_training_are_not_taken_for_classes(plant, named):
    for name in named:
        root = plant(name)
    with pytest.raises(
        ValueError, match=f"root has a folder {named[0]} and no folder train, which a split needs: move"
    ):
        ImageFolder(str(root))


def test_validation_images_are_held_out_of_train_without_a_folder_of_them(plant):
    plant("train")
    root = plant("test")
    sets = ready(root, val_fraction=0.2).sets
    assert sets["val"].labels.bincount().tolist() == [2, 1, 1]
    assert sorted(labelled(sets["train"]) + labelled(sets["val"])) == content(root / "train")
    assert labelled(sets["test"]) == content(root / "test")


def test_one_tree_is_split_in_three_whatever_the_seed(plant):
    root = plant()
    sets, other = (ready(root, test_fraction=0.4, val_fraction=0.2, seed=seed).sets for seed in (0, 1))
    assert sets["test"].labels.bincount().tolist() == [4, 3, 2]
    assert sets["val"].labels.bincount().tolist() == [1, 1, 1]
    assert sorted(item for part in sets.values() for item in labelled(part)) == content(root)
    assert rows(other["test"].images) == rows(sets["test"].images)


def test_one_tree_has_no_test_images_if_the_fraction_is_zero(plant):
    root = plant()
    data = ready(root, test_fraction=0.0, val_fraction=0.0)
    assert labelled(data.sets["train"]) == content(root)
    with pytest.raises(ValueError, match="ImageFolder has no test images"):
        data.test_dataloader()


@pytest.mark.parametrize("layout", [["."], ["train", "test"], ["train", "val", "test"]])
def test_a_set_over_the_memory_limit_is_streamed_with_the_same_batches(plant, layout):
    for folder in layout:
        root = plant(folder)
    options = {"batch_size": 3, "crop_padding": 2, "flip": True, "policy": "trivialaugment", "seed": 5}
    memory, stream = (ready(root, memory_limit=limit, **options) for limit in (1.0, 1e-9))
    assert all(isinstance(part.images, torch.Tensor) for part in memory.sets.values())
    assert all(isinstance(part.images, ImageFiles) for part in stream.sets.values())
    assert memory.sets.keys() == stream.sets.keys()
    for stage in memory.sets:
        from_memory, from_files = (getattr(data, f"{stage}_dataloader")() for data in (memory, stream))
        for (images, labels), (images_again, labels_again) in zip(from_memory, from_files, strict=True):
            assert torch.equal(images, images_again)
            assert torch.equal(labels, labels_again)


def test_the_memory_limit_holds_for_all_splits_together(plant):
    plant("train")
    root = plant("test")
    size = 3 * 7 * 11 * 23e-9
    assert isinstance(ready(root, memory_limit=1.9 * size).sets["test"].images, ImageFiles)
    assert isinstance(ready(root, memory_limit=2.1 * size).sets["test"].images, torch.Tensor)


def test_nested_images_are_found_and_other_files_are_ignored(plant, write_image):
    root = plant()
    write_image("root/ant/2024/may/deep.JPEG")
    (root / "ant/notes.txt").write_text("no image")
    (root / "ant/.hidden.png").write_text("no image")
    (root / "readme.md").write_text("no image")
    write_image("root/.trash/a.png")
    (root / "empty").mkdir()
    data = ready(root, val_fraction=0.0, test_fraction=0.0)
    assert (data.class_names, data.num_classes) == (["ant", "bee", "cow"], 3)
    assert data.sets["train"].labels.bincount().tolist() == [12, 7, 5]


def test_images_of_one_modest_size_keep_it_without_a_word(plant, capsys):
    data = ready(plant())
    assert data.image_size == (7, 11)
    assert data.sets["train"].images.shape[1:] == (3, 7, 11)
    assert "image_size" not in capsys.readouterr().out


def test_images_of_several_sizes_become_squares_and_the_reason_is_said(plant, write_image, capsys):
    root = plant(size=(70, 83))
    write_image("root/ant/00.png", size=(13, 5))
    data = ready(root)
    assert data.image_size == (64, 64)
    assert data.sets["train"].images.shape[1:] == (3, 64, 64)
    line = "image_size (64, 64): 23 images have shorter sides of 5 to 70 pixels, median 70; --data.image_size overrules"
    assert capsys.readouterr().out.splitlines()[0] == line


@pytest.mark.parametrize(("image_size", "expected"), [(13, (13, 13)), ((13, 3), (13, 3)), ([13, 3], (13, 3))])
def test_images_are_scaled_to_the_given_size(plant, image_size, expected, capsys):
    data = ready(plant(), image_size=image_size)
    assert "image_size" not in capsys.readouterr().out
    assert data.image_size == expected
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape[1:] == (3, *expected)


def test_grey_images_have_one_channel(plant):
    data = ready(plant(mode="L"))
    assert data.in_channels == len(data.mean) == len(data.std) == 1
    assert data.sets["train"].images.shape[1:] == (1, 7, 11)


def test_a_grey_image_among_coloured_ones_becomes_one_of_three_channels(plant):
    root = plant()
    Image.new("L", (11, 7)).save(root / "ant/00.png")
    data = ready(root)
    assert data.in_channels == len(data.mean) == len(data.std) == 3
    assert data.sets["train"].images.shape[1:] == (3, 7, 11)


@pytest.mark.parametrize("given", [{}, {"mean": [0.1, 0.2, 0.6], "std": [0.2, 0.2, 0.5]}])
def test_the_statistics_are_those_given_or_of_imagenet_and_their_mean_for_grey(plant, given):
    colour, grey = ImageFolder(str(plant("a") / "a"), **given), ImageFolder(str(plant("b", mode="L") / "b"), **given)
    assert colour.mean == given.get("mean", [0.485, 0.456, 0.406])
    assert colour.std == given.get("std", [0.229, 0.224, 0.225])
    assert grey.mean == pytest.approx([np.mean(colour.mean)])
    assert grey.std == pytest.approx([np.mean(colour.std)])


def test_grey_images_are_read_in_colour_for_a_model_with_the_statistics_that_were_given(plant, capsys):
    given = {"mean": [0.1, 0.2, 0.6], "std": [0.2, 0.2, 0.5]}
    data = ImageFolder(str(plant(mode="L")), num_workers=0, **given)
    data.read_as(3)
    data.setup("fit")
    assert {"mean": data.mean, "std": data.std} == given
    assert data.sets["train"].images.shape[1:] == (3, 7, 11)
    assert f"images of {data.root} are read in colour, as the model takes them" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["val", "test"])
def test_classes_that_differ_between_splits_are_named(plant, stage):
    plant("train")
    root = plant(stage, {"ant": 2, "bee": 2, "dog": 2})
    message = (
        f"^classes differ between {root / 'train'} and {root / stage}: only one of them has cow, dog; "
        "give both the same class folders$"
    )
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(root))


@pytest.mark.parametrize(("name", "stage"), [("Train", "train"), ("training", "train"), ("valid", "val")])
def test_a_folder_that_looks_like_a_split_is_no_class(plant, name, stage):
    plant("train")
    root = plant(name)
    with pytest.raises(
        ValueError, match=f"{name} looks like a split, which is read from {stage} only: rename it to {stage}"
    ):
        ImageFolder(str(root))


@pytest.mark.parametrize(
    ("one", "other"), [("training_set", "test_set"), ("seg_train/seg_train", "seg_test/seg_test"), ("dev", "holdout2")]
)
def test_folders_with_the_same_classes_and_words_of_splits_are_no_classes(plant, one, other):
    plant(one, {"ant": 2, "bee": 2})
    root = plant(other, {"ant": 1, "bee": 1})
    folders = sorted(root / name.partition("/")[0] for name in (one, other))
    message = f"{folders[0]} and {folders[1]} look like splits, as both have images of ant, bee: rename them to train"
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(root))


@pytest.mark.parametrize(
    ("one", "other"),
    [("cats", "dogs"), ("trains", "planes"), ("test_tube", "flask"), ("freight_train", "bullet_train")],
)
def test_classes_may_have_folders_of_the_same_names(plant, one, other):
    plant(one, {"indoors": 2, "outdoors": 2})
    root = plant(other, {"indoors": 2, "outdoors": 2})
    assert ImageFolder(str(root)).class_names == sorted([one, other])


@pytest.mark.parametrize("known", [None, ["bee", "train"]])
def test_a_class_named_train_is_not_taken_for_the_split(plant, known):
    root = plant(counts={"train": 3, "bee": 3})
    message = (
        f"^{root}/train has no class folders, and {root}/bee beside it has images: if train is a class, make a new "
        f"folder and move all class folders into its folder train, as train/train and train/bee; if not, move "
        f"{root}/bee elsewhere$"
    )
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(root), class_names=known)
    moved = root.with_name("new")
    (moved / "train").mkdir(parents=True)
    for name in ("train", "bee"):
        (root / name).rename(moved / "train" / name)
    assert ImageFolder(str(moved)).class_names == ["bee", "train"]


@pytest.mark.parametrize("stage", ["val", "test"])
@pytest.mark.parametrize("has_classes", [True, False])
def test_a_split_without_images_is_left_out_and_said_to_be(plant, tmp_path, stage, has_classes):
    root = plant("train") if has_classes else flat(tmp_path / "root", splits=("train",))
    (root / stage).mkdir()
    (root / stage / ".gitkeep").touch()
    data = ready(root, val_fraction=0.2)
    assert sorted(data.sets) == ["test", "train", "val"]  # as if it was not there
    assert f"  1 split without images ({stage})" in data.inventory.lines


def test_a_split_whose_images_are_all_damaged_is_one_line(plant):
    plant("train")
    root = plant("test")
    for path in (root / "test").rglob("*.png"):
        path.write_text("no image")
    message = f"^cannot read any of the 23 test images of {root}, such as {root}/test/ant/00.png: replace them, or"
    with pytest.raises(ValueError, match=message):
        ready(root, skip_damaged=True)


def test_one_class_alone_is_named_to_a_classifier_and_is_none_without(plant):
    data = ImageFolder(str(plant("images")))
    assert data.without_classes.endswith("are of one class (images): name the folder that holds the class folders")
    assert (data.num_classes, data.class_names) == (0, [])


def flat(root, *, splits=("",), depth=""):
    for split in splits:
        for number in range(10):
            path = root / split / depth / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((9, 8), 10 * number + len(split) + 1).save(path)
    return root


@pytest.mark.parametrize("depth", ["", "2024/may/left"])
def test_images_in_no_class_folder_are_held_out_as_others_are(tmp_path, depth, cache_home):
    data = ready(flat(tmp_path / "images", depth=depth))
    assert {stage: len(part.labels) for stage, part in data.sets.items()} == {"train": 7, "val": 1, "test": 2}
    assert data.num_classes == 0
    assert str(data.inventory) == f"images of {tmp_path / 'images'}: 7 train, 1 val, 2 test"


def test_images_in_no_class_folder_may_be_split_and_what_else_lies_there_is_told(tmp_path, cache_home):
    root = flat(tmp_path / "images", splits=("train", "test"))
    (root / "train/notes.txt").touch()
    (root / "stray.png").touch()
    data = ready(root, val_fraction=0.0)
    assert {stage: len(part.labels) for stage, part in data.sets.items()} == {"train": 10, "test": 10}
    assert data.inventory.lines[1] == "left out: 2"
    assert "beside train, val and test (stray.png)" in str(data.inventory)


def test_images_in_no_class_folder_beside_class_folders_are_left_out(plant):
    root = plant("train")
    Image.new("RGB", (8, 8)).save(root / "train/loose.png")
    data = ImageFolder(str(root))
    assert data.without_classes is None
    assert data.not_read["in no class folder"] == [root / "train/loose.png"]


def test_a_split_with_classes_beside_one_without_is_refused(plant):
    root = flat(plant("test"), splits=("train",))
    with pytest.raises(ValueError, match="no class folders with images in"):
        ImageFolder(str(root))


def labels_of(data):
    return {stage: part.labels.bincount(minlength=data.num_classes).tolist() for stage, part in data.sets.items()}


def test_of_few_images_one_is_for_training_the_second_for_validation_and_the_third_for_test(plant, capsys):
    data = ready(plant(counts={"ant": 1, "bee": 2, "cow": 3, "dog": 4}))
    assert labels_of(data) == {"train": [1, 1, 1, 2], "val": [0, 1, 1, 1], "test": [0, 0, 1, 1]}
    out = capsys.readouterr().out
    assert "no val image of ant: add images, or its accuracy stays unknown" in out
    assert "no test image of ant, bee: add images, or its accuracy stays unknown" in out


def test_without_validation_the_second_image_is_for_test_and_with_it_none(plant):
    root = plant(counts={"ant": 1, "bee": 2})
    assert labels_of(ready(root, val_fraction=0.0)) == {"train": [1, 1], "test": [0, 1]}
    root = plant(counts={"ant": 2})
    with pytest.raises(ValueError, match=r"test_fraction \(0.2\) of 4 images holds out none: add images, or set 0"):
        ready(root)


@pytest.mark.parametrize(("world_size", "arrays"), [(1, 0), (2, 2)])
def test_if_several_processes_train_one_of_them_decodes_before(plant, cache_home, world_size, arrays):
    plant("train")
    data = ImageFolder(str(plant("test")), num_workers=0)
    data.trainer = SimpleNamespace(world_size=world_size)
    data.prepare_data()
    assert len(list(cache_home.rglob("*.safetensors"))) == arrays


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=f"^no folder {tmp_path / 'gone'}: name the data by --data.root, or try --data D"
    ):
        ImageFolder(str(tmp_path / "gone"))


@pytest.mark.parametrize("made", [".", "train", "ant", ".git"])
def test_a_folder_without_class_folders_is_named_with_what_it_needs(tmp_path, made):
    (tmp_path / made).mkdir(exist_ok=True)
    (tmp_path / made / "notes.txt").touch()
    message = f"^no class folders with images in {tmp_path}: it needs CLASS/image.jpg or train/CLASS/image.jpg, "
    message += "or without labels any image files$"
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(tmp_path))


MEMORY_AND_STREAM = pytest.mark.parametrize("memory_limit", [1.0, 1e-9])


@MEMORY_AND_STREAM
def test_all_damaged_images_are_named_before_the_training(plant, memory_limit):
    root = plant("train")
    for name, content in (("ant/00", b""), ("bee/03", b"no image"), ("cow/04", b"P6 1!3 7 255 ")):
        (root / f"train/{name}.png").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"replace or delete the files, or leave them out by --data.skip_damaged true"
    ) as e:
        ready(root, memory_limit=memory_limit)
    named = [line.split(":")[0] for line in str(e.value).split("; ")]
    assert named == [f"cannot read image {root}/train/{name}.png" for name in ("ant/00", "bee/03", "cow/04")]


@MEMORY_AND_STREAM
def test_damaged_images_may_be_left_out(plant, memory_limit, capsys):
    root = plant()
    options = {"memory_limit": memory_limit, "val_fraction": 0.2, "batch_size": 3, "skip_damaged": True}
    whole = sorted(item for part in ready(root, **options).sets.values() for item in served(part))
    gone = decode(root / "bee/03.png", None, 3)
    (root / "bee/03.png").write_text("no image")
    data = ready(root, **options)
    left = sorted(item for part in data.sets.values() for item in served(part))
    assert left == sorted({*whole} - {(tuple(gone.flatten().tolist()), 1)})
    assert len(left) == 22
    assert "left out 1 of 23 files:\n  cannot read image" in capsys.readouterr().out
    assert all(len(labels) == 3 for _, labels in data.train_dataloader())


def served(part):
    """All images and labels of a split, in memory or as files."""
    images = part.images
    if isinstance(images, ImageFiles):
        images = torch.stack([images[index][0] for index in range(len(images))])
    return sorted(zip(rows(images), part.labels.tolist(), strict=True))


def test_of_many_classes_without_an_image_the_first_are_named_and_the_others_counted(plant):
    known = [*COUNTS, *(f"n{number:02}" for number in range(13))]
    data = ImageFolder(str(plant("train")), class_names=known, num_workers=0)
    with pytest.raises(ValueError, match="image of n00, n01, n02, n03, n04, n05, n06, n07, n08, n09 and 3 more: add"):
        data.setup("fit")


def test_a_class_whose_images_are_all_damaged_is_an_error(plant):
    root = plant()
    for path in (root / "cow").iterdir():
        path.write_text("no image")
    with pytest.raises(ValueError, match=r"^no readable training image of cow: add images, or delete the class$"):
        ready(root, skip_damaged=True)


@MEMORY_AND_STREAM
def test_validation_and_test_images_are_the_centre_of_larger_ones(plant, memory_limit):
    root = plant(size=(29, 37))
    options = {"image_size": (7, 11), "val_fraction": 0.2, "memory_limit": memory_limit, "crop_scale": (0.35, 1.0)}
    data = ready(root, **options, crop_ratio=0.5)
    assert (data.image_size, data.stored_size) == ((7, 11), (14, 22))
    larger = {
        pixels for part in ready(root, **options | {"image_size": (14, 22)}).sets.values() for pixels, _ in served(part)
    }
    centres = {tuple(torch.tensor(pixels).reshape(3, 14, 22)[:, 4:11, 6:17].flatten().tolist()) for pixels in larger}
    for stage in ("val", "test"):
        assert {pixels for pixels, _ in served(data.sets[stage])} <= centres
        ((images, _),) = getattr(data, f"{stage}_dataloader")()
        assert images.shape[1:] == (3, 7, 11)
    assert {pixels for pixels, _ in served(data.sets["train"])} <= larger
    ((images, _),) = data.train_dataloader()
    assert images.shape[1:] == (3, 7, 11)


def test_without_random_crops_training_images_are_centres_too(plant):
    data = ready(plant(size=(29, 37)), image_size=(7, 11), crop_ratio=0.5)
    assert data.sets["train"].images.shape[1:] == (3, 7, 11)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"image_size": 0}, "image_size (0) must be a positive whole number, or two of them (rows, columns)"),
        (
            {"image_size": (8, -8)},
            "image_size ((8, -8)) must be a positive whole number, or two of them (rows, columns)",
        ),
        ({"crop_ratio": 0.05}, "crop_ratio (0.05) must be from 0.1 to 1: 1 keeps whole images"),
        ({"crop_ratio": 1.5}, "crop_ratio (1.5) must be from 0.1 to 1: 1 keeps whole images"),
        ({"test_fraction": 1.0}, "test_fraction (1.0) must be in [0, 1): 0.2 holds out one image in five"),
        ({"test_fraction": -0.1}, "test_fraction (-0.1) must be in [0, 1): 0.2 holds out one image in five"),
        ({"mean": [0.5, 128.0]}, "mean (128.0) must be in [0, 1]: it is of pixels from 0 to 1"),
        ({"std": [0.0]}, "std (0.0) must be in (0, 1]: it is of pixels from 0 to 1"),
    ],
)
def test_an_argument_out_of_its_range_is_named(plant, option, message):
    root = plant()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ImageFolder(str(root), **option)


def test_photographs_as_people_have_them_are_trained_on(tmp_path, capsys):
    root = make_photographs(tmp_path / "photos", per_class=(7, 5, 5, 3, 2), scale=0.1)
    damaged = damage(root)
    with pytest.raises(ValueError, match=f"^cannot read image {damaged[0]}: it is no image; .*; .*: replace"):
        ready(root)
    data = ready(root, skip_damaged=True, image_size=24, crop_scale=(0.35, 1.0), crop_ratio=0.8, balance="sampling")
    assert data.class_names == ["flower", "leaves", "sky", "temple", "trees"]
    assert data.in_channels == 3
    assert labels_of(data) == {"train": [5, 3, 3, 1, 1], "val": [1] * 5, "test": [1, 1, 1, 1, 0]}
    ((images, labels),) = data.train_dataloader()
    assert images.shape == (13, 3, 24, 24)
    assert sorted(labels.bincount().tolist()) == [2, 2, 3, 3, 3]
    assert ImageFolder(str(root)).image_size == (64, 64)
    assert "image_size (64, 64): 22 images have shorter sides of 3" in capsys.readouterr().out


@pytest.mark.parametrize("folders", [["."], ["train"], ["train", "val", "test"]])
def test_folds_are_cut_of_all_images_but_those_of_the_test_folder(plant, folders):
    for folder in folders:
        root = plant(folder)
    expected = sorted(row for folder in folders if folder != "test" for row in content(root / folder))
    tested = [labelled(ready(root, folds=3, fold=fold).sets["test"]) for fold in range(3)]
    assert sorted(row for part in tested for row in part) == expected


def test_images_keep_the_names_of_their_files_below_the_root(plant):
    data = ready(plant(), test_fraction=0.3, val_fraction=0.3)
    for part in data.sets.values():
        for index in range(len(part.labels)):
            place, _ = part.name(index).split("/")
            assert data.class_names[part.labels[index]] == place
            path = data.root / part.name(index)
            assert torch.equal(part.images[index], decode(path, data.image_size, data.in_channels))


def test_the_names_of_a_model_number_the_classes_of_a_part_of_them(plant):
    plant("train", {"bee": 3})
    root = plant("test", {"cow": 2, "bee": 1})
    data = ImageFolder(str(root), class_names=["bee", "ant", "cow"], num_workers=0, val_fraction=0)
    data.setup("test")
    assert (data.class_names, data.num_classes) == (["bee", "ant", "cow"], 3)
    assert data.sets["test"].labels.tolist() == [0, 2, 2]


def test_a_single_tree_of_a_part_of_the_classes_is_tested_whole_and_says_so(plant, capsys):
    root = str(plant())
    for stage, split in (("test", "test"), ("validate", "val")):
        data = ImageFolder(root, class_names=[*COUNTS, "dog"], num_workers=0)
        data.setup(stage)
        assert {name: len(part.labels) for name, part in data.sets.items()} == {split: sum(COUNTS.values())}
        told = capsys.readouterr().out
        assert f"images of 4 classes in {root}: 23 {split}\n" in told
        assert "has a part of the classes: all 23 images are evaluated, also those that" in told


def test_no_fold_is_cut_out_of_a_part_of_the_classes(plant, capsys):
    data = ImageFolder(str(plant()), class_names=[*COUNTS, "dog"], num_workers=0, folds=3, fold=0)
    data.setup("test")
    assert len(data.sets["test"].labels) == sum(COUNTS.values())
    assert "left out" not in capsys.readouterr().out


def test_folds_of_a_folder_without_training_images_are_refused(plant):
    data = ImageFolder(str(plant("test")), class_names=[*COUNTS], num_workers=0, folds=3, fold=0)
    with pytest.raises(
        ValueError, match=r"folds \(3\) are parts of the training images, and .* has none: add --data.f"
    ):
        data.setup("test")


def test_test_images_alone_are_enough_for_a_model_and_not_for_a_training(plant):
    root = plant("test")
    data = ImageFolder(str(root), class_names=[*COUNTS], num_workers=0)
    data.setup("test")
    assert set(data.sets) == {"test"}
    data = ImageFolder(str(root), class_names=[*COUNTS], num_workers=0)
    with pytest.raises(ValueError, match="has no folder train, and a training needs one: add it, or run test instead"):
        data.setup("fit")


def test_a_class_that_the_model_does_not_know_is_named_with_the_name_that_is_like_it(plant):
    message = (
        r"root has images of cow \(did you mean cows\?\), and the model knows ant, bee, cows: name each class "
        "as one of these, or train a model of your classes by --model.init_from$"
    )
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(plant()), class_names=["ant", "bee", "cows"])


def test_a_training_that_goes_on_needs_images_of_every_class(plant, capsys):
    data = ImageFolder(str(plant()), class_names=[*COUNTS, "dog"], num_workers=0)
    with pytest.raises(ValueError, match="no readable training image of dog: add images, or delete the class"):
        data.setup("fit")
    assert "are evaluated" not in capsys.readouterr().out


def test_a_validation_needs_validation_images(plant):
    data = ImageFolder(str(plant("test")), class_names=[*COUNTS], num_workers=0)
    with pytest.raises(
        ValueError, match=r"no validation images: hold some out by --data.val_fraction 0\.1, or run test"
    ):
        data.setup("validate")
