"""The loaders of whole batches."""

import itertools
import multiprocessing.util
import os
import signal

import pytest
import torch
from lightning import LightningModule, Trainer

from vit.data.augment import Augment
from vit.data.loader import MemoryLoader, StreamLoader
from vit.data.sampler import BatchSampler

AUGMENT = Augment(3, crop_padding=2, flip=True, policy="trivialaugment", erasing=0.5, mixup=0.8, cutmix=1.0)


def memory(files, sampler, augment=None, device="cpu"):
    images = torch.stack([files[number][0] for number in range(len(files))])
    return MemoryLoader(images, torch.tensor(files.labels), sampler, augment, device)


def two_workers(files, sampler, augment=None, device="cpu"):
    return StreamLoader(files, sampler, augment, device, num_workers=2)


LOADERS = [memory, StreamLoader, two_workers]
WITHOUT_WORKERS = LOADERS[:2]


@pytest.fixture(params=[1, 3, 4])
def group_size(request, monkeypatch):
    """How many of the four batches of an epoch are augmented at once."""
    monkeypatch.setattr("vit.data.loader.MAX_GROUP_BATCHES", request.param)
    return request.param


def training(**kwargs) -> BatchSampler:
    """Four batches of three images, of thirteen."""
    return BatchSampler(13, 3, shuffle=True, seed=5, **kwargs)


def listed(batches) -> list:
    return [(images.tolist(), labels.tolist()) for images, labels in batches]


def epoch(loader, number: int) -> list:
    loader.sampler.set_epoch(number)
    return listed(loader)


@pytest.mark.parametrize("make", LOADERS)
def test_a_batch_holds_the_images_and_labels_at_the_indices_of_the_sampler(make, image_files):
    expected = [image_files[number] for number in range(13)]
    images, labels = zip(*make(image_files, BatchSampler(13, 5)), strict=True)
    assert [len(batch) for batch in images] == [5, 5, 3]
    assert torch.cat(images).tolist() == [image.tolist() for image, *_ in expected]
    assert torch.cat(labels).tolist() == [label for _, label, *_ in expected]
    assert images[0].dtype == torch.uint8


def test_indices_reach_the_files_as_numbers(image_files, monkeypatch):
    kinds, read = set(), type(image_files).__getitem__
    monkeypatch.setattr(
        type(image_files), "__getitem__", lambda files, index: kinds.add(type(index)) or read(files, index)
    )
    assert len([*StreamLoader(image_files, BatchSampler(13, 5))]) == 3
    assert kinds == {int}


def test_workers_outlive_the_signals_of_a_cluster_and_end_with_their_loader(image_files):
    loader = two_workers(image_files, BatchSampler(13, 5))
    expected, workers = listed(loader), loader.loader._iterator._workers
    for worker, number in itertools.product(workers, (signal.SIGTERM, signal.SIGUSR1)):
        os.kill(worker.pid, number)
    assert listed(loader) == expected
    del loader
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_process_ends_whose_workers_are_alive(image_files):
    def serve_a_batch() -> None:
        loader = two_workers(image_files, BatchSampler(13, 5))
        next(batches := iter(loader))
        multiprocessing.util.Finalize(None, list, (batches,), exitpriority=-1)  # which keeps the workers until the end

    process = multiprocessing.get_context("fork").Process(target=serve_a_batch)
    process.start()
    process.join(20)
    assert process.exitcode == 0


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_an_epoch_has_the_length_of_its_sampler(make, image_files):
    assert len(make(image_files, BatchSampler(13, 5))) == 3


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_padding_has_the_label_minus_one(make, image_files):
    loader = make(image_files, BatchSampler(13, 4, rank=1, world_size=2))
    assert [labels.tolist() for _, labels in loader] == [[1, 2, 0, 1], [2, 0, -1]]


