"""Augmentation of whole batches: shifts, mirrors, erased rectangles, mixed images."""

import pytest
import torch
import torch.nn.functional as F
from einops import repeat

from vit.data.augment import Augment, alternate_flips, crop_and_flip, erase
from vit.data.crops import random_resized_crop
from vit.data.policies import RANDAUGMENT, TRIVIALAUGMENT, BatchPolicy
from vit.data.seeding import seeded

LABELS = torch.arange(13)
ONE_OF_ANY_MAGNITUDE = BatchPolicy(TRIVIALAUGMENT, num_ops=1, magnitude=None)


def augmented(chain, images):
    """The batch that a loader would serve."""
    return chain.mix(chain.change(images), LABELS)


def noise(b=13, c=3, h=5, w=7):
    """Random images, no two of which are alike after any augmentation."""
    return torch.randint(256, (b, c, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def shifted_reflections(image, padding, flip):
    """Every crop of a padded image, and every mirrored one."""
    _, h, w = image.shape
    padded = F.pad(image.float(), [padding] * 4, mode="reflect").to(image.dtype)
    offsets = range(2 * padding + 1)
    crops = [padded[:, top : top + h, left : left + w] for top in offsets for left in offsets]
    return crops + [crop.flip(2) for crop in crops] if flip else crops


@pytest.mark.parametrize(("c", "padding", "flip"), [(1, 0, True), (3, 1, False), (3, 4, True)])
def test_every_shifted_reflection_occurs_and_nothing_else(c, padding, flip):
    image = noise(1, c)
    expected = {str(crop.tolist()) for crop in shifted_reflections(image[0], padding, flip)}
    results = crop_and_flip(repeat(image, "1 c h w -> b c h w", b=1_999), padding, flip)
    assert {str(result.tolist()) for result in results} == expected


def test_each_image_has_its_own_shift_and_mirror():
    images = noise(149)
    chosen = []
    for image, result in zip(images, crop_and_flip(images, 2, flip=True), strict=True):
        crops = shifted_reflections(image, 2, flip=True)
        chosen.append([torch.equal(crop, result) for crop in crops].index(True))
    assert len(set(chosen)) > 30


def test_images_in_chunks_are_shifted_as_in_one_batch(monkeypatch):
    results = []
    for pixels in (2**17, 3 * 35, 1):
        monkeypatch.setattr("vit.data.operations.CHUNK_PIXELS", pixels)
        with seeded(7):
            results.append(crop_and_flip(noise(), 2, flip=True))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_half_of_the_images_are_mirrored_or_none():
    assert torch.equal(crop_and_flip(noise(), 0, flip=False), noise())
    images = noise(1, 1).expand(4_999, -1, -1, -1)
    mirrored = (crop_and_flip(images, 0, flip=True) != images).any(dim=(1, 2, 3))
    assert 0.48 < mirrored.float().mean() < 0.52


def test_alternating_flips_are_drawn_for_the_first_epoch_and_turned_over_in_each_next_one():
    epochs = [alternate_flips(997, 3, epoch) for epoch in range(4)]
    assert 0.45 < epochs[0].float().mean() < 0.55
    assert torch.equal(epochs[1], ~epochs[0])
    assert torch.equal(epochs[2], epochs[0])
    assert torch.equal(epochs[3], epochs[1])
    assert not torch.equal(alternate_flips(997, 4, 0), epochs[0])
    assert torch.equal(alternate_flips(997, 3, 0), epochs[0])


def test_the_images_to_mirror_may_be_named():
    images = noise(2)
    first, second = crop_and_flip(images, 0, torch.tensor([True, False]))
    assert torch.equal(first, images[0].flip(2))
    assert torch.equal(second, images[1])


def test_a_policy_begins_with_its_epoch():
    chain = Augment(13, policy="randaugment", policy_from=3)
    assert torch.equal(chain.change(noise(), 2), noise())
    assert not torch.equal(chain.change(noise(), 3), noise())


def test_a_shift_as_wide_as_the_image_is_an_error():
    message = r"^crop_padding \(5\) must be smaller than the image \(5, 7\): use a quarter of it$"
    with pytest.raises(ValueError, match=message):
        crop_and_flip(noise(), 5, flip=False)


def test_erasing_sets_a_rectangle_to_zero_and_keeps_the_rest():
    images = noise(499, 3, 23, 31).clamp(min=1)
    results = erase(images, 1.0)
    erased = results == 0
    rows, columns = erased.any(dim=(1, 3)), erased.any(dim=(1, 2))
    assert torch.equal(erased, (rows[:, :, None] & columns[:, None, :])[:, None].expand_as(erased))
    for extent in (rows, columns):
        assert (extent.int().diff(dim=1).abs().sum(dim=1) <= 2).all()
    assert torch.equal(results[~erased], images[~erased])
    assert results.dtype == torch.uint8


def test_the_rectangle_covers_the_given_share_of_the_image_up_to_rounding():
    h, w, share = 61, 53, 0.1
    erased = erase(torch.ones(997, 1, h, w), 1.0, area=(share, share)) == 0
    rows, columns = erased.any(dim=(1, 3)).sum(dim=1), erased.any(dim=(1, 2)).sum(dim=1)
    rounding = (rows + columns) / 2 + 0.25
    assert ((rows * columns - share * h * w).abs() <= rounding).all()


def test_the_aspect_ratio_of_the_rectangle_is_from_three_tenths_to_ten_thirds():
    erased = erase(torch.ones(1_999, 1, 101, 103, dtype=torch.uint8), 1.0, area=(0.1, 0.1)) == 0
    rows, columns = erased.any(dim=(1, 3)).sum(dim=1), erased.any(dim=(1, 2)).sum(dim=1)
    ratio = rows / columns
    assert 0.29 < ratio.min() < 0.31
    assert 3.2 < ratio.max() < 3.5
    assert 0.47 < (ratio < 1).float().mean() < 0.53


def test_the_shares_of_rectangles_fill_the_whole_range():
    erased = (erase(torch.ones(1_999, 1, 61, 53), 1.0) == 0).float().mean(dim=(1, 2, 3))
    assert 0.015 < erased.min() < 0.025
    assert 0.32 < erased.max() < 0.34
    assert 0.16 < erased.median() < 0.19


def test_rectangles_lie_anywhere():
    erased = (erase(torch.ones(1_999, 1, 23, 31), 1.0) == 0)[:, 0]
    for corner in (erased[:, 0, 0], erased[:, 0, -1], erased[:, -1, 0], erased[:, -1, -1]):
        assert 0 < corner.sum() < 200
    assert torch.allclose(erased.float().mean(dim=0), erased.float().mean(dim=0).flip(0, 1), atol=0.05)


@pytest.mark.parametrize(("probability", "fewest", "most"), [(0.0, 0, 0), (0.3, 0.25, 0.35), (1.0, 1, 1)])
def test_images_are_erased_with_the_given_probability(probability, fewest, most):
    touched = (erase(torch.ones(1_999, 1, 23, 31), probability) == 0).any(dim=(1, 2, 3))
    assert fewest <= touched.float().mean() <= most


def mixed(**options):
    """Images and targets of a mixed batch with one class per image, the share of each image and its partner."""
    images, targets = augmented(Augment(13, **options), noise())
    share = targets.diagonal()
    partner = (targets - torch.diag(share)).argmax(dim=1)
    return images, targets, share, partner


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_the_targets_of_a_mixed_batch_sum_to_one(options):
    for _ in range(11):
        images, targets, _, _ = mixed(**options)
        assert targets.shape == (13, 13)
        assert torch.allclose(targets.sum(dim=1), torch.ones(13))
        assert (targets.count_nonzero(dim=1) <= 2).all()
        assert images.dtype == torch.float32
        assert 0 <= images.min() <= images.max() <= 1


def test_mixup_blends_two_images_by_their_shares_in_the_target():
    images, _, share, partner = mixed(mixup=0.8)
    own, other = noise() / 255, noise()[partner] / 255
    share = share[:, None, None, None]
    assert (partner != LABELS).all()
    assert 0 < share.min() <= share.max() < 1
    assert torch.allclose(images, share * own + (1 - share) * other, atol=1e-6)


def test_cutmix_takes_each_pixel_from_one_image_by_their_shares_in_the_target():
    for _ in range(11):
        images, _, share, partner = mixed(cutmix=1.0)
        own, other = noise() / 255, noise()[partner] / 255
        from_own = (images == own).all(dim=1)
        from_other = (images == other).all(dim=1)
        assert (from_own | from_other).all()
        assert torch.allclose(from_own.float().mean(dim=(1, 2)), share)


def test_with_mixup_and_cutmix_each_batch_gets_one_of_them():
    cut = []
    for _ in range(29):
        images, _, _, partner = mixed(mixup=0.8, cutmix=1.0)
        cut.append(((images == noise() / 255) | (images == noise()[partner] / 255)).all().item())
    assert 5 < sum(cut) < 24


def test_mixing_is_decided_before_each_batch():
    answers = iter([True, False, True])
    chain = Augment(13, crop_padding=2, mixup=0.8, mixing=lambda: next(answers))
    shapes = []
    for _ in range(3):
        with seeded(7):
            images, targets = augmented(chain, noise())
        shapes.append((images.dtype, tuple(targets.shape)))
    assert shapes == [(torch.float32, (13, 13)), (torch.uint8, (13,)), (torch.float32, (13, 13))]


def test_after_the_end_of_mixing_batches_are_augmented_as_without_mixing():
    options = {"crop_padding": 2, "flip": True, "policy": "randaugment", "erasing": 0.5}
    with seeded(7):
        images, labels = augmented(Augment(13, **options, mixup=0.8, cutmix=1.0, mixing=lambda: False), noise())
    with seeded(7):
        expected, _ = augmented(Augment(13, **options), noise())
    assert torch.equal(images, expected)
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({"crop_scale": (0.3, 0.9)}, lambda images: random_resized_crop(images, (0.3, 0.9), (5, 7))),
        ({"crop_scale": (0.3, 1.0), "crop_size": (3, 4)}, lambda images: random_resized_crop(images, (0.3, 1), (3, 4))),
        ({"crop_padding": 2}, lambda images: crop_and_flip(images, 2, flip=False)),
        ({"flip": True}, lambda images: crop_and_flip(images, 0, flip=True)),
        ({"policy": "randaugment"}, BatchPolicy(RANDAUGMENT, num_ops=2, magnitude=9)),
        ({"policy": "trivialaugment"}, ONE_OF_ANY_MAGNITUDE),
        ({"erasing": 0.5}, lambda images: erase(images, 0.5)),
        ({}, lambda images: images),
    ],
)
def test_each_option_adds_one_step(options, alone):
    with seeded(7):
        images, labels = augmented(Augment(13, **options), noise())
    with seeded(7):
        expected = alone(noise())
    assert torch.equal(images, expected)
    assert not options or images.shape != noise().shape or not torch.equal(images, noise())
    assert torch.equal(labels, LABELS)


