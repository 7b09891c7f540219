"""Options of the trainer that would fail late or change a training in silence are refused before it is built."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.tiny import MODEL
from vit.commands import trainer_checks
from vit.commands.trainer_checks import (
    check_callbacks,
    check_devices,
    check_memory,
    check_seed,
    check_sharded,
    check_trainer,
)
from vit.objectives import DINO, SIGReg

DEFAULTS = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "gradient_clip_val": 1.0,
    "log_every_n_steps": 20,
    "val_check_interval": None,
    "barebones": False,
    "max_epochs": 2,
    "max_steps": -1,
    "max_time": None,
    "min_epochs": None,
    "min_steps": None,
    "limit_train_batches": None,
}


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"accumulate_grad_batches": 0}, r"accumulate_grad_batches \(0\) must be a positive whole number: 1 steps"),
        ({"check_val_every_n_epoch": 0}, r"check_val_every_n_epoch \(0\) must be a positive whole number"),
        ({"gradient_clip_val": -1.0}, r"gradient_clip_val \(-1.0\) must be a number of at least 0: null does not"),
        ({"log_every_n_steps": -3}, r"log_every_n_steps \(-3\) must be a number of at least 0"),
        ({"val_check_interval": 0.0}, r"val_check_interval \(0\) must be above 0"),
        ({"barebones": True}, "barebones leaves out checkpoints"),
        ({"max_epochs": 0}, r"max_epochs \(0\) would train nothing: set it to 1 or more; to measure a model"),
        ({"max_steps": 0}, r"max_steps \(0\) would train nothing"),
        ({"limit_train_batches": 0.0}, r"limit_train_batches \(0\) would train nothing"),
        ({"max_time": "0"}, r"max_time \(0\) would train nothing: 00:00:10:00 is ten minutes"),
        ({"max_time": "00:00:00:00"}, r"max_time \(00:00:00:00\) would train nothing"),
        ({"max_time": {"hours": 0}}, "would train nothing"),
        ({"max_time": timedelta()}, "would train nothing"),
        ({"min_steps": 3, "max_steps": 1}, r"min_steps \(3\) is more than max_steps \(1\): leave one of them out"),
        ({"min_epochs": 3}, r"min_epochs \(3\) is more than max_epochs \(2\)"),
    ],
)
def test_an_option_that_trains_nothing_or_divides_by_zero_is_refused(options, answer):
    with pytest.raises(ValueError, match=answer):
        check_trainer(DEFAULTS | options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"check_val_every_n_epoch": None, "val_check_interval": 10},
        {"gradient_clip_val": None},
        {"max_time": "00:00:00:01", "max_epochs": -1},
        {"max_time": "soon"},  # which Lightning refuses
        {"max_time": {"minutes": 1}},
        {"min_steps": 3, "max_steps": -1},
        {"min_epochs": 2, "max_epochs": 2},
    ],
)
def test_options_that_train_are_taken(options):
    check_trainer(DEFAULTS | options)


@pytest.mark.parametrize("devices", [5, "64"])
@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_processes_for_which_a_cpu_has_no_cores_are_refused(devices, accelerator, monkeypatch):
    monkeypatch.setattr(trainer_checks.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(trainer_checks.torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(
        ValueError, match=rf"devices \({devices}\) are more than this CPU has cores \(4\): set --trainer"
    ):
        check_devices({"accelerator": accelerator, "devices": devices})
    for possible in (4, "auto", "1", [0, 1]):
        check_devices({"accelerator": accelerator, "devices": possible})
    monkeypatch.setenv("LOCAL_RANK", "0")  # torchrun has started as many as it was told
    check_devices({"accelerator": accelerator, "devices": devices})


@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "mps"])
def test_a_gpu_that_is_not_there_is_named_and_those_that_are_there_lightning_counts(accelerator, monkeypatch):
    monkeypatch.setattr(trainer_checks.torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"accelerator {accelerator}: PyTorch finds no GPU on this machine; take"):
        check_devices({"accelerator": accelerator, "devices": 8})
    monkeypatch.setattr(trainer_checks.torch.accelerator, "is_available", lambda: True)
    check_devices({"accelerator": accelerator, "devices": 8})


def test_more_gpus_than_there_are_is_one_line(error_of, monkeypatch):
    for place in ("lightning.fabric.accelerators.cuda", "lightning.pytorch.accelerators.cuda"):
        monkeypatch.setattr(f"{place}.num_cuda_devices", lambda: 1)
    monkeypatch.setattr(trainer_checks.torch.accelerator, "is_available", lambda: True)
    answer = error_of("fit", "--data", "Digits", *MODEL, "--trainer.accelerator", "gpu", "--trainer.devices", "8")
    assert answer.endswith("You requested gpu: [0, 1, 2, 3, 4, 5, 6, 7] But your machine only has: [0]")


@pytest.mark.parametrize("seed", [True, False, -1, 2**32, "x", 0.5])
def test_a_seed_is_a_whole_number_that_numpy_takes(seed):
    with pytest.raises(ValueError, match=r"seed_everything \(.*\) must be a whole number from 0 to 4294967295"):
        check_seed(seed)


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"ema_decay": 0.9, "optimizer": "adamw"}, "ema_decay 0.9 needs them whole: add --model.ema_decay null, or"),
        ({"ema_decay": None, "optimizer": "muon"}, "optimizer muon needs them whole: add --model.optimizer adamw, or"),
        (
            {"ema_decay": 0.9, "optimizer": "muon"},
            "ema_decay 0.9 and optimizer muon need them whole: add --model.ema_decay null --model.optimizer adamw, or",
        ),
    ],
)
def test_what_needs_whole_weights_is_refused_for_sharded_ones_by_the_first_process(settings, answer, monkeypatch):
    with pytest.raises(ValueError, match=f"strategy fsdp2 shards the weights, and {answer} take strategy ddp"):
        check_sharded("fsdp2", settings)
    with monkeypatch.context() as second:
        second.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 1, raising=False)
        second.setattr("vit.commands.trainer_checks.WAIT", 0)
        with pytest.raises(SystemExit, match=r"^2$"):
            check_sharded("fsdp2", settings)
    own = SimpleNamespace(class_path="vit.training.sharding.FullySharded")
    with pytest.raises(ValueError, match="strategy FullySharded shards the weights"):
        check_sharded(own, settings)
    check_sharded("ddp", settings)
    check_sharded("fsdp2", {"ema_decay": None, "optimizer": "adamw"})


def test_an_objective_that_needs_whole_weights_is_refused_for_sharded_ones():
    with pytest.raises(ValueError, match="strategy fsdp2 shards the weights, and DINO needs them whole: take strategy"):
        check_sharded("fsdp2", {}, DINO)
    check_sharded("ddp", {}, DINO)
    check_sharded("fsdp2", {}, SIGReg)


@pytest.mark.parametrize(
    "name",
    [
        *("BackboneFinetuning", "BatchSizeFinder", "Timer"),
        *("EMAWeightAveraging", "StochasticWeightAveraging", "WeightAveraging"),
    ],
)
def test_a_callback_that_changes_a_training_behind_its_record_has_an_option_instead(name):
    callback = type(name, (SimpleNamespace,), {})()
    with pytest.raises(ValueError, match=f"the callback {name} does not work here: --"):
        check_callbacks([callback], "accuracy", has_validation=True)


def test_a_model_that_the_memory_cannot_hold_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(trainer_checks, "_memory", lambda: 10**10)
    wide = {"embed_dim": 10_000, "depth": 4, "mlp_ratio": 4.0}  # 4.8 billion parameters
    with pytest.raises(ValueError, match="embed_dim 10000 and 4 blocks make about 4,800,000,000 parameters, 77 GB"):
        check_memory("fit", wide)
    with pytest.raises(ValueError, match="19 GB of weights; this machine has 10 GB: take a smaller --model"):
        check_memory("test", wide)
    with pytest.raises(ValueError, match="and 100000 blocks"):
        check_memory("fit", {"embed_dim": 64, "depth": 50_000, "decoder_depth": 50_000})


def test_a_large_model_is_announced_before_it_is_built_and_a_small_one_is_not(monkeypatch, capsys):
    monkeypatch.setattr(trainer_checks, "_memory", lambda: 10**12)
    check_memory("fit", {"embed_dim": 64, "depth": 4})
    check_memory("fit", {"embed_dim": "wide", "depth": 4})  # which the model refuses
    assert capsys.readouterr().out == ""
    check_memory("fit", {"embed_dim": 10_000, "depth": 4})
    assert capsys.readouterr().out.startswith("building a model of about 4,800,000,000 parameters in 4 blocks")


def test_the_memory_of_this_machine_is_at_least_a_gigabyte():
    assert trainer_checks._memory() > 10**9
