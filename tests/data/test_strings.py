"""Numbers of handwritten digits on pictures, and the places of their digits."""

import csv

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vit.data import Digits
from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.data.strings import ALPHABET, DigitStrings, paste, save_numbers

STAGES = ("train", "val", "test")


@pytest.fixture(scope="module")
def data():
    data = DigitStrings(count=2000, clutter=0)
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def numbers(data):
    return {stage: data.numbers(stage) for stage in STAGES}


@pytest.fixture(scope="module")
def digits():
    data = Digits()
    data.setup("fit")
    return data.sets


def crops(numbers):
    """The digits that were not resized beyond their box: (digit, label) of every box."""
    for image, tokens, boxes in zip(numbers.images, numbers.tokens, numbers.boxes.tolist(), strict=True):
        for place, (row, column, height, width) in enumerate(boxes):
            if height:
                yield image[:, row : row + height, column : column + width], tokens[place + 1].item()


def test_every_length_and_every_digit_is_about_equally_frequent(numbers):
    for of_stage in numbers.values():
        lengths = (of_stage.boxes[..., 2] > 0).sum(dim=1).bincount()
        assert lengths[0] == 0
        assert len(lengths) == 6
        assert lengths[1:].min() > 0.85 * lengths.sum() / 5
        letters = of_stage.tokens[of_stage.tokens < 10].bincount()
        assert letters.min() > 0.85 * letters.sum() / 10


def test_the_tokens_are_those_of_the_written_text(numbers):
    tokens = numbers["train"].tokens
    texts = ALPHABET.decode(tokens)
    assert torch.equal(ALPHABET.encode(texts, 5), tokens)
    assert [len(text) for text in texts] == (numbers["train"].boxes[..., 2] > 0).sum(dim=1).tolist()


def test_each_box_holds_a_digit_of_the_split_with_its_label(numbers, digits):
    for stage in STAGES:
        written = {16: F.interpolate(digits[stage].images.float(), (16, 16), mode="bilinear").round()}
        of_size = [(crop, label) for crop, label in crops(numbers[stage]) if crop.shape[-1] == 16][:200]
        assert len(of_size) == 200
        for crop, label in of_size:
            same = (written[16] == crop.float()).flatten(1).all(dim=1)
            assert same.any()
            assert label in digits[stage].labels[same].tolist()


def test_no_digit_is_in_two_splits(numbers, digits):
    train = {tuple(image.flatten().tolist()) for image in digits["train"].images}
    assert not [image for image in digits["test"].images if tuple(image.flatten().tolist()) in train]
    assert not torch.equal(numbers["test"].images, numbers["val"].images)


def test_digits_are_one_and_a_half_to_two_times_as_large_with_gaps_of_at_most_four_pixels(numbers):
    boxes = numbers["train"].boxes
    sides = boxes[..., 2][boxes[..., 2] > 0]
    assert sides.unique().tolist() == [12, 13, 14, 15, 16]
    gaps = boxes[:, 1:, 1] - boxes[:, :-1, 1] - boxes[:, :-1, 3]
    assert gaps[boxes[:, 1:, 2] > 0].unique().tolist() == [0, 1, 2, 3, 4]
    assert (boxes[..., :2] >= 0).all()
    assert ((boxes[..., :2] + boxes[..., 2:]).amax(dim=(0, 1)) == torch.tensor([32, 96])).all()


def test_overlapping_digits_cover_each_other_by_at_most_so_many_pixels():
    boxes = DigitStrings(count=2000, overlap=2).numbers("train").boxes
    gaps = boxes[:, 1:, 1] - boxes[:, :-1, 1] - boxes[:, :-1, 3]
    assert gaps[boxes[:, 1:, 2] > 0].unique().tolist() == [-2, -1, 0, 1, 2, 3, 4]


def outside(numbers):
    """The ink outside the boxes, and its pictures' pixels that touch a box."""
    rows, columns = torch.arange(32)[:, None], torch.arange(96)
    first, last = (
        numbers.boxes[..., None, None, :2],
        (numbers.boxes[..., :2] + numbers.boxes[..., 2:])[..., None, None, :],
    )
    drawn = numbers.boxes[..., 2, None, None] > 0

    def within(margin):
        inside = (rows >= first[..., 0] - margin) & (rows < last[..., 0] + margin)
        inside = inside & (columns >= first[..., 1] - margin) & (columns < last[..., 1] + margin)
        return (inside & drawn).any(dim=1)

    ink = numbers.images[:, 0] > 0
    return ink & ~within(0), ink & within(1) & ~within(0)


def test_clutter_lies_outside_and_touches_no_digit(numbers):
    clean, _ = outside(numbers["val"])
    assert not clean.any()
    cluttered = DigitStrings(count=2000, clutter=4).numbers("val")
    fragments, touching = outside(cluttered)
    assert fragments.flatten(1).any(dim=1).float().mean() > 0.9
    assert not touching.any()


def test_the_pictures_do_not_depend_on_the_seed_of_the_order(numbers):
    other = DigitStrings(count=2000, clutter=0, seed=5).numbers("train")
    assert torch.equal(other.images, numbers["train"].images)
    assert torch.equal(other.tokens, numbers["train"].tokens)


def test_mean_and_standard_deviation_are_those_of_the_training_pictures():
    data = DigitStrings(count=5000)
    pixels = data.numbers("train").images / 255
    assert data.mean == pytest.approx([pixels.mean().item()], abs=2e-3)
    assert data.std == pytest.approx([pixels.std().item()], abs=2e-3)


def test_batches_are_pictures_and_tokens(data):
    images, tokens = next(iter(data.train_dataloader()))
    assert images.shape == (64, 1, 32, 96)
    assert images.dtype == torch.uint8
    assert tokens.shape == (64, 7)
    assert len(data.val_dataloader().sampler) == -(-2000 // 64)


def test_pictures_are_written_with_a_line_for_each(numbers, tmp_path):
    save_numbers(numbers["test"], tmp_path)
    with (tmp_path / "texts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ALPHABET.decode(numbers["test"].tokens)
    with Image.open(tmp_path / rows[7]["file"]) as picture:
        assert picture.size == (96, 32)
        assert picture.tobytes() == numbers["test"].images[7].numpy().tobytes()


def test_where_digits_overlap_the_brighter_pixel_stays():
    images = torch.full((1, 1, 4, 4), 7, dtype=torch.uint8)
    patch = torch.tensor([[9, 5], [0, 8]], dtype=torch.uint8)[None, None]
    paste(images, patch, torch.tensor([[1, 2, 2, 2]]))
    assert images[0, 0].tolist() == [[7, 7, 7, 7], [7, 7, 9, 7], [7, 7, 7, 8], [7, 7, 7, 7]]


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="stage 'val' is none of train, test at val_fraction 0"):
        DigitStrings(val_fraction=0).numbers("val")


def test_rows_of_padding_are_marked_in_every_place(data):
    numbers = data.sets["val"]
    sampler = BatchSampler(len(numbers.labels), 64, rank=2, world_size=3)
    tokens = torch.cat([tokens for _, tokens in MemoryLoader(numbers.images, numbers.labels, sampler)])
    padding = tokens[:, 0] == -1
    assert 0 < padding.sum() < 64
    assert (tokens[padding] == -1).all()
    assert (tokens[~padding] >= 0).all()


@pytest.mark.parametrize(
    "kwargs", [{"count": 0}, {"overlap": -1}, {"overlap": 12}, {"clutter": 1.5}, {"val_fraction": 1}]
)
def test_arguments_out_of_their_range_are_refused(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        DigitStrings(**kwargs)