def test_the_chain_crops_then_applies_the_policy_then_erases():
    chain = Augment(13, crop_padding=2, flip=True, policy="trivialaugment", erasing=0.5)
    with seeded(7):
        images, _ = augmented(chain, noise())
    with seeded(7):
        expected = erase(ONE_OF_ANY_MAGNITUDE(crop_and_flip(noise(), 2, flip=True)), 0.5)
    assert torch.equal(images, expected)


def test_a_random_box_is_cut_out_before_all_other_steps():
    chain = Augment(13, crop_scale=(0.3, 0.9), crop_size=(4, 6), crop_padding=2, flip=True, erasing=0.5)
    with seeded(7):
        images, _ = augmented(chain, noise())
    with seeded(7):
        boxes = random_resized_crop(noise(), (0.3, 0.9), (4, 6))
        expected = erase(crop_and_flip(boxes, 2, flip=True), 0.5)
    assert torch.equal(images, expected)


def test_the_chain_mixes_last():
    options = {"crop_padding": 2, "flip": True, "policy": "randaugment", "erasing": 0.5}
    with seeded(7):
        images, targets = augmented(Augment(13, **options, mixup=0.8), noise())
    with seeded(7):
        plain, _ = augmented(Augment(13, **options), noise())
    share = targets.diagonal()
    partner = (targets - torch.diag(share)).argmax(dim=1)
    share = share[:, None, None, None]
    assert torch.allclose(images, share * plain / 255 + (1 - share) * plain[partner] / 255, atol=1e-6)


@pytest.mark.parametrize(("shape", "mix"), [((1, 8, 8), {}), ((3, 5, 7), {"mixup": 0.8, "cutmix": 1.0})])
def test_the_same_seed_repeats_the_whole_chain(shape, mix):
    chain = Augment(13, crop_padding=2, flip=True, policy="trivialaugment", erasing=0.5, **mix)
    results = []
    for _ in range(2):
        with seeded(7, 3):
            results.append(augmented(chain, noise(13, *shape)))
    (images, labels), (images_again, labels_again) = results
    assert torch.equal(images, images_again)
    assert torch.equal(labels, labels_again)
    assert images.shape == (13, *shape)
    assert images.dtype == (torch.float32 if mix else torch.uint8)


def test_the_input_is_not_changed():
    images = noise()
    augmented(Augment(13, crop_padding=2, flip=True, policy="randaugment", erasing=1.0, mixup=0.8), images)
    assert torch.equal(images, noise())
