"""Image files and PIL images as a model takes them."""

from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image
from torch import nn
from torch.testing import assert_close

import vit
from vit.data.image_files import decode
from vit.explain import explain, explorer
from vit.explain.inputs import as_images, input_settings, read_pixels
from vit.explain.photograph import locate, read_shown


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        image_size=(14, 22), patch_size=2, embed_dim=8, depth=1, num_heads=2, num_classes=3
    ).eval()
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 0.125], "class_names": ["cat", "dog", "eel"]}
    model.pretrained_cfg["crop_ratio"] = 0.8
    return model


@pytest.fixture
def picture():
    return Image.fromarray(torch.randint(0, 256, (61, 97, 3), dtype=torch.uint8).numpy())


def test_a_file_its_name_and_the_pil_image_are_the_same_to_a_model(model, picture, tmp_path):
    picture.save(tmp_path / "cat.png")
    images = as_images(model, [tmp_path / "cat.png", str(tmp_path / "cat.png"), picture])
    assert images.shape == (3, 3, 14, 22)
    assert_close(images[1:], images[:1].expand(2, -1, -1, -1))


def test_a_model_of_stretched_images_sees_both_ends_of_a_long_one(model, tmp_path):
    long = Image.new("RGB", (200, 10))
    long.paste((255, 0, 0), (0, 0, 20, 10))
    long.paste((0, 255, 0), (180, 0, 200, 10))
    long.save(tmp_path / "long.png")
    model.pretrained_cfg |= {"stretch": True, "crop_ratio": 1.0}
    pixels = decode(tmp_path / "long.png", (14, 22), 3, stretch=True)
    assert torch.equal(read_pixels([tmp_path / "long.png"], model)[0], pixels)
    assert_close(as_images(model, long), as_images(model, tmp_path / "long.png"))
    assert locate(long, model).seen == pytest.approx((0, 0, 200, 10))
    model.pretrained_cfg["crop_ratio"] = 0.5
    assert locate(tmp_path / "long.png", model).seen == pytest.approx((50, 2.5, 150, 7.5))
    assert_close(as_images(model, long), as_images(model, tmp_path / "long.png"))


@pytest.mark.parametrize("suffix", ["png", "tif"])  # Pillow turns the size of a TIFF before its pixels
def test_pil_images_are_turned_upright(suffix, model, picture, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = picture.transpose(Image.Transpose.ROTATE_90)
    turned.save(tmp_path / f"turned.{suffix}", exif=exif)
    opened = Image.open(tmp_path / f"turned.{suffix}")
    place = locate(opened, model)  # before the pixels are read
    assert_close(as_images(model, opened), as_images(model, picture), atol=0.05, rtol=0)
    assert (place.width, place.height) == (97, 61)
    assert torch.equal(read_shown(place), read_shown(locate(picture, model)))


def test_a_deep_image_whose_zero_is_white_is_the_same_as_its_file(model, tmp_path):
    levels = torch.arange(61 * 97).reshape(61, 97) * 11
    Image.fromarray(levels.numpy().astype("uint16")).save(tmp_path / "white.tif", tiffinfo={262: 0})
    opened = as_images(model, Image.open(tmp_path / "white.tif"))
    assert_close(opened, as_images(model, tmp_path / "white.tif"))
    assert opened[0, 0, 0, 0] > opened[0, 0, -1, -1]  # its first value is 0, which is white


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK", "I", "F", "LA", "YCbCr"])
def test_images_of_all_modes_are_read(model, mode):
    values = {"F": 0.5, "I": 32_768, "1": 1, "L": 128, "P": 7}
    assert as_images(model, Image.new(mode, (30, 20), values.get(mode, 0))).isfinite().all()


def test_models_of_grey_images_get_grey_ones(picture):
    model = vit.VisionTransformer(image_size=8, patch_size=4, in_channels=1, embed_dim=8, depth=1, num_heads=2)
    model.pretrained_cfg = {"mean": [0.5], "std": [0.5]}
    assert as_images(model, picture).shape == (1, 1, 8, 8)


def test_the_normalisation_is_that_of_the_model(model):
    (image,) = as_images(model, Image.new("RGB", (30, 20), (51, 51, 51)))
    assert_close(image[:, 3, 5], torch.tensor([0.2, 0.0, -0.8]), atol=1e-6, rtol=0)


def test_a_model_of_timm_tells_its_size_crop_and_normalisation():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=3)
    settings = input_settings(model)
    assert (settings.channels, settings.image_size, settings.crop_ratio) == (3, (64, 64), 0.9)
    assert as_images(model, Image.new("RGB", (30, 20))).shape == (1, 3, 64, 64)


def test_explain_takes_files_and_images_and_classes_by_name(model, picture, tmp_path):
    picture.save(tmp_path / "cat.png")
    maps = explain(model, tmp_path / "cat.png", "relevance", target="dog", versus="cat")
    assert_close(maps, explain(model, as_images(model, picture), "relevance", target=1, versus=0))
    several = explain(model, [picture, str(tmp_path / "cat.png")], "relevance", target=["dog", "eel"])
    assert_close(several[1], explain(model, picture, "relevance", target=2)[0])


def test_the_explorer_takes_a_file_and_the_names_of_the_model(model, picture, tmp_path):
    picture.save(tmp_path / "cat.png")
    page = explorer(model, tmp_path / "cat.png")
    assert '"cat.png"' in page
    assert '"eel"' in page


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no images were given"),
        (5, "int is no image: give the path of a file, a PIL image, a list of these, or a tensor"),
        ([torch.zeros(3, 14, 22)], "Tensor is no image"),
        (Image.new("RGB", (0, 9)), "the PIL image of 0 x 9 pixels is empty"),
        ("nowhere.png", "cannot read image nowhere.png: No such file or directory: give an image"),
        (Path(), "cannot read image .: it is no regular file"),
        (Image.new("F", (9, 9), 300.0), "cannot read PIL image: its pixels are floats from 300 to 300"),
    ],
)
def test_what_is_no_image_is_refused(model, given, words):
    with pytest.raises(ValueError, match=words) as raised:
        as_images(model, given)
    assert "\n" not in str(raised.value)


def test_a_model_without_normalisation_is_refused_for_files_alone(picture):
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2)
    with pytest.raises(ValueError, match="VisionTransformer does not tell how its images are normalised"):
        as_images(model, picture)
    assert as_images(nn.Identity(), torch.ones(1)) == 1


def test_timms_ways_to_crop_are_kept_or_refused(model):
    squashed, bordered = nn.Linear(1, 1), nn.Linear(1, 1)
    squashed.pretrained_cfg = dict(model.pretrained_cfg) | {"crop_mode": "squash", "input_size": (3, 8, 8)}
    bordered.pretrained_cfg = squashed.pretrained_cfg | {"crop_mode": "border"}
    assert input_settings(squashed).stretch
    with pytest.raises(ValueError, match="padded to squares"):
        input_settings(bordered)