def test_files_give_the_same_augmented_batches_as_memory(image_files, group_size):
    loaders = [make(image_files, training(), AUGMENT) for make in LOADERS]
    first, second = ([epoch(loader, number) for loader in loaders] for number in (0, 1))
    assert first[0] == first[1] == first[2]
    assert second[0] == second[1] == second[2]
    assert first[0] != second[0]


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
@pytest.mark.parametrize("served", [1, 2, 3])
def test_an_epoch_resumes_with_exactly_the_remaining_batches(make, served, image_files, group_size):
    whole = epoch(memory(image_files, training(), AUGMENT), 1)
    interrupted = make(image_files, training(), AUGMENT)
    interrupted.sampler.set_epoch(1)
    for batch, _ in enumerate(interrupted, start=1):
        if batch == served:
            state = interrupted.state_dict()
            break
    resumed = make(image_files, training(), AUGMENT)
    resumed.load_state_dict(state)
    assert epoch(resumed, 1) == whole[served:]


@pytest.mark.parametrize("make", LOADERS)
def test_the_epoch_after_an_interrupted_resumed_one_is_complete(make, image_files):
    resumed = make(image_files, training(), AUGMENT)
    resumed.load_state_dict({"served": 2})
    assert listed([next(iter(resumed))]) == epoch(memory(image_files, training(), AUGMENT), 0)[2:3]
    assert epoch(resumed, 2) == epoch(memory(image_files, training(), AUGMENT), 2)


def test_the_state_counts_the_batches_served_in_this_epoch(image_files):
    loader = memory(image_files, training())
    state = {"shift": 0, "global_size": 3, "seed": 5, "num_images": 13}
    states = [{"served": served} | state for served in (1, 2, 3, 0)]  # 0: the next epoch
    assert loader.state_dict() == states[-1]
    for _ in range(2):
        assert [loader.state_dict() for _ in loader] == states
    loader.load_state_dict(states[1])
    assert loader.state_dict() == states[1]
    assert [loader.state_dict() for _ in loader] == states[2:]


def test_a_resumed_epoch_of_other_batches_takes_the_images_that_were_not_served(image_files):
    first, other = memory(image_files, training()), BatchSampler(13, 2, shuffle=True, seed=5)
    order = torch.cat([*BatchSampler(13, 1, shuffle=True, seed=5)]).tolist()
    next(iter(first))
    resumed = memory(image_files, other)
    resumed.load_state_dict(first.state_dict())  # three images, and five batches of two are left of six
    assert resumed.state_dict() == {"served": 1, "shift": 1, "global_size": 2, "seed": 5, "num_images": 13}
    assert len(resumed) == 6
    assert [batch.tolist() for batch in other.batches(1)] == [order[at : at + 2] for at in (3, 5, 7, 9, 11)]
    # And again: a checkpoint of this epoch, with batches of the first size.
    again = memory(image_files, training())
    again.load_state_dict({"served": 3, "shift": 1, "global_size": 2})
    assert [batch.tolist() for batch in again.sampler.batches(again.served)] == [order[7:10], order[10:13]]
    again.load_state_dict({"served": 1, "shift": 0, "global_size": 2})  # two images, and three batches are left of four
    assert again.state_dict() == {"served": 1, "shift": -1, "global_size": 3, "seed": 5, "num_images": 13}
    assert [batch.tolist() for batch in again.sampler.batches(1)] == [order[2:5], order[5:8], order[8:11]]
    again.load_state_dict({"served": 6, "shift": 0, "global_size": 2})  # twelve images, and no batch is left
    assert [*again] == []
    resumed.begin_epoch(1)
    assert len(resumed) == 6
    assert resumed.sampler.shift == 0


def test_an_epoch_goes_on_with_its_seed_alone_and_the_next_one_may_have_another(image_files):
    first = memory(image_files, training())
    next(batches := iter(first))
    other = memory(image_files, BatchSampler(13, 3, shuffle=True, seed=6))
    with pytest.raises(ValueError, match=r"^seed \(6\) differs from 5, .* in this epoch: resume with seed 5, or from"):
        other.load_state_dict(first.state_dict())
    for _ in batches:
        pass
    other.load_state_dict(first.state_dict())
    other.load_state_dict({"served": 2, "shift": 0, "global_size": 3})  # of an earlier version


