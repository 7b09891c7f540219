"""Which images of the data set the batches of an evaluation hold."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.objectives import ImageCompleter
from vit.training.evaluated_images import is_of_data, places_in_evaluation, places_of_images


def loader_of(count):
    """A loader of that many images in batches of two."""
    return MemoryLoader(torch.zeros(count, 1, 1, 1), torch.zeros(count), BatchSampler(count, 2))


def test_a_sampler_that_shuffles_tells_nothing():
    data = TensorDataset(torch.arange(7))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
    assert places_of_images(DataLoader(data, sampler=sampler)) == []


def test_an_unknown_loader_tells_nothing():
    assert places_of_images([torch.zeros(2)]) == []


@pytest.mark.parametrize(("testing", "count"), [(False, 3), (True, 5)])
def test_places_are_those_of_the_loader_that_runs(testing, count):
    trainer = SimpleNamespace(testing=testing, val_dataloaders=loader_of(3), test_dataloaders=loader_of(5))
    assert torch.cat(places_in_evaluation(trainer)).tolist() == [*range(count)]


def test_padding_is_not_of_the_data_and_all_images_are_if_places_are_not_known():
    images = torch.zeros(3, 1, 1, 1, dtype=torch.uint8)
    assert is_of_data(torch.tensor([4, -1, 0]), images).tolist() == [True, False, True]
    assert is_of_data(None, images).tolist() == [True] * 3


class Counting(ImageCompleter):
    """An objective of a user that counts its validations."""

    validations = 0

    def on_validation_epoch_start(self):
        super().on_validation_epoch_start()
        self.validations += 1


def test_an_objective_knows_the_images_of_each_batch_though_a_user_adds_to_the_start_of_a_validation():
    module = Counting(8, 1, palette_size=4, embed_dim=12, depth=1, num_heads=3)
    assert module.place(0) is None
    module._trainer = SimpleNamespace(testing=False, val_dataloaders=loader_of(3), test_dataloaders=loader_of(2))
    module.on_validation_epoch_start()
    assert [module.place(number).tolist() for number in range(2)] == [[0, 1], [2]]
    module._trainer.testing = True
    module.on_test_epoch_start()
    assert [place.tolist() for place in module.places] == [[0, 1]]
    assert module.validations == 1


def test_an_objective_knows_no_places_of_a_loader_that_tells_nothing():
    module = ImageCompleter(8, 1, palette_size=4, embed_dim=12, depth=1, num_heads=3)
    module.places = [torch.tensor([0])]
    module._trainer = SimpleNamespace(testing=False, val_dataloaders=[torch.zeros(2)])
    module.on_validation_epoch_start()
    assert module.place(0) is None
