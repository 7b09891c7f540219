"""The benchmark of heads, with trainings that take no time."""

import itertools
import json
from pathlib import Path

import heads
import pytest
import torch
from heads import GROUPS, ROWS, SEEDS, cell_name, experiment, main, stacked
from training_runs import TrainingError

import vit
from vit.data import Digits

TINY = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 32, "depth": 1}
ACCURACY = {"1 head": 0.5, "8 heads": 0.7, "16 heads": 0.8, "no positions": 0.4}


def save_checkpoint(path, **kwargs):
    """Save a checkpoint as training does, of an untrained model of digits."""
    torch.manual_seed(0)
    arguments = TINY | kwargs
    state = {f"vit.{name}": x for name, x in vit.VisionTransformer(**arguments).state_dict().items()}
    described = {"class_names": Digits.class_names, "mean": [0.3], "std": [0.4]}
    data = {"class_path": "vit.data.Digits", "init_args": {}}
    path.parent.mkdir(parents=True)
    torch.save({"hyper_parameters": arguments | described, "state_dict": state, "data": data}, path)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the benchmark with trainings of known accuracy; return its cells and what was trained."""
    trained = []

    def train(name, typed, threads):
        options = dict(itertools.pairwise(typed))
        row, seed = name.rsplit(", seed ", 1)
        if row == "uniform attention":
            raise TrainingError(f"{name} failed with exit status 1: no")
        trained.append((name, options, threads))
        folder = tmp_path / "runs" / options["--experiment"] / f"version_{len(trained)}"
        save_checkpoint(folder / "checkpoints" / "last.ckpt", num_heads=16 if row == "16 heads" else 2)
        facts = {
            "steps": 7,
            "seconds": 3.0,
            "images_per_second": 9.0,
            "parameters": 1234,
            "precision": "32",
            "data": "D",
        }
        return facts | {"test_accuracy": ACCURACY[row] + 0.01 * (int(seed) - SEEDS[0]), "seed": int(seed)}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(heads, "train", train)
    monkeypatch.setattr(heads, "commit", lambda: "abc1234")
    monkeypatch.setattr(heads, "EXAMINED", 30)

    def run(*arguments):
        main(["--steps", "7", "--output", str(tmp_path), *arguments])
        return json.loads((tmp_path / "heads.json").read_text()), trained

    return run


def test_each_row_is_trained_under_each_seed_and_examined_at_two_sizes(run):
    cells, trained = run("--only", "1 head", "8 heads", "--parallel", "2")
    assert set(cells) == {cell_name(row, 7, seed) for row in ("1 head", "8 heads") for seed in SEEDS}
    for name, options, threads in trained:
        row, seed = name.rsplit(", seed ", 1)
        fixed = {"--trainer.max_steps": "7", "--seed_everything": seed, "--model.embed_dim": "128"}
        assert options.items() >= fixed.items()
        assert options["--experiment"] == experiment(row, 7, int(seed))
        assert threads == 1
    cell = cells[cell_name("1 head", 7, SEEDS[0])]
    assert (cell["test_accuracy"], cell["examined"], cell["budget"], cell["commit"]) == (0.5, 30, 7, "abc1234")
    assert 0 <= cell["accuracy"] <= 1
    assert 0 <= cell["larger"] <= 1


def test_what_was_measured_is_not_measured_again(run, tmp_path):
    before, trained = run("--only", "1 head")
    assert len(trained) == len(SEEDS)
    (tmp_path / "heads.json").write_text(json.dumps(dict(list(before.items())[:1])))
    after, trained = run("--only", "1 head", "8 heads")
    assert [name for name, *_ in trained[len(SEEDS) :]] == [
        f"8 heads, seed {SEEDS[0]}",
        *(f"{row}, seed {seed}" for seed in SEEDS[1:] for row in ("1 head", "8 heads")),
    ]
    assert len(after) == 2 * len(SEEDS)


def test_a_failure_stops_no_other_row(run, tmp_path, capsys):
    with pytest.raises(SystemExit, match="error: 3 measurements failed"):
        run("--only", "uniform attention", "1 head")
    assert "error: uniform attention, seed 11 failed with exit status 1: no\n" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "heads.json").read_text())) == len(SEEDS)


def test_the_model_of_16_heads_is_pruned_and_differences_are_taken_under_the_same_seed(run, tmp_path, unpadded):
    cells, _ = run("--only", "16 heads", "8 heads", "1 head", "no positions")
    pruned = cells[cell_name("16 heads", 7, SEEDS[0])]["pruned"]
    assert list(pruned) == ["8", "4", "2", "1"]
    sizes = [smaller["parameters"] for smaller in pruned.values()]
    assert sizes == sorted(sizes, reverse=True)
    per_head = 3 * (32 * 2 + 2) + 2 * 32
    assert sizes[0] - sizes[1] == 4 * per_head
    text = unpadded((tmp_path / "heads.md").read_text())
    assert "| 1 head | 51.00 ± 1.00 | -20.00 ± 0.00 |" in text
    assert "| 8 heads | 71.00 ± 1.00 | |" in text
    assert "| no positions | 41.00 ± 1.00 | -30.00 ± 0.00 |" in text
    assert text.count("| 8 heads |") == 2  # beside the rows of the two groups
    assert "## 16 heads, pruned without further training, 7 steps" in text
    assert (tmp_path / "heads.png").exists()


def test_stacked_heads_compute_what_the_joint_form_computes():
    found = stacked(4)
    assert found["largest_difference"] < 1e-12
    assert found["times_as_long"] > 0
    text = heads.stacked_section(heads.measured(found))
    assert "4 single heads in a row compute what the joint form computes" in text


def test_all_models_are_timed_against_the_reference(run, tmp_path, monkeypatch, unpadded):
    few = {name: ROWS[name] for name in ("8 heads", "1 head")}
    monkeypatch.setattr(heads, "ROWS", few)
    cells, _ = run("--only", *few, "time of a step")
    times = cells["time of a step, 7 steps"]["times"]
    assert list(times) == list(few)
    assert times["8 heads"] == 1
    text = unpadded((tmp_path / "heads.md").read_text())
    assert [f"| {times[name]:.2f} | `--model.num_heads {name[0]}` |" in text for name in few] == [True, True]


def test_a_model_that_is_missing_is_one_line(run, capsys):
    with pytest.raises(SystemExit, match="error: 1 measurements failed"):
        run("--only", "1 head", "time of a step")
    assert "error: time of a step, 7 steps: no checkpoint runs/heads_2_heads_7_13/" in capsys.readouterr().err


def test_questions_without_a_trained_reference_are_one_line(run, capsys):
    with pytest.raises(SystemExit, match="error: 1 measurements failed"):
        run("--only", "1 head", "questions")
    assert "error: questions, 7 steps: no checkpoint runs/heads_8_heads_7_11/" in capsys.readouterr().err


def test_the_questions_are_asked_of_the_reference_once(run, tmp_path, monkeypatch):
    monkeypatch.setattr("vit.analysis.head_removal.ROUNDS", 1)
    monkeypatch.setattr(heads, "EXAMINED", 80)
    cells, _ = run("--only", "8 heads", "questions")
    answers = cells["questions, 7 steps"]["answers"]
    assert list(answers) == list(heads.QUESTIONS)
    assert all(answer["found"] and answer["control"] for answer in answers.values())
    assert (tmp_path / "heads" / "pruning.png").exists()
    assert "- **Is attention low-rank?** With the attention" in (tmp_path / "heads.md").read_text()
    monkeypatch.setattr(heads, "ask", None)
    run("--only", "8 heads", "questions")


@pytest.mark.parametrize("row", ROWS)
def test_the_command_line_takes_every_row_and_builds_its_model(row, build):
    config = Path(heads.__file__).parents[1] / "configs" / "digits.yaml"
    model = build(["--config", str(config), *heads.BASE, *ROWS[row]]).model
    assert (model.hparams.init, model.hparams.patch_drop, model.hparams.compile) == ("glorot", 0, False)
    assert (model.network.embed_dim, len(model.network.blocks)) == (128, 6)
    assert model.network(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_only_one_thing_is_changed_at_a_time():
    assert sum(map(len, GROUPS.values())) == len(ROWS)
    assert len(set(map(tuple, ROWS.values()))) == len(ROWS)
    assert ROWS["8 heads"] == ["--model.num_heads", heads.BASE[heads.BASE.index("--model.num_heads") + 1]]