def test_a_checkpoint_of_an_earlier_version_counts_all_batches_at_the_end_of_an_epoch(image_files):
    loader = memory(image_files, training())
    loader.load_state_dict({"served": 4})
    assert loader.served == 0


def test_the_state_after_the_last_batch_resumes_at_the_next_epoch(image_files):
    finished = memory(image_files, training(), AUGMENT)
    epoch(finished, 0)
    resumed = memory(image_files, training(), AUGMENT)
    resumed.load_state_dict(finished.state_dict())
    assert epoch(resumed, 1) == epoch(finished, 1)


@pytest.mark.parametrize("make", LOADERS)
def test_an_epoch_draws_nothing_from_the_global_generator(make, image_files):
    loader = make(image_files, training(), AUGMENT)
    before = torch.get_rng_state()
    for _ in loader:
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_does_not_depend_on_what_was_drawn_before(image_files):
    loader = memory(image_files, training(), AUGMENT)
    torch.manual_seed(1)
    first = epoch(loader, 0)
    torch.manual_seed(2)
    assert epoch(loader, 0) == first


ALTERNATING = Augment(3, flip="alternate")


def mirrored(loader, number) -> dict[int, bool]:
    """Whether each image of an epoch is mirrored, by the number of the image."""
    loader.sampler.set_epoch(number)
    indices = torch.cat([*loader.sampler.batches(0)])
    images, originals = torch.cat([batch for batch, _ in loader]), torch.stack([loader.files[i][0] for i in indices])
    assert ((images == originals) | (images == originals.flip(3))).all()
    return dict(zip(indices.tolist(), (images != originals).flatten(1).any(dim=1).tolist(), strict=True))


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_flips_alternate_for_each_image_wherever_the_order_and_the_processes_put_it(make, image_files, group_size):
    epochs = []
    for number in range(3):
        epochs.append({})
        for rank in (0, 1):
            sampler = BatchSampler(13, 1, shuffle=True, seed=5, rank=rank, world_size=2)
            loader = make(image_files, sampler, ALTERNATING)
            loader.files = image_files
            epochs[-1] |= mirrored(loader, number)
    for first, second in itertools.pairwise(epochs):
        both = first.keys() & second.keys()  # an epoch leaves out one of the thirteen
        assert len(both) >= 11
        assert all(first[image] != second[image] for image in both)
    assert {True, False} == {*epochs[0].values()}


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_alternating_flips_resume_inside_an_epoch(make, image_files, group_size):
    whole = epoch(memory(image_files, training(), ALTERNATING), 1)
    resumed = make(image_files, training(), ALTERNATING)
    resumed.load_state_dict({"served": 2})
    assert epoch(resumed, 1) == whole[2:]


def test_a_policy_begins_with_its_epoch(image_files):
    loaders = [
        memory(image_files, training(), Augment(3, **options))
        for options in ({}, {"policy": "randaugment", "policy_from": 1})
    ]
    plain, late = ([epoch(loader, number) for number in (0, 1)] for loader in loaders)
    assert late[0] == plain[0]
    assert late[1] != plain[1]


class Recorded(Augment):
    """Records the size and device of each group and batch, and a random number drawn for it."""

    def __init__(self):
        super().__init__(3)
        self.groups, self.batches, self.drawn = [], [], []

    def change(self, images, epoch, mirrored):
        self.groups.append((len(images), images.device.type))
        self.drawn.append(torch.rand(()).item())
        return images

    def mix(self, images, labels):
        self.batches.append((len(images), images.device.type))
        self.drawn.append(torch.rand(()).item())
        return images, labels


