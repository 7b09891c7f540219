"""Random resized crops of whole batches, compared with torchvision's."""

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from vit.data.crops import draw_boxes, random_resized_crop, resample
from vit.data.seeding import seeded

SHARES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])


def noise(b=13, c=3, h=37, w=53):
    return torch.randint(256, (b, c, h, w), dtype=torch.uint8)


def their_boxes(count, image_size, scale):
    transform, image = v2.RandomResizedCrop(1, scale=scale), torch.empty(1, *image_size)
    params = [transform.make_params([image]) for _ in range(count)]
    return torch.tensor([[box[name] for name in ("top", "left", "height", "width")] for box in params])


def described(boxes, image_size):
    """Share and aspect ratio of each box, and its place in the room that it has, if it has some."""
    top, left, height, width = boxes.unbind(dim=1)
    (h, w), (rows, columns) = image_size, (height < image_size[0], width < image_size[1])
    return {
        "share": height * width / (h * w),
        "aspect": width / height,
        "row": (top / (h - height))[rows],
        "column": (left / (w - width))[columns],
    }


# The last one is so narrow that half of the boxes are the fallback, which has no room in its columns.
@pytest.mark.parametrize(
    ("image_size", "scale"), [((97, 97), (0.08, 1.0)), ((61, 113), (0.35, 1.0)), ((101, 43), (0.45, 0.8))]
)
def test_boxes_are_distributed_as_those_of_torchvision(image_size, scale):
    ours = described(draw_boxes(20_000, image_size, scale), image_size)
    theirs = described(their_boxes(2_000, image_size, scale), image_size)
    for name, expected in theirs.items():
        # The standard error of a quantile of 2,000 uniform numbers is at most 0.011 of their range.
        spread = float(expected.max() - expected.min())
        assert ours[name].mean() == pytest.approx(float(expected.mean()), abs=0.03 * spread), name
        assert ours[name].std() == pytest.approx(float(expected.std()), abs=0.03 * spread), name
        assert ours[name].quantile(SHARES).tolist() == pytest.approx(
            expected.quantile(SHARES).tolist(), abs=0.05 * spread
        ), name


@pytest.mark.parametrize(("image_size", "expected"), [((29, 7), [10, 0, 9, 7]), ((5, 31), [0, 12, 5, 7])])
def test_where_no_box_fits_it_is_the_largest_one_in_the_centre(image_size, expected):
    assert draw_boxes(3, image_size, (1.0, 1.0)).tolist() == [expected] * 3
    assert their_boxes(3, image_size, (1.0, 1.0)).tolist() == [expected] * 3


def test_a_square_may_be_kept_whole():
    whole = [0, 0, 11, 11]
    assert whole in draw_boxes(500, (11, 11), (1.0, 1.0)).tolist()


@pytest.mark.parametrize(
    ("image_size", "size"), [((37, 53), (11, 13)), ((23, 29), (31, 17)), ((73, 73), (64, 64)), ((7, 101), (5, 5))]
)
def test_the_pixels_are_those_of_torchvision_up_to_rounding(image_size, size):
    images, boxes = noise(13, 3, *image_size), draw_boxes(13, image_size, (0.08, 1.0))
    for image, box, ours in zip(images, boxes.tolist(), resample(images, boxes, size), strict=True):
        assert ours.dtype == torch.uint8
        exact = tv.resized_crop(image.float(), *box, size=list(size), antialias=True)
        assert (ours - exact).abs().max() <= 0.501
        theirs = tv.resized_crop(image, *box, size=list(size), antialias=True)
        assert (ours.int() - theirs.int()).abs().max() <= 1


def test_larger_images_are_scaled_one_by_one_with_the_same_pixels_up_to_rounding(monkeypatch):
    images, boxes = noise(5, 3, 71, 97), draw_boxes(5, (71, 97), (0.08, 1.0))
    one_by_one = resample(images, boxes, (17, 19))
    assert torch.equal(one_by_one[3], tv.resized_crop(images[3], *boxes[3].tolist(), size=[17, 19], antialias=True))
    monkeypatch.setattr("vit.data.crops.PRODUCT_PIXELS", 71 * 97)
    at_once = resample(images, boxes, (17, 19))
    assert not torch.equal(at_once, one_by_one)
    assert (at_once.int() - one_by_one.int()).abs().max() <= 1


@pytest.mark.parametrize("threads", [1, 2])
def test_one_by_one_images_are_scaled_on_one_thread_and_the_others_return(threads, monkeypatch):
    used, before = [], torch.get_num_threads()

    def watched(*args, **kwargs):
        used.append(torch.get_num_threads())
        return resized_crop(*args, **kwargs)

    resized_crop = tv.resized_crop
    monkeypatch.setattr("vit.data.crops.tv.resized_crop", watched)
    torch.set_num_threads(threads)
    try:
        random_resized_crop(noise(3, 3, 83, 97), (0.35, 1.0), (7, 11))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert used == [1] * 3


def test_a_box_as_large_as_the_result_is_cut_out_unchanged():
    images = noise()
    boxes = torch.tensor([[3, 5, 11, 7]]).expand(13, -1)
    assert torch.equal(resample(images, boxes, (11, 7)), images[:, :, 3:14, 5:12])


def test_each_image_has_its_own_box():
    images = noise(1).expand(29, -1, -1, -1)
    assert len(random_resized_crop(images, (0.3, 0.9), (7, 11)).unique(dim=0)) == 29


def test_images_in_chunks_are_cropped_as_in_one_batch(monkeypatch):
    images, results = noise(), []
    for pixels in (2**17, 3 * 37 * 53, 1):
        monkeypatch.setattr("vit.data.operations.CHUNK_PIXELS", pixels)
        with seeded(7):
            results.append(random_resized_crop(images, (0.35, 1.0), (17, 19)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert results[0].shape == (13, 3, 17, 19)
