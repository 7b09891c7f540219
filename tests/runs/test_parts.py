"""A limited evaluation takes an even part of the images, the same in each run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from vit.data.module import ImageSet
from vit.runs.parts import draw_parts, even_part, part_in_words
from vit.runs.results import groups_of


def image_set(labels):
    return ImageSet(torch.arange(len(labels))[:, None, None, None].to(torch.uint8), labels)


def trainer_of(labels, world_size=1, fast_dev_run=False, **limits):
    data = SimpleNamespace(sets={split: image_set(labels) for split in ("val", "test")}, batch_size=10)
    limits = {f"limit_{split}_batches": limits.get(split, 1.0) for split in ("val", "test")}
    return SimpleNamespace(datamodule=data, world_size=world_size, fast_dev_run=fast_dev_run, **limits)


@pytest.mark.parametrize("labels", [torch.arange(10).repeat_interleave(20), torch.arange(10).repeat(20)])
@pytest.mark.parametrize("count", [20, 50, 100, 150])
def test_each_class_has_its_share_whatever_the_order_of_the_images(labels, count):
    chosen = even_part(labels, count)
    assert chosen.equal(chosen.unique())
    assert labels[chosen].bincount(minlength=10).tolist() == [count // 10] * 10
    assert even_part(labels, count).equal(chosen)


def test_several_labels_and_rows_of_tokens_are_drawn_from_too():
    assert len(even_part(torch.eye(4).repeat(5, 1), 7)) == 7
    assert len(even_part(torch.zeros(20, 3, dtype=torch.long), 7)) == 7


def test_the_groups_are_those_of_the_images_that_are_measured():
    trainer = trainer_of(torch.arange(10).repeat_interleave(20), test=0.25)
    for split in ("train", "test"):
        trainer.datamodule.sets[split] = replace(trainer.datamodule.sets["val"], groups=torch.arange(200))
    assert groups_of(trainer) == {"test": 200}
    draw_parts(trainer)
    assert groups_of(trainer) == {"test": 50}


@pytest.mark.parametrize(("limit", "processes", "images"), [(3, 1, 30), (2, 2, 40), (0.25, 1, 50), (1, 1, 10)])
def test_a_limit_in_batches_or_as_a_share_leaves_so_many_images(limit, processes, images):
    labels = torch.arange(10).repeat_interleave(20)
    trainer = trainer_of(labels, processes, test=limit)
    assert draw_parts(trainer) == {"test": {"images": images, "of": 200}}
    kept = trainer.datamodule.sets["test"]
    assert len(kept.labels) == images
    assert kept.labels.bincount().tolist() == [images // 10] * 10
    assert kept.labels.equal(labels[kept.images.flatten().long()])  # each image has its own label
    assert len(trainer.datamodule.sets["val"].labels) == 200
    assert trainer.limit_test_batches == 1.0
    assert draw_parts(trainer) == {}  # a second call draws no part of the part


@pytest.mark.parametrize("limit", [0, 0.0, 1.0, 20, 100])
def test_no_images_and_all_images_are_no_part(limit):
    trainer = trainer_of(torch.zeros(200, dtype=torch.long), val=limit)
    assert draw_parts(trainer) == {}
    assert trainer.limit_val_batches == limit


def test_a_fast_dev_run_draws_nothing():
    assert draw_parts(trainer_of(torch.zeros(200, dtype=torch.long), fast_dev_run=True, test=1)) == {}


def test_a_part_is_named_with_the_whole():
    assert part_in_words({"images": 5, "of": 12_000}, "val") == "5 of 12,000 validation images"
