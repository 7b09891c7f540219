"""The images of each batch."""

from itertools import chain, pairwise

import pytest
import torch

from vit.data.sampler import BatchSampler, balanced_order

WORLD_SIZES = [1, 2, 3]
# Images and images per batch: multiples and not, one batch, fewer images than a batch holds.
SETS = [(12, 4), (23, 5), (7, 1), (7, 4), (3, 29)]


def epoch(*args, number: int = 0, **kwargs) -> list[list[int]]:
    sampler = BatchSampler(*args, **kwargs)
    sampler.set_epoch(number)
    return [batch.tolist() for batch in sampler]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("num_images", "batch_size"), SETS)
def test_evaluation_takes_every_image_once_in_order_and_pads_the_end_to_a_multiple_of_the_processes(
    num_images, batch_size, world_size
):
    ranks = [epoch(num_images, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    in_order = [index for batches in zip(*ranks, strict=True) for batch in batches for index in batch]
    assert in_order[:num_images] == list(range(num_images))
    assert in_order[num_images:] == [-1] * (-num_images % world_size)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("num_images", "batch_size"), SETS)
def test_all_processes_take_the_same_number_of_batches_of_the_same_sizes(num_images, batch_size, world_size, shuffle):
    options = {"shuffle": shuffle, "world_size": world_size}
    ranks = [[len(batch) for batch in epoch(num_images, batch_size, rank=r, **options)] for r in range(world_size)]
    assert all(sizes == ranks[0] for sizes in ranks)
    assert max(ranks[0]) <= batch_size
    assert len(ranks[0]) == len(BatchSampler(num_images, batch_size, **options))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batches_of_all_processes_joined_are_those_of_one_process(shuffle, world_size):
    ranks = [epoch(23, 3, shuffle=shuffle, seed=5, rank=r, world_size=world_size, number=7) for r in range(world_size)]
    joined = [list(chain(*batches)) for batches in zip(*ranks, strict=True)]
    alone = epoch(23, 3 * world_size, shuffle=shuffle, seed=5, number=7)
    assert [[index for index in batch if index != -1] for batch in joined] == alone


def test_the_last_evaluation_batch_is_padded_with_minus_one():
    assert [epoch(7, 2, rank=rank, world_size=3) for rank in range(3)] == [
        [[0, 1], [6]],
        [[2, 3], [-1]],
        [[4, 5], [-1]],
    ]


def test_training_takes_a_new_order_for_each_epoch_and_seed_and_repeats_it():
    orders = {str(epoch(23, 5, shuffle=True, seed=seed, number=number)) for seed in range(3) for number in range(11)}
    assert len(orders) == 33
    torch.manual_seed(1)
    first = epoch(23, 5, shuffle=True, seed=3, number=2)
    torch.manual_seed(2)
    assert epoch(23, 5, shuffle=True, seed=3, number=2) == first


def test_training_drops_the_incomplete_batch_which_differs_between_epochs():
    epochs = [list(chain(*epoch(23, 5, shuffle=True, number=number))) for number in range(11)]
    assert all(len(images) == len(set(images)) == 20 for images in epochs)
    left_out = [frozenset(range(23)) - set(images) for images in epochs]
    assert len(set(left_out)) == 11


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("first_batch", [0, 1, 3])
def test_an_epoch_resumed_at_a_batch_takes_exactly_the_remaining_ones(first_batch, shuffle):
    sampler = BatchSampler(23, 5, shuffle=shuffle, seed=2)
    sampler.first_batch = first_batch
    assert [batch.tolist() for batch in sampler] == epoch(23, 5, shuffle=shuffle, seed=2)[first_batch:]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_training_set_smaller_than_a_batch_is_one_batch(world_size):
    ranks = [epoch(7, 128, shuffle=True, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [[len(batch) for batch in batches] for batches in ranks] == [[7 // world_size]] * world_size


# Twenty-three images in classes of 13, 7, 2 and 1.
UNBALANCED = torch.tensor([2, 5, 2, 7] + [5] * 6 + [0] * 13)


def drawn(seed):
    return balanced_order(UNBALANCED, torch.Generator().manual_seed(seed))


def test_a_balanced_order_has_each_class_equally_often():
    counts = torch.stack([UNBALANCED[drawn(seed)].bincount()[[0, 2, 5, 7]] for seed in range(50)])
    assert counts.unique().tolist() == [5, 6]
    assert (counts.sum(dim=1) == 23).all()
    assert (counts.max(dim=0).values == 6).all()  # a random class has one less


def test_a_balanced_order_repeats_no_image_before_all_others_of_its_class_were_drawn():
    for seed in range(11):
        for label in (0, 2, 5, 7):
            counts = drawn(seed).bincount(minlength=23)[label == UNBALANCED]
            assert counts.max() - counts.min() <= 1


def test_a_balanced_order_mixes_the_classes_and_draws_other_images_each_time():
    classes = UNBALANCED[drawn(0)].tolist()
    assert sum(first == second for first, second in pairwise(classes)) < 11
    assert len({frozenset(drawn(seed).tolist()) for seed in range(11)}) > 8


def test_training_may_draw_the_classes_equally_often():
    options = {"shuffle": True, "balance": UNBALANCED, "seed": 5}
    alone = epoch(23, 6, **options, number=7)
    assert [len(batch) for batch in alone] == [6, 6, 6]
    assert alone == epoch(23, 6, **options, number=7) != epoch(23, 6, **options, number=8)
    ranks = [epoch(23, 2, **options, rank=rank, world_size=3, number=7) for rank in range(3)]
    assert [list(chain(*batches)) for batches in zip(*ranks, strict=True)] == alone
    assert sum(UNBALANCED[list(chain(*alone))] == 7) > 1


def test_evaluation_is_never_balanced():
    assert list(chain(*epoch(23, 5, balance=UNBALANCED))) == list(range(23))


@pytest.mark.parametrize("shuffle", [False, True])
def test_fewer_images_than_processes_are_an_error(shuffle):
    with pytest.raises(ValueError, match=r"^2 images cannot be shared among 3 processes: use fewer devices$"):
        BatchSampler(2, 1, shuffle=shuffle, world_size=3)
