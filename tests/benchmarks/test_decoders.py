"""The benchmark of decoders, on checkpoints that were not trained."""

import json

import decoders
import pytest
import torch
from decoders import controls, curve_at, drawn, main, measure_generation, middle_error, report, rows_of

from vit.data import DigitStrings
from vit.data.module import ImageSet
from vit.objectives import ImageCompleter, SequenceReader

FACTS = {"seconds": 3.0, "steps": 7, "parameters": 99, "test_accuracy": 0.5, "command": "python train.py fit"}


def reader():
    torch.manual_seed(0)
    sizes = {"image_size": (32, 96), "patch_size": 8, "in_channels": 1, "embed_dim": 8, "depth": 1, "num_heads": 2}
    return SequenceReader("0123456789", 5, decoder_depth=1, **sizes).eval()


def completer(objective):
    torch.manual_seed(0)
    sizes = {"grid_size": 4, "palette_size": 3, "embed_dim": 8, "depth": 2, "num_heads": 2}
    module = ImageCompleter(8, 1, objective=objective, **sizes).eval()
    module.palette.copy_(torch.tensor([[0.0], [100.0], [200.0]]))
    return module


@pytest.fixture
def checkpoint(tmp_path):
    """Save a module as a run does, and return the path of the checkpoint."""

    def save(module, seed, data):
        folder = tmp_path / "runs" / type(module).__name__ / f"version_{seed}"
        (folder / "checkpoints").mkdir(parents=True)
        described = {"experiment": type(module).__name__, "seed": seed}
        (folder / "results.json").write_text(json.dumps(FACTS | described))
        saved = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams), "data": data}
        saved |= {"module": type(module).__name__, "pytorch-lightning_version": "2.6.4"}
        torch.save(saved, folder / "checkpoints" / "last.ckpt")
        return folder / "checkpoints" / "last.ckpt"

    return save


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(decoders, "RANKING", 10)
    monkeypatch.setattr(decoders, "ROUNDS", 1)
    monkeypatch.setattr(decoders, "LENGTH", 4)
    monkeypatch.setattr(decoders, "TIMED", ((24, 1), (48, 2)))
    numbers = DigitStrings.numbers

    def few(data, stage):
        data.counts = dict.fromkeys(data.counts, 20)
        return numbers(data, stage)

    monkeypatch.setattr(DigitStrings, "numbers", few)


def test_each_checkpoint_is_a_cell_and_the_report_shows_all(checkpoint, small, tmp_path):
    digits = {"class_path": "vit.data.Digits", "init_args": {}}
    paths = [checkpoint(reader(), 0, {}), checkpoint(completer("causal"), 0, digits)]
    paths.append(checkpoint(completer("masked"), 1, digits))
    main([*map(str, paths), "--images", "20", "--output", str(tmp_path)])
    main(["--output", str(tmp_path)])
    cells = json.loads((tmp_path / "decoders.json").read_text())
    assert list(cells) == ["ImageCompleter, seed 0", "ImageCompleter, seed 1", "SequenceReader, seed 0", "generation"]
    assert [(row["embed_dim"], row["depth"]) for row in cells["generation"]["rows"]] == [(24, 1), (48, 2)]
    assert all(row["times_as_fast"] > 0 for row in cells["generation"]["rows"])
    read = cells["SequenceReader, seed 0"]
    assert set(read["reading"]) == {"apart, greedy", "apart, beams", "overlapping, greedy", "overlapping, beams"}
    assert {name: len(curve) for name, curve in read["pruning"].items()} == {
        f"{kind}, {order}": 3 for kind in ("encoder", "decoder", "cross") for order in ("importance", "random")
    }
    completed = cells["ImageCompleter, seed 1"]["completion"]
    assert completed["objective"] == "masked"
    assert len(completed["probes"]) == 2
    assert completed["baselines"]["uniform"] == pytest.approx(1.585, abs=1e-3)
    written = (tmp_path / "decoders.md").read_text()
    assert written == report(cells)
    for name in (
        "times as fast by a decoder of 48 channels and 2 blocks; they are the same",
        "cross, importance",
        "Images completed",
        "| causal",
        "| masked",
    ):
        assert name in written


def test_a_classifier_is_refused(checkpoint, tmp_path):
    path = checkpoint(reader(), 0, {})
    saved = torch.load(path, weights_only=True)
    torch.save(saved | {"module": "ViTClassifier"}, path)
    with pytest.raises(ValueError, match="is of a ViTClassifier: give checkpoints of readers and completers"):
        main([str(path), "--output", str(tmp_path)])


def test_what_is_written_is_padded_to_one_length():
    rows = rows_of(reader(), torch.randint(0, 256, (3, 1, 32, 96), dtype=torch.uint8))
    assert rows.shape == (3, 6)


def test_the_controls_know_nothing_of_the_picture():
    maps = controls(torch.Size([2, 3, 4, 12]))
    assert maps["chance"].unique().tolist() == [1]
    assert torch.equal(maps["center"][0, 0], maps["center"][1, 2])
    assert not torch.equal(maps["random"][0, 0], maps["random"][0, 1])


def test_images_are_drawn_from_all_classes():
    ordered = ImageSet(torch.arange(10_000), torch.arange(10_000) // 1_000)
    sample = drawn(ordered, 2_000)
    assert sample.labels.bincount().min() > 150
    assert torch.equal(sample.labels, sample.images // 1_000)
    assert len(sample.images.unique()) == 2_000


def test_a_share_of_the_heads_is_rounded_up():
    points = [{"accuracy": accuracy} for accuracy in (1.0, 0.9, 0.5, 0.1)]
    assert [curve_at(points, share) for share in (0, 0.25, 0.5, 2 / 3, 1)] == [1.0, 0.9, 0.5, 0.5, 0.1]


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_error_of_the_middle_is_that_of_the_rows_that_were_hidden(objective, monkeypatch):
    module = completer(objective)
    pixels = torch.ones(2, 4, 4, dtype=torch.long)
    filled = torch.zeros(2, 4, 4, dtype=torch.long)
    filled[:, 1:3] = torch.tensor([[1, 2, 1, 1], [0, 1, 1, 1]])
    monkeypatch.setattr(module.network, "complete", lambda rows, *_, **__: filled)
    assert middle_error(module, pixels) == 200 / 8


def test_generation_is_timed_with_equal_tokens(small, monkeypatch):
    assert measure_generation(24, 1)["times_as_fast"] > 0
    written = decoders.sample

    def other(*arguments, use_cache):
        found = written(*arguments, use_cache=use_cache)
        found.tokens[0, 0] += use_cache
        return found

    monkeypatch.setattr(decoders, "sample", other)
    with pytest.raises(ValueError, match="generation with the cache writes other tokens"):
        measure_generation(24, 1)
