"""Views of images: their sizes, their random choices, and the blur."""

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from vit.data import views as views_module
from vit.data.views import JITTER, Views, blur_each, distort


def pictures(count=6, channels=3, rows=12, columns=20):
    return torch.randint(0, 256, (count, channels, rows, columns), dtype=torch.uint8, generator=torch.manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_large_views_have_the_size_of_the_images_and_small_ones_their_own(channels):
    torch.manual_seed(0)
    found = Views(global_views=2, local_views=3)(pictures(channels=channels), (4, 8))
    assert [view.shape[2:] for view in found] == [(12, 20)] * 2 + [(4, 8)] * 3
    assert all(view.dtype == torch.uint8 for view in found)


def test_each_image_and_each_view_has_choices_of_its_own_and_a_seed_repeats_them():
    same = pictures(1).expand(6, -1, -1, -1).contiguous()
    torch.manual_seed(3)
    first = Views()(same, (4, 8))
    torch.manual_seed(3)
    again = Views()(same, (4, 8))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert len(torch.cat(first[:2]).unique(dim=0)) == 12


def test_views_of_whole_images_without_flip_and_distortion_are_the_images():
    whole = Views(global_scale=(1.0, 1.0), local_views=0, flip=False, distort=False)
    images = pictures(rows=12, columns=12)
    torch.manual_seed(0)
    equal = torch.stack([(view == images).flatten(1).all(dim=1) for view in whole(images, (6, 6))])
    assert equal.any()  # the aspect ratio is drawn, and only that of 1 fits: else the largest centred box is taken
    assert (whole(torch.full_like(images, 7), (6, 6))[0] == 7).all()


def test_small_views_show_small_parts():
    ramp = torch.arange(64).to(torch.uint8)[None, None, None].expand(40, 1, 64, 64).contiguous()
    torch.manual_seed(0)
    large, small = Views(1, 1, (0.9, 1.0), (0.1, 0.2), flip=False, distort=False)(ramp, (32, 32))
    widths = [int(view.amax() - view.amin()) for view in (*small,)]
    assert max(widths) < 40
    assert int(large[0].amax() - large[0].amin()) > 45


def test_the_blur_is_that_of_torchvision_inside_the_border():
    images = pictures(3, 3, 25, 31)
    for sigma in (0.4, 1.3):
        expected = tv.gaussian_blur(images, [13, 13], [sigma, sigma])
        found = blur_each(images, torch.full((3,), sigma))
        assert (found.int() - expected.int())[..., 7:-7, 7:-7].abs().max() <= 1


def test_each_image_has_a_blur_of_its_own_and_zero_leaves_it():
    images = pictures(3)
    blurred = blur_each(images, torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(blurred[[0, 2]], images[[0, 2]])
    assert blurred[1].float().std() < 0.7 * images[1].float().std()
    assert torch.equal(
        blur_each(torch.full_like(images, 77), torch.tensor([2.0, 0.3, 5.0])), torch.full_like(images, 77)
    )


@pytest.mark.parametrize(
    ("name", "probability"), [("JITTERED", 0.8), ("GREYED", 0.2), ("SOLARISED", 0.2), ("BLURRED", 0.5)]
)
def test_each_distortion_changes_its_share_of_the_images(name, probability, monkeypatch):
    for other in {"JITTERED", "GREYED", "SOLARISED", "BLURRED"} - {name}:
        monkeypatch.setattr(views_module, other, 0.0)
    images = pictures(200, 3, 32, 32)
    torch.manual_seed(0)
    changed = (distort(images) != images).flatten(1).any(dim=1)
    shown = probability if name != "BLURRED" else probability * 0.8  # a narrow one rounds to no change
    assert abs(changed.float().mean().item() - shown) < 0.12


def test_grey_images_have_equal_channels_and_jitter_keeps_within_its_bounds(monkeypatch):
    for other in ("JITTERED", "SOLARISED", "BLURRED"):
        monkeypatch.setattr(views_module, other, 0.0)
    monkeypatch.setattr(views_module, "GREYED", 1.0)
    grey = distort(pictures())
    assert torch.equal(grey[:, 0], grey[:, 2])
    monkeypatch.setattr(views_module, "GREYED", 0.0)
    monkeypatch.setattr(views_module, "JITTERED", 1.0)
    monkeypatch.setattr(views_module, "JITTER", {"brightness": JITTER["brightness"]})
    bright = distort(torch.full((200, 1, 4, 4), 100, dtype=torch.uint8))
    assert 59 <= bright.min() < 70
    assert 130 < bright.max() <= 140


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_views": 0}, r"global_views \(0\) must be a positive whole number"),
        ({"local_views": -1}, r"local_views \(-1\)"),
        ({"global_scale": (0.5, 1.5)}, "global_scale"),
        ({"local_scale": (0.4, 0.1)}, "local_scale"),
    ],
)
def test_views_that_cannot_be_cut_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Views(**changes)
