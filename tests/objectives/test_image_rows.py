import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.forked import forked
from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.objectives.image_rows import ImageRows
from vit.training.evaluated_images import places_of_images


def test_rows_of_several_processes_are_in_the_order_of_the_data_set_without_padding():
    images, rows = torch.arange(7), ImageRows()
    for rank in range(2):
        sampler = BatchSampler(7, 2, rank=rank, world_size=2)
        for index in places_of_images(MemoryLoader(torch.zeros(7, 1, 1, 1), images, sampler)):
            rows.add(index, index >= 0, square=index.square())
    found = rows.gather()
    assert found["index"].tolist() == [*range(7)]
    assert found["square"].tolist() == [number**2 for number in range(7)]


@pytest.mark.parametrize(("count", "processes"), [(7, 2), (7, 3), (6, 2), (2, 3)])
def test_lightnings_sampler_tells_which_images_it_deals_to_a_process_and_those_that_it_repeats_are_padding(
    count, processes
):
    data, rows, dealt = TensorDataset(torch.arange(count)), ImageRows(), 0
    for rank in range(processes):
        sampler = DistributedSampler(data, num_replicas=processes, rank=rank, shuffle=False)
        loader = DataLoader(data, batch_size=3, sampler=sampler)
        for (images,), index in zip(loader, places_of_images(loader), strict=True):
            dealt += len(images)
            rows.add(index, index >= 0, image=images)
    found = rows.gather()
    assert dealt == processes * -(-count // processes)
    assert found["image"].tolist() == found["index"].tolist() == [*range(count)]


def test_no_two_images_of_an_unknown_loader_have_one_number(tmp_path):
    def add(rank):
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2)
        rows = ImageRows()
        for count in (2, 1):
            rows.add(None, torch.ones(count, dtype=torch.bool), rank=torch.full((count,), rank))
        found = rows.gather()
        assert found["index"].tolist() == [*range(6)]
        assert found["rank"].tolist() == [0, 1, 0, 1, 0, 1]

    processes = [forked(tmp_path / f"{rank}.txt", add, rank) for rank in range(2)]
    for rank, process in enumerate(processes):
        process.join()
        assert process.exitcode == 0, (tmp_path / f"{rank}.txt").read_text()


def test_rows_of_an_unknown_loader_are_counted():
    rows = ImageRows()
    for real in (torch.tensor([True, True]), torch.tensor([True, False])):
        rows.add(None, real, value=real.float())
    assert rows.gather()["index"].tolist() == [0, 1, 2]
