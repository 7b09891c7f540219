"""Trees of image files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from vit.data import ImageFolder, UnsortedImages
from vit.data.files import ImageFiles, decode

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


def test_validation_images_are_held_out_of_train_without_a_folder_of_them(plant):
    plant("train")
    root = plant("test")
    sets = ready(root, val_fraction=0.2).sets
    assert sets["val"].labels.bincount().tolist() == [2, 1, 1]
    assert sorted(labelled(sets["train"]) + labelled(sets["val"])) == content(root / "train")
    assert labelled(sets["test"]) == content(root / "test")


def test_one_tree_is_split_in_three(plant):
    root = plant()
    sets = ready(root, test_fraction=0.4, val_fraction=0.2).sets
    assert sets["test"].labels.bincount().tolist() == [4, 3, 2]
    assert sets["val"].labels.bincount().tolist() == [1, 1, 1]
    assert sorted(item for part in sets.values() for item in labelled(part)) == content(root)


def test_one_tree_is_split_the_same_way_whatever_the_seed(plant):
    root = plant()
    first, other = (rows(ready(root, seed=seed).sets["test"].images) for seed in (0, 1))
    assert first == other


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


def test_classes_are_the_names_of_the_folders_in_order(plant):
    data = ImageFolder(str(plant()))
    assert data.class_names == ["ant", "bee", "cow"]
    assert data.num_classes == 3


def test_nested_images_are_found_and_other_files_are_ignored(plant, write_image):
    root = plant()
    write_image("root/ant/2024/may/deep.JPEG")
    (root / "ant/notes.txt").write_text("no image")
    (root / "ant/.hidden.png").write_text("no image")
    (root / "readme.md").write_text("no image")
    write_image("root/.trash/a.png")
    (root / "empty").mkdir()
    data = ready(root, val_fraction=0.0, test_fraction=0.0)
    assert data.class_names == ["ant", "bee", "cow"]
    assert data.sets["train"].labels.bincount().tolist() == [12, 7, 5]


def test_images_take_the_size_of_the_first(plant, write_image):
    root = plant()
    write_image("root/ant/00.png", size=(13, 5))
    data = ready(root)
    assert data.image_size == (13, 5)
    assert data.sets["train"].images.shape[1:] == (3, 13, 5)


def test_the_size_of_a_rotated_photo_is_its_upright_one(plant, write_image):
    root = plant()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    write_image("root/ant/00.png", size=(5, 13), exif=exif)
    assert ImageFolder(str(root)).image_size == (13, 5)


@pytest.mark.parametrize(("image_size", "expected"), [(13, (13, 13)), ((13, 3), (13, 3))])
def test_images_are_scaled_to_the_given_size(plant, image_size, expected):
    data = ready(plant(), image_size=image_size)
    assert data.image_size == expected
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape[1:] == (3, *expected)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16"])
def test_a_set_whose_first_image_is_grey_is_grey(plant, write_image, mode):
    root = plant(mode="L")
    grey = Image.fromarray(np.zeros((7, 11), dtype=np.uint16)) if mode == "I;16" else Image.new(mode, (11, 7))
    grey.save(root / "ant/00.png")
    data = ready(root)
    assert data.in_channels == len(data.mean) == len(data.std) == 1
    assert data.sets["train"].images.shape[1:] == (1, 7, 11)


def test_a_set_whose_first_image_is_in_colour_is_in_colour(plant):
    root = plant(mode="L")
    Image.new("P", (11, 7)).save(root / "ant/00.png")
    data = ready(root)
    assert data.in_channels == len(data.mean) == len(data.std) == 3
    assert data.sets["train"].images.shape[1:] == (3, 7, 11)


def test_the_statistics_are_those_of_imagenet_and_their_mean_for_grey(plant):
    colour, grey = ImageFolder(str(plant("a") / "a")), ImageFolder(str(plant("b", mode="L") / "b"))
    assert (colour.mean, colour.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert grey.mean == pytest.approx([np.mean(colour.mean)], abs=0.0005)
    assert grey.std == pytest.approx([np.mean(colour.std)], abs=0.0005)


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
        ValueError, match=f"{name} looks like a split and would be taken for a class: rename it to {stage}"
    ):
        ImageFolder(str(root))


def test_one_class_alone_is_named(plant):
    root = plant("images")
    with pytest.raises(ValueError, match=r"are of one class \(images\): name the folder that holds the class folders"):
        ImageFolder(str(root))


def test_a_test_fraction_that_holds_out_no_images_is_an_error(plant):
    root = plant(counts={"ant": 2, "bee": 2})
    with pytest.raises(ValueError, match=r"test_fraction \(0.2\) of 4 images holds out none: make it larger, or 0"):
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
    message = f"^no class folders with images in {tmp_path}: it needs CLASS/image.jpg or train/CLASS/image.jpg$"
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(tmp_path))


@pytest.mark.parametrize("damaged", [b"", b"no image", b"P6 1!3 7 255 "])
def test_a_first_image_that_is_damaged_is_named(plant, damaged):
    root = plant()
    (root / "ant/00.png").write_bytes(damaged)
    with pytest.raises(ValueError, match=f"^cannot read image {root / 'ant/00.png'}: "):
        ImageFolder(str(root))


@pytest.mark.parametrize("memory_limit", [1.0, 1e-9])
def test_a_later_image_that_is_damaged_is_named(plant, memory_limit):
    root = plant("train")
    (root / "train/bee/03.png").write_text("no image")
    with pytest.raises(ValueError, match=f"^cannot read image {root / 'train/bee/03.png'}: it is no image: replace or"):
        list(ready(root, memory_limit=memory_limit, val_fraction=0.0, batch_size=23).train_dataloader())


def test_a_test_fraction_outside_zero_to_one_is_an_error(plant):
    root = plant()
    for fraction in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"fraction \({fraction}\) must be in \[0, 1\)"):
            ready(root, test_fraction=fraction)


def unsorted(root, **kwargs):
    options = {
        "num_workers": 0,
        "image_size": (5, 7),
        "in_channels": 3,
        "class_names": ["ant", "bee"],
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
    }
    return UnsortedImages(str(root), **options | kwargs)


def test_unsorted_images_come_in_batches_with_their_files(write_image, tmp_path):
    files = sorted([write_image(f"photos/{name}.png") for name in ("b", "a", "deep/er/c", "d", "e")])
    batches = list(unsorted(tmp_path / "photos", batch_size=3).predict_dataloader())
    assert [named for _, named, _ in batches] == [[str(path) for path in files[:3]], [str(path) for path in files[3:]]]
    images = torch.cat([images for images, _, _ in batches])
    assert images.tolist() == [decode(path, (5, 7), 3).tolist() for path in files]
    assert [messages for _, _, messages in batches] == [[], []]


def test_one_file_may_be_named_instead_of_a_folder(write_image):
    path = write_image("photos/a.png")
    ((images, files, messages),) = unsorted(path).predict_dataloader()
    assert images.tolist() == [decode(path, (5, 7), 3).tolist()]
    assert (files, messages) == ([str(path)], [])


def test_files_that_are_not_images_are_reported_and_the_others_kept(write_image, tmp_path):
    path = write_image("photos/a.png")
    (tmp_path / "photos/notes.txt").write_text("no image")
    (tmp_path / "photos/.hidden").write_text("no image")
    ((images, files, messages),) = unsorted(tmp_path / "photos").predict_dataloader()
    assert len(images) == 1
    assert files == [str(path)]
    assert messages == [f"cannot read image {tmp_path / 'photos/notes.txt'}: it is no image"]


def test_a_batch_without_any_image_is_empty_and_of_the_right_shape(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/notes.txt").write_text("no image")
    ((images, files, messages),) = unsorted(tmp_path / "photos", in_channels=1).predict_dataloader()
    assert images.shape == (0, 1, 5, 7)
    assert images.dtype == torch.uint8
    assert files == []
    assert len(messages) == 1


def test_more_unsorted_images_than_a_batch_are_decoded_by_workers(write_image, tmp_path):
    files = [write_image(f"photos/{number}.png") for number in range(3)]
    loader = unsorted(tmp_path / "photos", num_workers=2, batch_size=2).predict_dataloader()
    assert loader.num_workers == 2
    assert [named for _, named, _ in loader] == [[str(path) for path in files[:2]], [str(files[2])]]
    assert unsorted(tmp_path / "photos", num_workers=2, batch_size=3).predict_dataloader().num_workers == 0


def test_unsorted_images_have_the_size_and_channels_of_the_model(write_image, tmp_path):
    write_image("photos/a.png", size=(17, 13))
    ((images, _, _),) = unsorted(tmp_path / "photos", image_size=(3, 11), in_channels=1).predict_dataloader()
    assert images.shape == (1, 1, 3, 11)


def test_unsorted_images_have_the_classes_and_statistics_of_the_model(write_image, tmp_path):
    write_image("photos/a.png")
    data = unsorted(tmp_path / "photos")
    data.prepare_data()
    data.setup("predict")
    assert (data.num_classes, data.class_names) == (2, ["ant", "bee"])
    assert (data.image_size, data.in_channels, data.mean, data.std) == ((5, 7), 3, [0.5] * 3, [0.2] * 3)


def test_a_missing_folder_of_unsorted_images_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=f"^no images at {tmp_path / 'gone'}: name a folder of image files by --data.root$"
    ):
        unsorted(tmp_path / "gone")


def test_an_empty_folder_of_unsorted_images_is_named(tmp_path):
    (tmp_path / ".hidden").touch()
    with pytest.raises(ValueError, match=f"^no files in {tmp_path}: name a folder of image files by --data.root$"):
        unsorted(tmp_path)
