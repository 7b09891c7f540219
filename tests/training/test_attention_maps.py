"""Pictures of attention in a run: attention.png of every run, and what the callback AttentionMaps adds."""

import csv

import pytest
import torch
from lightning import seed_everything
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close

from vit.data.files import ImageFiles
from vit.data.module import ImageSet
from vit.explain import explain
from vit.training import AttentionMaps, ViTClassifier
from vit.training.examples import first_of_each_class, looking

TINY = [
    *("--data", "Digits", "--data.batch_size", "200", "--model.patch_size", "4", "--model.embed_dim", "8"),
    *("--model.depth", "2", "--model.num_heads", "2", "--trainer.accelerator", "cpu", "--model.ema_decay", "0.9"),
    *("--trainer.precision", "32-true", "--trainer.max_epochs", "3", "--seed_everything", "3"),
]
CALLBACK = "--trainer.callbacks+=AttentionMaps"


def weights(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


@pytest.fixture
def classifier():
    seed_everything(0, verbose=False)
    kwargs = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 3}
    return ViTClassifier(mean=[0.1] * 3, std=[0.5] * 3, **kwargs)


def test_the_callback_draws_logs_and_changes_nothing_else(run, folder, capsys):
    run("fit", *TINY, "--experiment", "plain")
    run("fit", *TINY, "--experiment", "shown", CALLBACK, "--trainer.callbacks.every_n_epochs=2")
    plain, shown = (folder / f"runs/{name}/version_0" for name in ("plain", "shown"))
    assert {path.name for path in (shown / "attention").iterdir()} == {"epoch_0002.png"}
    for name in ("attention/epoch_0002.png", "attention_over_time.png", "attention.png"):
        with Image.open(shown / name) as picture:
            assert min(picture.size) > 200
    rows = list(csv.DictReader((shown / "metrics.csv").read_text().splitlines()))
    logged = [row for row in rows if row["attention_distance/layer_1"]]
    assert [row["epoch"] for row in logged] == ["1"]
    assert 0 < float(logged[0]["attention_distance/layer_0"]) < 4 * 2**0.5
    assert 0 < float(logged[0]["attention_entropy/layer_1"]) <= 1
    without, with_it = weights(plain), weights(shown)
    for part in ("state_dict", "training_weights"):
        assert all(torch.equal(without[part][name], tensor) for name, tensor in with_it[part].items())
    events = EventAccumulator(str(shown), size_guidance={"images": 0}).Reload()
    assert len(events.Images("attention")) == 1
    assert "switched off" not in capsys.readouterr().out
    again = run("fit", "--config", shown / "config.yaml", "--trainer.fast_dev_run", "true", "--experiment", "again")
    (callback,) = [callback for callback in again.trainer.callbacks if isinstance(callback, AttentionMaps)]
    assert callback.every_n_epochs == 2
    assert not (folder / "runs/again").exists()


def test_a_mechanism_without_weights_trains_on_and_says_why_there_is_no_picture(run, folder, capsys):
    run("fit", *TINY, "--experiment", "linear", "--model.attention", "linear", CALLBACK)
    lines = capsys.readouterr().out.splitlines()
    for start in ("AttentionMaps is switched off: ", "no attention.png: "):
        (line,) = [line for line in lines if line.startswith(start)]
        assert "never forms the matrix of attention weights" in line
    assert not (folder / "runs/linear/version_0/attention.png").exists()
    assert (folder / "runs/linear/version_0/mistakes.png").exists()


def test_without_validation_the_callback_says_so(run, folder, capsys):
    run("fit", *TINY, "--trainer.max_epochs", "1", "--data.val_fraction", "0", CALLBACK)
    assert "AttentionMaps is switched off: there are no validation images" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["num_images", "every_n_epochs"])
def test_arguments_below_one_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name} \(0\) of AttentionMaps"):
        AttentionMaps(**{name: 0})


