import torch

from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.objectives.classify.image_rows import ImageRows, places_of_images


def test_rows_of_several_processes_are_in_the_order_of_the_data_set_without_padding():
    images, rows = torch.arange(7), ImageRows()
    for rank in range(2):
        sampler = BatchSampler(7, 2, rank=rank, world_size=2)
        for index in places_of_images(MemoryLoader(torch.zeros(7, 1, 1, 1), images, sampler)):
            rows.add(index, index >= 0, square=index.square())
    found = rows.gather()
    assert found["index"].tolist() == [*range(7)]
    assert found["square"].tolist() == [number**2 for number in range(7)]


def test_rows_of_an_unknown_loader_are_counted():
    assert places_of_images([torch.zeros(2)]) == []
    rows = ImageRows()
    for real in (torch.tensor([True, True]), torch.tensor([True, False])):
        rows.add(None, real, value=real.float())
    assert rows.gather()["index"].tolist() == [0, 1, 2]
