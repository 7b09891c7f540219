"""The plan of a training, beside a step that is really made and beside arithmetic by hand."""

import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vit.objectives import OBJECTIVES, ViTClassifier
from vit.runs.plan import DTYPES, Line, Plan, plan_training

SMALL = {"image_size": 12, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 7}
BATCH = 11


def plan(precision="32-true", devices=1, strategy="auto", on_gpu=False, **changes) -> Plan:
    with torch.device("meta"):
        module = ViTClassifier(**SMALL | changes)
    return plan_training(module, precision, devices=devices, strategy=strategy, on_gpu=on_gpu)


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan()


def measured(precision, **changes):
    """The most bytes of a model, its optimiser and two steps, by the allocations that PyTorch's profiler counts."""
    products = DTYPES[precision][1]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module = ViTClassifier(**SMALL | changes)
        optimizer = module.configure_optimizers()["optimizer"]
        images, labels = torch.zeros(BATCH, 3, 12, 12, dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.long)
        for _ in range(2):
            with torch.autocast("cpu", products, enabled=products is not None):
                loss = module.training_loss((images, labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes))


@pytest.mark.parametrize(
    ("precision", "changes"),
    [
        ("32-true", {}),
        ("32-true", {"grad_checkpointing": True}),
        ("bf16-mixed", {}),
        ("32-true", {"optimizer": "muon"}),
        ("32-true", {"patch_drop": 0.5}),
    ],
    ids=str,
)
def test_the_memory_is_that_of_a_real_step(precision, changes):
    assert plan(precision, **changes).memory(BATCH) == pytest.approx(measured(precision, **changes), rel=0.1)


def test_weights_gradients_and_averages_by_hand(small):
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in ViTClassifier(**SMALL).parameters())
    steps = sum(1 for _ in ViTClassifier(**SMALL).parameters())  # a number of 4 bytes for each tensor
    assert small.parameters == parameters
    assert small.gradients == 4 * parameters
    assert small.weights == 4 * (parameters + 6)  # mean and deviation of three channels
    assert small.optimizer == 4 * (2 * parameters + steps)
    assert small.average == small.exchanged == 0


def test_operations_are_those_of_the_counter_and_the_embedding_needs_no_gradient_of_the_images(small):
    embedding = 2 * 9 * 48 * 24
    whole = ViTClassifier(**SMALL).training_flop()
    assert small.inference_flop == whole / 3
    assert small.training_flop == whole - embedding


def test_checkpointing_takes_less_memory_and_more_operations(small):
    again = plan(grad_checkpointing=True)
    assert again.memory(100) < small.memory(100) / 1.5
    assert small.training_flop < again.training_flop < small.training_flop * 4 / 3


def test_memory_is_that_of_whole_images_if_dropping_ends_and_operations_are_a_mean(small):
    dropped, ends = plan(patch_drop=0.5), plan(patch_drop=0.5, patch_drop_until=0.75)
    assert dropped.memory(100) < small.memory(100)
    assert ends.memory(100) == small.memory(100)
    assert ends.training_flop == pytest.approx(0.75 * dropped.training_flop + 0.25 * small.training_flop)


def test_an_average_is_one_more_copy_and_frozen_blocks_have_no_gradients(small):
    averaged, frozen = plan(ema_decay=0.9), plan(freeze=2)
    assert averaged.average == 4 * small.parameters
    assert averaged.memory(5) == small.memory(5) + averaged.average
    assert frozen.gradients == 4 * (2 * 24 + 24 * 7 + 7)  # final norm and head


def test_several_devices_keep_all_and_buckets_or_a_part_and_two_whole_blocks(small):
    copies, parts = plan(devices=4, strategy="ddp"), plan(devices=4, strategy="fsdp2")
    assert copies.memory(5) == small.memory(5) + small.gradients
    assert parts.exchanged == 2 * 4 * small.parameters  # all of two blocks
    assert parts.weights == small.weights / 4
    kept = small.weights + small.gradients + small.optimizer
    assert parts.memory(5) == pytest.approx(small.memory(5) - 0.75 * kept + parts.exchanged)


def test_the_largest_batch_is_the_last_that_fits_into_nine_tenths():
    made = Plan(1, 1, 1, 0, 0, 0, 0, 0, (Line(100, 7), Line(350, 2)))
    assert made.memory(50) == 450
    assert made.largest_batch(500) == 50
    assert made.largest_batch(502) == 50
    assert made.largest_batch(1000) == 114
    with pytest.raises(ValueError, match=r"a batch of one takes 3.52e-07 GB, more than 90% of memory"):
        made.largest_batch(391)


VIT = {"image_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "in_channels": 1}
PIXELS = {"image_size": 8, "in_channels": 1, "grid_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
MODULES = {
    "ViTClassifier": VIT,
    "SequenceReader": VIT | {"letters": "abc", "max_length": 4, "decoder_depth": 1},
    "ImageCompleter": PIXELS | {"objective": "masked"},
    "MultilabelClassifier": VIT | {"num_classes": 3},
    "MaskedAutoencoder": VIT | {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2},
    "SIGReg": VIT,
    "DINO": VIT | {"prototypes": 16},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_plan(name):
    with torch.device("meta"):
        module = OBJECTIVES[name](**MODULES[name])
    found = plan_training(module, "bf16-mixed")
    assert found.memory(20) > found.memory(10) > found.weights
    assert found.training_flop > 2 * found.inference_flop > 0


def test_what_needs_whole_weights_has_no_plan_of_shards_and_no_advice_to_shard():
    with torch.device("meta"):
        whole, shardable = (OBJECTIVES[name](**MODULES[name]) for name in ("DINO", "SIGReg"))
    with pytest.raises(ValueError, match="strategy fsdp2 shards the weights, and DINO needs them whole: take strategy"):
        plan_training(whole, "32-true", devices=2, strategy="fsdp2")
    for module, remedy in ((whole, ""), (shardable, "--trainer.strategy fsdp2, ")):
        with pytest.raises(ValueError, match=f": take --model.grad_checkpointing true, {remedy}a smaller model"):
            plan_training(module, "32-true").largest_batch(1)


def test_a_precision_without_a_plan_is_an_error_that_names_the_others():
    with pytest.raises(ValueError, match="precision '64-true' has no plan: take one of 32-true, bf16-mixed"):
        plan("64-true")


class Counting(ViTClassifier):
    """Its loss depends on values."""

    def training_loss(self, batch):
        return super().training_loss(batch) * batch[1].bincount().sum()


def test_a_loss_of_a_users_own_that_reads_values_is_an_error_that_names_its_class():
    with torch.device("meta"):
        module = Counting(**SMALL)
    with pytest.raises(
        ValueError, match=r"Counting reads values in its training step, .* \(aten.bincount.default\): measure a"
    ):
        plan_training(module, "32-true")