def test_without_test_images_attention_is_shown_on_validation_images_with_the_averaged_weights(
    run, folder, monkeypatch
):
    drawn = []
    monkeypatch.setattr(
        "vit.training.pictures.draw_rollout",
        lambda classifier, images, names, title, path: drawn.append((title, classifier.vit.head.weight.clone())),
    )
    run("fit", *TINY, "--trainer.limit_test_batches", "0", "--experiment", "untested")
    ((title, head),) = drawn
    assert title == "Attention rollout on validation images"
    saved = weights(folder / "runs/untested/version_0")
    assert torch.equal(saved["state_dict"]["vit.head.weight"], head)
    assert not torch.equal(saved["training_weights"]["vit.head.weight"], head)


def test_a_picture_that_fails_breaks_no_run(run, folder, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise RuntimeError("the disk\nis full")

    monkeypatch.setattr("vit.training.pictures.draw_rollout", fail)
    monkeypatch.setattr("vit.training.attention_maps.explain", fail)
    run("fit", *TINY, "--trainer.max_epochs", "2", CALLBACK)
    printed = capsys.readouterr().out
    assert printed.count("AttentionMaps is switched off: the disk is full") == 1
    assert printed.count("no attention.png: the disk is full") == 1
    assert "test_accuracy" in printed


def test_bfloat16_and_negative_weights_are_shown_by_fit_and_test(run, folder, capsys):
    precise = ("--trainer.precision", "bf16-true", "--model.attention", "talking", "--trainer.max_epochs", "1")
    run("fit", *TINY, *precise, "--experiment", "half", CALLBACK)
    run_folder = folder / "runs/half/version_0"
    assert (run_folder / "attention/epoch_0001.png").exists()
    (run_folder / "attention.png").unlink()
    run("test", "--ckpt_path", run_folder / "checkpoints/last.ckpt")
    assert (run_folder / "attention.png").exists()
    assert "no attention.png" not in capsys.readouterr().out


def test_looking_leaves_the_model_as_it_was(classifier):
    classifier.train()
    classifier.vit.blocks[0].eval()
    classifier.vit.blocks[1].compile()
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    modes = [module.training for module in classifier.modules()]
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    random_state = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), looking(classifier, pixels) as (model, images):
        assert images.dtype == torch.float32
        assert explain(model, images, "relevance").shape == (2, 2, 2)
        assert not torch.is_autocast_enabled("cpu")
    assert modes == [module.training for module in classifier.modules()]
    assert classifier.vit.blocks[1]._compiled_call_impl is not None
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())
    assert all(parameter.grad is None for parameter in classifier.parameters())


def test_looking_normalises_as_training_does(classifier):
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    with looking(classifier, pixels) as (model, images), torch.no_grad():
        assert_close(model(images), classifier.eval()(pixels))


def test_examples_take_turns_among_the_classes():
    labels = torch.tensor([2, 2, 0, 0, 0, 2])
    images = torch.arange(6)[:, None, None, None]
    chosen, theirs = first_of_each_class(ImageSet(images, labels), 5)
    assert chosen.flatten().tolist() == [2, 0, 3, 1, 4]
    assert theirs.tolist() == [0, 2, 0, 2, 0]
    assert len(first_of_each_class(ImageSet(images, labels), 100)[0]) == 6


def test_examples_are_read_from_files(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        Image.new("L", (4, 4), 100 * number).save(path)
    images, labels = first_of_each_class(ImageSet(ImageFiles(paths, [1, 0], (4, 4), 1), torch.tensor([1, 0])), 2)
    assert images[:, 0, 0, 0].tolist() == [100, 0]
    assert labels.tolist() == [0, 1]
    paths[0].write_text("no image")
    with pytest.raises(ValueError, match=r"0\.png"):
        first_of_each_class(ImageSet(ImageFiles(paths, [1, 0], (4, 4), 1), torch.tensor([1, 0])), 2)