def test_random_choices_differ_between_seeds_epochs_positions_and_processes(image_files, group_size):
    recorded = Recorded()
    for seed in (0, 1):
        for rank in (0, 1):
            sampler = BatchSampler(13, 1, shuffle=True, seed=seed, rank=rank, world_size=2)
            for number in (0, 1):
                epoch(memory(image_files, sampler, recorded), number)
    assert len(recorded.drawn) == len(set(recorded.drawn)) > len(recorded.batches)
    assert len(recorded.batches) == 6 * 2 * 2 * 2


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_images_are_changed_in_groups_and_mixed_in_batches(make, image_files, group_size):
    recorded = Recorded()
    epoch(make(image_files, training(), recorded), 0)
    assert recorded.groups == [(3 * min(group_size, 4 - first), "cpu") for first in range(0, 4, group_size)]
    assert recorded.batches == [(3, "cpu")] * 4


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
def test_grouping_alone_changes_nothing(make, image_files, group_size):
    plain = make(image_files, training())
    grouped = make(image_files, training(), Augment(3))
    assert plain.group_size == 1
    assert grouped.group_size == group_size
    assert epoch(plain, 0) == epoch(grouped, 0)


def test_a_group_stays_within_the_limit_of_pixels_or_is_a_single_batch(image_files, monkeypatch):
    for most, batches in ((2 * 3 * 7 * 11, 2), (2 * 3 * 7 * 11 - 1, 1), (1, 1)):
        monkeypatch.setattr("vit.data.loader.MAX_GROUP_PIXELS", most)
        assert memory(image_files, training(), AUGMENT).group_size == batches


def test_workers_decode_a_whole_group_ahead(image_files, group_size):
    assert StreamLoader(image_files, training(), None, num_workers=1).loader.prefetch_factor == 2
    many = StreamLoader(image_files, BatchSampler(13, 1, shuffle=True), AUGMENT, num_workers=1)
    assert many.loader.prefetch_factor == max(2, group_size)


def test_a_batch_is_mixed_when_it_is_requested(image_files):
    recorded = Recorded()
    batches = iter(memory(image_files, training(), recorded))
    for count in range(1, 5):
        next(batches)
        assert len(recorded.batches) == count


@pytest.mark.parametrize("make", WITHOUT_WORKERS)
@pytest.mark.parametrize("augment", [None, Recorded()])
def test_batches_are_on_the_device_when_they_are_augmented(make, augment, image_files):
    loader = make(image_files, BatchSampler(13, 5), augment, torch.device("meta"))
    assert not isinstance(loader, MemoryLoader) or loader.images.is_meta
    images, labels = next(iter(loader))
    assert images.is_meta
    assert labels.is_meta
    if augment is not None:
        assert augment.groups[-1][1] == augment.batches[-1][1] == "meta"


@pytest.mark.parametrize("make", [StreamLoader, two_workers])
def test_an_unreadable_file_is_named(make, image_files):
    image_files.paths[7].write_text("no image")
    message = f"^cannot read image {image_files.paths[7]}: it is no image: replace or delete the file, or "
    with pytest.raises(ValueError, match=message):
        list(make(image_files, BatchSampler(13, 5)))


def test_lightning_sets_the_epoch_of_the_sampler(image_files):
    class Recorder(LightningModule):
        automatic_optimization = False

        def training_step(self, batch):
            seen.extend(listed([batch]))

        def configure_optimizers(self):
            return torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    seen = []
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", devices=1, enable_model_summary=False, **options)
    trainer.fit(Recorder(), memory(image_files, training(), AUGMENT))
    loader = memory(image_files, training(), AUGMENT)
    assert seen == epoch(loader, 0) + epoch(loader, 1)


def test_an_epoch_is_not_resumed_with_more_images(image_files):
    loader = memory(image_files, training())
    state = loader.state_dict() | {"served": 1, "num_images": 12}
    with pytest.raises(ValueError, match="the training has 13 images and not 12, which decides those that are left"):
        loader.load_state_dict(state)
    loader.load_state_dict(state | {"served": 0})  # the next epoch takes all of them
