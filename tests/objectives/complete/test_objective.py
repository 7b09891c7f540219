"""The completer, trained and asked from the command line."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

import vit
from tests.tiny import CPU
from vit.data import Digits
from vit.data.module import ImageDataModule, ImageSet
from vit.objectives import ImageCompleter

COMPLETE = [
    *("--data", "Digits", "--data.batch_size", "400", "--model", "ImageCompleter", "--model.palette_size", "3"),
    *("--model.grid_size", "4", "--model.embed_dim", "8", "--model.depth", "1", "--model.num_heads", "2"),
    *(*CPU, "--trainer.max_epochs", "1"),
]


def completer(**kwargs):
    torch.manual_seed(0)
    module = ImageCompleter((6, 8), 1, palette_size=4, embed_dim=12, depth=1, num_heads=3, **kwargs).eval()
    module.palette.copy_(torch.tensor([[0.0], [80.0], [160.0], [240.0]]))
    return module


@pytest.fixture(params=["causal", "masked", "middle"])
def objective(request):
    return request.param


def test_a_palette_of_one_entry_is_refused_as_it_leaves_nothing_to_predict():
    with pytest.raises(ValueError, match=r"palette_size \(1\) leaves nothing to predict"):
        ImageCompleter(8, 1, palette_size=1)


def test_the_causal_loss_is_that_of_all_pixels():
    module = completer()
    images = torch.randint(0, 256, (3, 1, 6, 8), dtype=torch.uint8)
    pixels = module.pixels(images)
    expected = F.cross_entropy(module.network(pixels).flatten(0, 2), pixels.flatten())
    torch.testing.assert_close(module.training_loss((images, torch.zeros(3))), expected)


def test_the_masked_loss_is_that_of_the_hidden_pixels(monkeypatch):
    module = completer(objective="masked")
    images = torch.randint(0, 256, (3, 1, 6, 8), dtype=torch.uint8)
    hidden = torch.rand(3, 6, 8) < 0.3
    monkeypatch.setattr(module.network, "hide", lambda pixels, shares: hidden)
    pixels = module.pixels(images)
    expected = F.cross_entropy(module.network(pixels, hidden)[hidden], pixels[hidden])
    torch.testing.assert_close(module.training_loss((images, torch.zeros(3))), expected)


@pytest.mark.parametrize("labels", [[0, -1, -1], [[0, -1], [-1, -1], [-1, -1]]], ids=["classes", "texts"])
def test_images_that_pad_a_batch_are_not_evaluated_and_those_without_a_label_are(labels):
    module = completer()
    module.evaluation, module.places = module.new_evaluation(), [torch.tensor([4, 5, -1])]
    module.validation_step((torch.zeros(3, 1, 6, 8, dtype=torch.uint8), torch.tensor(labels)), 0)
    assert module.evaluation.count == 2


def test_images_are_scaled_down_and_floats_are_read_as_shares_of_white():
    module = ImageCompleter(8, 1, grid_size=(2, 4), palette_size=2, embed_dim=12, depth=1, num_heads=3)
    module.palette.copy_(torch.tensor([[0.0], [255.0]]))
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    images[..., 4:, 2:4] = 255
    assert module.pixels(images).tolist() == [[[0, 0, 0, 0], [0, 1, 0, 0]]]
    assert torch.equal(module.pixels(images / 255), module.pixels(images))


def test_the_middle_loss_is_that_of_the_rows_between_the_given_ones():
    module = completer(objective="middle")
    images = torch.randint(0, 256, (3, 1, 6, 8), dtype=torch.uint8)
    pixels = module.pixels(images)
    expected = F.cross_entropy(module.network(pixels)[:, 1:5].flatten(0, 2), pixels[:, 1:5].flatten())
    torch.testing.assert_close(module.training_loss((images, torch.zeros(3))), expected)
    assert module.network.scored_pixels(pixels)[0].all(dim=1).tolist() == [False, True, True, True, True, False]


def test_a_completion_keeps_the_given_rows(objective):
    module = completer(objective=objective)
    images = torch.randint(0, 256, (3, 1, 6, 8), dtype=torch.uint8)
    completed = module.complete(images)
    assert completed.shape == (3, 6, 8)
    given = [0, 5] if objective == "middle" else [0, 1, 2]
    assert torch.equal(completed[:, given], module.pixels(images)[:, given])


def test_a_completion_is_drawn_from_the_first_row_that_is_not_given_on(objective, monkeypatch):
    module = completer(objective=objective)
    asked = {}
    monkeypatch.setattr(module.network, "complete", lambda *given, generator: asked.update(given=given))
    module.complete(torch.zeros(2, 1, 6, 8, dtype=torch.uint8))
    pixels, *hidden = asked["given"]
    assert pixels.shape == (2, 3 if objective == "causal" else 6, 8)
    for rows in hidden:
        assert rows[0].all(dim=1).tolist() == rows[0].any(dim=1).tolist() == [False] * 3 + [True] * 3
    assert len(hidden) == (objective == "masked")


def test_a_run_learns_its_palette_and_is_measured_beside_the_baselines(run, folder, capsys, objective, pictures):
    run("fit", *COMPLETE, "--model.objective", objective, "--experiment", "draw")
    folder = folder / "runs/draw/version_0"
    printed = capsys.readouterr().out
    scores = json.loads((folder / "results.json").read_text())["scores"]
    assert f"test_bits_per_pixel: {scores['bits_per_pixel']:.3f}\nbits per pixel of baselines: uniform 1.585" in printed
    assert scores["baselines"]["histogram"] < math.log2(3)
    with Image.open(folder / "completions.png") as picture:
        assert min(picture.size) > 200
    page = (folder / "report.html").read_text()
    assert page.count(">this model<") == 1
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert (state["palette"].diff(dim=0) > 0).all()
    assert state["pixel_counts"].sum() == 16 * 1295

    results = json.loads((folder / "results.json").read_text())
    run("test", "--ckpt_path", folder / "checkpoints/last.ckpt")
    again = json.loads((folder / "evaluations/test_last_0/results.json").read_text())
    assert again["scores"] == results["scores"]

    Image.new("L", (8, 8)).save("black.png")
    Image.effect_noise((8, 8), 100).save("noise.png")
    run("predict", "--ckpt_path", folder / "checkpoints/last.ckpt", "--data.root", ".", "--output", "bits.csv")
    with Path("bits.csv").open(newline="") as file:
        bits = {row["file"]: float(row["bits_per_pixel"]) for row in csv.DictReader(file)}
    module = ImageCompleter.load_from_checkpoint(folder / "checkpoints/last.ckpt", weights_only=True).eval()
    black = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    assert bits["black.png"] == pytest.approx(module.predict_step((black, ["black.png"], []), 0).item(), abs=1e-3)
    assert bits["black.png"] != bits["noise.png"]


def test_texts_do_not_matter_and_weights_of_classes_are_refused(run, error_of):
    run("fit", *COMPLETE[4:], "--data", "DigitStrings", "--data.count", "64", "--data.batch_size", "64")
    message = error_of("fit", *COMPLETE, "--data.balance", "loss")
    assert message.startswith("error: balance 'loss' weights classes, and ImageCompleter has none")
    message = error_of("fit", *COMPLETE, "--data.mixup", "0.8")
    assert message.startswith("error: mixup (0.8) blends images, whose colours ImageCompleter learns: set it to 0")


def test_weights_of_classes_are_refused_for_several_labels_an_image_too():
    module, data = completer(), ImageDataModule(balance="loss")
    data.sets = {"train": ImageSet(torch.zeros(2, 1, 6, 8, dtype=torch.uint8), torch.eye(2))}
    module._trainer = SimpleNamespace(datamodule=data)
    with pytest.raises(ValueError, match="balance 'loss' weights classes, and ImageCompleter has none: take"):
        module.setup("fit")


def test_nothing_is_drawn_under_dropout(objective):
    module = completer(objective=objective, dropout=0.5).train()
    with pytest.raises(ValueError, match=r"in training mode, in which dropout is random: call completer.eval\(\)"):
        module.complete(torch.zeros(1, 1, 6, 8, dtype=torch.uint8))


def test_its_checkpoint_is_no_vision_transformer(run, folder):
    run("fit", *COMPLETE, "--experiment", "draw", "--trainer.limit_test_batches", "0")
    with pytest.raises(ValueError, match="holds no Vision Transformer: ImageCompleter"):
        vit.load(folder / "runs/draw/version_0/checkpoints/last.ckpt")


def test_half_of_the_pixels_is_hidden_the_same_in_each_image():
    module = completer(objective="masked")
    hidden = module.network.scored_pixels(torch.zeros(5, 6, 8))
    assert (hidden == hidden[:1]).all()
    assert hidden[0].sum() == 24
    assert torch.equal(hidden[:2], module.network.scored_pixels(torch.zeros(2, 6, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operations_are_those_of_all_matrix_products(dtype, objective):
    module = completer(objective=objective).to(dtype)
    tokens, width = 48, 12
    block = tokens * (4 * width**2 + 2 * 2 * width**2) + 2 * tokens**2 * width
    assert module.training_flop() == 3 * 2 * (block + tokens * width * 5)
    assert module.pixels(torch.zeros(1, 1, 6, 8, dtype=torch.uint8)).unique().tolist() == [0]


def test_tokens_may_be_patches(run, folder, pictures):
    run("fit", *COMPLETE, "--model.grid_size", "8", "--model.patch_size", "2", "--experiment", "draw")
    scores = json.loads((folder / "runs/draw/version_0/results.json").read_text())["scores"]
    assert scores["baselines"]["uniform"] == pytest.approx(math.log2(3) / 4)
    state = torch.load(folder / "runs/draw/version_0/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert state["palette"].shape == (3, 4)
    assert (folder / "runs/draw/version_0/completions.png").exists()


def test_a_patch_that_does_not_divide_the_grid_is_refused(error_of):
    assert "patch_size (3) must divide grid_size (4, 4): take another one" in error_of(
        "fit", *COMPLETE, "--model.patch_size", "3"
    )


@pytest.mark.parametrize("size", ["-4", "0", "[4,0]"])
def test_a_grid_without_pixels_is_refused(error_of, size):
    assert "grid_size (" in error_of("fit", *COMPLETE, "--model.grid_size", size)


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed, objective):
    random = ["--model.dropout", "0.1", "--model.ema_decay", "0.9", "--trainer.max_epochs", "3"]
    whole, resumed = whole_and_resumed(ImageCompleter, *COMPLETE, "--model.objective", objective, *random)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_palette_of_more_colours_than_the_data_has_is_refused(error_of):
    message = error_of("fit", *COMPLETE, "--model.grid_size", "8", "--model.palette_size", "20")
    assert "palette_size (20) is more than the 17 colours of the images: take fewer" in message


class Darker(Digits):
    """Digits of half the brightness."""

    def setup(self, stage):
        super().setup(stage)
        for image_set in self.sets.values():
            image_set.images //= 2


def test_a_further_training_of_a_loaded_completer_keeps_its_palette_as_its_weights_mean_those_colours(tmp_path):
    quiet = dict.fromkeys(("logger", "enable_model_summary", "enable_progress_bar"), False)

    def fit(module, data):
        file = ModelCheckpoint(tmp_path / type(data).__name__)
        Trainer(**quiet, max_steps=1, limit_val_batches=0, accelerator="cpu", callbacks=[file]).fit(module, data)
        return file.best_model_path

    torch.manual_seed(0)
    first = ImageCompleter(8, 1, palette_size=4, grid_size=4, embed_dim=12, depth=1, num_heads=3)
    path = fit(first, Digits(batch_size=100))
    palette, once = first.palette.clone(), {"max_steps": 1, "limit_val_batches": 0, "enable_checkpointing": False}
    Trainer(**quiet, **once, accelerator="cpu").fit(first, Darker(batch_size=100))
    assert torch.equal(first.palette, palette)
    again = ImageCompleter.load_from_checkpoint(path, weights_only=True)
    fit(again, Darker(batch_size=100))
    assert torch.equal(again.palette, first.palette)
    assert torch.equal(again.pixel_counts, first.pixel_counts)
    other = ImageCompleter(8, 1, palette_size=4, grid_size=4, embed_dim=12, depth=1, num_heads=4)
    with pytest.raises(ValueError, match=r"num_heads 3, and this model has 4: leave --model\.num_heads as"):
        other.check_fits(torch.load(path, weights_only=True))
