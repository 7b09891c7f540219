"""Image files without labels."""

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data import UnsortedImages
from vit.data.image_files import NEARLY_BLACK, decode


def unsorted(root, **kwargs):
    options = {"num_workers": 0, "image_size": (5, 7), "in_channels": 3}
    return UnsortedImages(str(root), **options | kwargs)


def test_unsorted_images_come_in_batches_with_their_files(write_image, tmp_path):
    files = sorted([write_image(f"photos/{name}.png") for name in ("b", "a", "deep/er/c", "d", "e")])
    batches = list(unsorted(tmp_path / "photos", batch_size=3).predict_dataloader())
    assert [named for _, named, _ in batches] == [[str(path) for path in files[:3]], [str(path) for path in files[3:]]]
    images = torch.cat([images for images, _, _ in batches])
    assert images.tolist() == [decode(path, (5, 7), 3).tolist() for path in files]
    assert [messages for _, _, messages in batches] == [[], []]


def test_files_that_are_not_images_are_left_out_and_told_at_the_start(write_image, tmp_path, capsys):
    path = write_image("photos/a.png")
    (tmp_path / "photos/notes.txt").write_text("no image")
    (tmp_path / "photos/.hidden").write_text("no image")
    (tmp_path / "photos/b.png").symlink_to(path)
    data = unsorted(tmp_path / "photos")
    data.setup("predict")
    assert capsys.readouterr().out.splitlines() == [
        f"images of {tmp_path}/photos: 2 files",
        "left out: 2",
        "  1 .txt: no image (notes.txt)",
        "  1 hidden (.hidden)",
        "identical images under several names: 1 (a.png = b.png)",
    ]
    ((_, files, messages),) = data.predict_dataloader()
    assert (files, messages) == ([str(path), str(path.parent / "b.png")], [])


def test_one_file_may_be_named_whatever_its_suffix(write_image, tmp_path, capsys):
    path = write_image("photos/a.png").rename(tmp_path / "photos/a.dat")
    data = unsorted(path)
    data.setup("predict")
    ((images, files, messages),) = data.predict_dataloader()
    assert images.tolist() == [decode(path, (5, 7), 3).tolist()]
    assert (files, messages) == ([str(path)], [])
    assert capsys.readouterr().out == ""


def test_one_file_that_is_no_image_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("no pixels")
    with pytest.raises(ValueError, match=r"^cannot read image .*notes\.txt: "):
        UnsortedImages(str(tmp_path / "notes.txt"), image_size=(4, 4), in_channels=3)


def test_notes_on_images_come_with_the_messages_about_damaged_ones(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    Image.fromarray(np.full((5, 7), 4095, dtype=np.uint16)).save(tmp_path / "b.png")
    ((_, files, messages),) = unsorted(tmp_path).predict_dataloader()
    assert files == [str(tmp_path / "b.png")]
    named = f"cannot read image {tmp_path / 'a.png'}: it is no image"
    assert messages == [named, f"{tmp_path / 'b.png'}: {NEARLY_BLACK}"]


def test_a_batch_without_any_image_is_empty_and_of_the_right_shape(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/notes.png").write_text("no image")
    ((images, files, messages),) = unsorted(tmp_path / "photos", in_channels=1).predict_dataloader()
    assert images.shape == (0, 1, 5, 7)
    assert images.dtype == torch.uint8
    assert files == []
    assert len(messages) == 1


def test_images_of_too_many_pixels_are_named_and_the_others_kept(write_image, tmp_path):
    write_image("photos/a.png", size=(9, 9))
    path = write_image("photos/b.png", size=(8, 10))
    ((_, files, messages),) = unsorted(tmp_path / "photos", max_pixels=80).predict_dataloader()
    assert files == [str(path)]
    assert "a.png: it has 9 x 9 pixels, more than max_pixels (80)" in messages[0]


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


def test_unsorted_images_are_cropped_or_scaled_whole_as_in_the_evaluation_of_the_model(write_image, tmp_path):
    path = write_image("photos/a.png", size=(17, 13))
    ((images, _, _),) = unsorted(tmp_path / "photos", crop_ratio=0.5).predict_dataloader()
    assert images.tolist() == [decode(path, (10, 14), 3)[:, 2:7, 4:11].tolist()]
    ((images, _, _),) = unsorted(tmp_path / "photos", stretch=True).predict_dataloader()
    assert images.tolist() == [decode(path, (5, 7), 3, stretch=True).tolist()]
    with pytest.raises(ValueError, match=r"^crop_ratio \(0\) must be from 0\.1 to 1: 1 keeps whole images$"):
        unsorted(path, crop_ratio=0)


def test_a_missing_or_empty_folder_of_unsorted_images_is_named(tmp_path):
    (tmp_path / ".hidden").touch()
    for folder, what in ((tmp_path / "gone", "images at"), (tmp_path, "images in")):
        with pytest.raises(ValueError, match=f"^no {what} {folder}: name a folder of image files by --data.root$"):
            unsorted(folder)
