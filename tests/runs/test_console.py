"""The lines that a run prints."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, Timer

from vit.objectives import ViTClassifier
from vit.runs.console import print_header, print_memory, print_plan, print_resume, print_stop


@pytest.fixture
def header(capsys, tmp_path):
    """The lines printed for these numbers of validation images and of images that fill no batch."""

    def header(val=None, left_out=0, made_worse=(), max_epochs=None, max_steps=-1, max_time=None, module=None, **facts):
        sizes = {"train": 1295, "val": val, "test": 359}
        sets = {name: SimpleNamespace(labels=torch.zeros(size)) for name, size in sizes.items() if size is not None}
        trainer = SimpleNamespace(
            datamodule=SimpleNamespace(sets=sets, left_out=left_out, made_worse=made_worse),
            precision="32-true",
            max_epochs=max_epochs,
            max_steps=max_steps,
            callbacks=[Timer(max_time)],
        )
        if module is None:
            module = torch.nn.Linear(2, 3)
            module.encoder, module.monitor = None, ViTClassifier.monitor
            module.device = torch.device("cpu")
        print_header({"data": "Digits"} | facts, tmp_path, trainer, module)
        return capsys.readouterr().out.splitlines()

    return header


def test_the_header_has_data_model_device_length_and_folder(header, tmp_path):
    (line,) = header(val=143, max_epochs=30)
    assert line.startswith("Digits: 1,295 train, 143 val, 359 test images; 9 parameters; 32-true on cpu, 1 thread; ")
    assert line.endswith(f"; 30 epochs; {tmp_path}")


@pytest.mark.parametrize(
    ("limits", "length"),
    [
        ({"max_epochs": 1000}, "1,000 epochs"),
        ({"max_epochs": -1, "max_steps": 300}, "300 steps"),
        ({"max_epochs": 3, "max_steps": 300}, "3 epochs or 300 steps"),
        ({"max_epochs": -1, "max_time": timedelta(minutes=10)}, "0:10:00"),
        ({"max_epochs": -1}, "no end"),
    ],
)
def test_the_length_is_the_limits_of_the_training(header, limits, length):
    assert f"; {length}; " in header(**limits)[0]


@pytest.mark.parametrize(
    ("optimizer", "copies", "named"),
    [
        ("adamw", 4, "weights, gradients and optimiser"),
        ("muon", None, "weights, gradients and optimiser"),
        ("sgd", 2, "weights and gradients"),
    ],
)
def test_the_plan_has_operations_and_what_weights_gradients_and_averages_take(capsys, optimizer, copies, named):
    model = ViTClassifier(embed_dim=64, depth=1, num_heads=1, optimizer=optimizer.replace("sgd", "adamw"))
    made = torch.optim.SGD(model.parameters()) if optimizer == "sgd" else model.configure_optimizers()["optimizer"]
    print_plan(SimpleNamespace(optimizers=[made]), model, 1_234_000_000)
    count = sum(parameter.numel() for parameter in model.parameters())
    in_muon = 12 * 64**2  # the matrices of the block, each with one average and not two
    kept = 4 * (4 * count - in_muon if copies is None else copies * count)
    assert capsys.readouterr().out == (
        f"plan: 1.23 GFLOP an image in training; {kept / 1e6:.3g} MB of {named} (activations, largest batch and time: "
        "vit-attention plan)\n"
    )


def test_what_is_made_worse_on_purpose_is_said(header):
    lines = ["259 of 1,295 training labels are wrong (seed 0)", "359 test images are corrupted: jpeg 10"]
    assert header(made_worse=lines)[1:] == lines


def test_images_that_fill_no_batch_are_said(header):
    assert header(left_out=17)[1] == "each epoch leaves out 17 training images, others each time: they fill no batch"


@pytest.mark.parametrize(("val", "lines"), [(None, 1), (50, 1), (49, 2)])
def test_few_validation_images_are_said(header, val, lines):
    printed = header(val=val)
    assert len(printed) == lines
    if lines == 2:
        assert printed[1].startswith(
            "only 49 validation images: each is 2.0 % of val_accuracy, which chooses best.ckpt"
        )


def test_a_stopped_run_says_how_it_is_resumed_if_it_can_be(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    print_resume(tmp_path)
    assert capsys.readouterr().out == "stopped before the first checkpoint: start again\n"
    last = tmp_path / "checkpoints/last.ckpt"
    last.parent.mkdir()
    last.touch()
    print_resume(tmp_path)
    lines = [f"results so far: {tmp_path / 'results.json'}", f"resume with: python train.py fit --ckpt_path {last}"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_part_of_the_test_images_is_named_with_the_whole(header):
    (line,) = header(val=143, max_epochs=30, parts={"test": {"images": 359, "of": 10_000}})
    assert line.startswith("Digits: 1,295 train, 143 val, 359 of 10,000 test images; ")


@pytest.mark.parametrize(
    ("attention", "option", "side"), [("window", "window", 4), ("neighborhood", "kernel", 5), ("window", "window", 100)]
)
def test_a_window_that_covers_the_whole_grid_is_said_once(header, attention, option, side):
    _, line = header(module=classifier(attention, {option: side}))
    assert line.startswith(
        f"attention {option} {side} covers the whole grid of 4 x 4 patches, as softmax attention does"
    )


@pytest.mark.parametrize(("attention", "options"), [("window", {"window": 2}), ("softmax", None)])
def test_of_other_attention_nothing_is_said(header, attention, options):
    assert len(header(module=classifier(attention, options))) == 1


def classifier(attention, options):
    sizes = {"image_size": 8, "in_channels": 1, "patch_size": 2, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return ViTClassifier(**sizes, attention=attention, attention_kwargs=options)


def test_an_early_stopping_says_why_it_stopped(capsys):
    stopping = EarlyStopping("val_loss", patience=1)
    trainer = SimpleNamespace(callbacks=[stopping, Timer(None)], should_stop=False, current_epoch=4)
    print_stop(trainer)
    assert capsys.readouterr().out == ""
    stopping.best_score, stopping.stopped_epoch = torch.tensor(0.5), 3
    _, stopping.stopping_reason_message = stopping._evaluate_stopping_criteria(torch.tensor(0.7))
    print_stop(trainer)
    assert capsys.readouterr().out == ""  # a resumed training that went on to its end keeps the old reason
    trainer.should_stop = True
    print_stop(trainer)
    answer = "stopped early: monitored metric val_loss did not improve in the last 1 records. Best score: 0.500.\n"
    assert capsys.readouterr().out == answer


def test_what_the_first_step_takes_of_the_memory_is_printed_if_it_is_much(monkeypatch, capsys):
    module = SimpleNamespace(device=torch.device("cpu"), hparams=SimpleNamespace(lr=1e-3))
    trainer = SimpleNamespace(
        datamodule=SimpleNamespace(sets={"train": SimpleNamespace(labels=torch.zeros(50))}), world_size=1, optimizers=[]
    )
    print_memory(trainer, module, 8)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("vit.runs.console.measure_memory", lambda *_: (6 * 10**9, 0, 10**10))
    print_memory(trainer, module, 8)
    assert capsys.readouterr().out.startswith("memory: 6.0 of 10.0 GB with batches of 8, more than half: --data.batch")
