"""Mean and spread of a recipe over seeds, with a training that takes no time."""

import json
from pathlib import Path

import accuracy
import pytest
from accuracy import cell_name, main, mean, origins, recipes, with_first_stages
from training_runs import TrainingError

ACCURACIES = {0: 0.71, 1: 0.72, 2: 0.75}


@pytest.fixture
def run(results_of, monkeypatch, tmp_path):
    """Run the benchmark with trainings of known accuracy; return its cells and the arguments of the trainings."""
    given = []

    def run(*arguments, accuracies=ACCURACIES, depth=6, trainer=""):
        def train(name, typed):
            given.append(typed)
            seed = int(typed[typed.index("--seed_everything") + 1])
            if seed not in accuracies:
                raise TrainingError(f"{name} failed with exit status 1: out of memory")
            return results_of(seed, accuracies[seed])

        monkeypatch.setattr(accuracy, "train", train)
        monkeypatch.chdir(tmp_path)
        Path("configs").mkdir(exist_ok=True)
        Path("configs/quick.yaml").write_text(f"{{model: {{depth: {depth}}}{trainer}}}")
        main(["configs/quick.yaml", "--output", str(tmp_path), *arguments])
        return json.loads((tmp_path / "accuracy.json").read_text()), given

    return run


def test_mean_and_spread_are_those_computed_by_hand(run, tmp_path, unpadded, capsys):
    cells, _ = run()
    assert list(cells) == [f"quick, cpu, seed {seed}" for seed in range(3)]
    (group,) = recipes(cells).values()
    assert mean(group, "test_accuracy") == pytest.approx((0.71 + 0.72 + 0.75) / 3)
    report = (tmp_path / "accuracy.md").read_text()
    assert capsys.readouterr().out.strip() == report.strip()
    report = unpadded(report)
    # The deviations from 72.67 are -1.67, -0.67 and 2.33; their squares sum to 8.67, over 2.
    assert "| **mean** | 72.67 ± 2.08 | | 70.00 ± 0.00 | 601 ± 0 | 0.0951 ± 0 | 9.7 ± 0 | 786 ± 0 |" in report
    assert "461,866 parameters, bf16-mixed, ImageFolder data/cifar10-jpeg." in report
    assert "Views" not in report
    assert "timm" not in report
    assert all(cell["machine"]["date"] and "val_loss" not in cell for cell in cells.values())


def test_a_training_that_starts_from_another_takes_the_seconds_and_operations_of_both(run):
    cells, _ = run()
    start = {"model": {"init_from": "runs/quick/version_0/checkpoints/last.ckpt"}}
    later = cells["quick, cpu, seed 1"] | {"recipe": "later", "settings": {"config": start}}
    later |= {"seconds": 30.0, "petaflop": 0.01}
    whole = with_first_stages(cells | {"later, cpu, seed 1": later})
    assert whole["later, cpu, seed 1"]["seconds"] == pytest.approx(601 + 30)
    assert whole["later, cpu, seed 1"]["petaflop"] == pytest.approx(0.0951 + 0.01)
    assert {name: cell for name, cell in whole.items() if cell["recipe"] == "quick"} == cells


def test_seeds_and_arguments_after_the_dashes_go_to_the_training(run):
    _, given = run("--data", "photos", "--seeds", "1", "--", "--model.depth", "2")
    images = ["--data", "ImageFolder", "--data.root", "photos"]
    assert given == [["--config", "configs/quick.yaml", "--seed_everything", "1", *images, "--model.depth", "2"]]


def test_a_seed_that_runs_again_replaces_itself_alone(run):
    run()
    cells, _ = run("--seeds", "1", accuracies={1: 0.5})
    assert [cell["test_accuracy"] for cell in cells.values()] == [0.71, 0.5, 0.75]
    cells, _ = run("--seeds", "1", "--name", "another")
    assert next(iter(cells)) == "another, cpu, seed 1"
    assert len(cells) == 4


def test_a_failure_is_one_line_and_stops_no_other_seed(run, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1 of 3 seeds failed"):
        run(accuracies={0: 0.71, 2: 0.75})
    assert "error: quick seed 1 failed with exit status 1: out of memory\n" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "accuracy.json").read_text())) == ["quick, cpu, seed 0", "quick, cpu, seed 2"]


def test_views_are_named_where_there_are_any(run, unpadded):
    cells, _ = run("--seeds", "0")
    (cell,) = cells.values()
    cell |= {"test_accuracy_views": 0.735, "test_views": "flip", "peer": True}
    report = unpadded(accuracy.report({cell_name(cell): cell}))
    assert "| 0 | 71.00 | 73.50 | 70.00 |" in report
    assert "Views: flip." in report
    assert "The defaults of timm's model and torchvision's loader" in report


def test_commands_that_differ_in_the_seed_alone_are_one(run):
    cells, _ = run()
    (group,) = recipes(cells).values()
    assert origins(group).count("--seed_everything SEED`") == 1
    assert origins([*group, group[0] | {"command": "python other.py"}]).count("` on ") == 2
    assert origins([group[0] | {"commit": "abc1234", "fingerprint": {}}]).endswith(", commit abc1234.")
    assert origins([group[0] | {"commit": ""}]).endswith(", commit not recorded (unchecked).")


def test_every_seed_has_the_commit_that_was_checked_out_when_it_began(run, monkeypatch):
    commits = iter(["abc1234", "abc1234-dirty", "def5678"])
    monkeypatch.setattr(accuracy, "commit", lambda: next(commits))
    cells, _ = run()
    assert [cell["commit"] for cell in cells.values()] == ["abc1234", "abc1234-dirty", "def5678"]


def test_a_recipe_may_leave_out_a_default_that_an_older_one_has(run, tmp_path):
    run(trainer=", trainer: {gradient_clip_val: 1.0}")
    cells, _ = run("--seeds", "7", accuracies={7: 0.7}, trainer=", trainer: {}")
    assert len(cells) == 4


@pytest.mark.parametrize(
    ("arguments", "depth", "told"),
    [
        (["--", "--model.depth", "2"], 6, "from [], and these would be from ['--model.depth', '2']"),
        (["--data", "photos"], 6, "from None, and these would be from 'photos'"),
        ([], 7, "'model': {'depth': 7}, 'trainer': {'gradient_clip_val': 1.0}}"),
    ],
)
def test_another_training_does_not_replace_a_cell(run, capsys, arguments, depth, told):
    run()
    with pytest.raises(SystemExit):
        run("--seeds", "1", *arguments, depth=depth)
    assert f"{told}: choose another --output, or another name" in capsys.readouterr().err
    cells, _ = run("--name", "shallow", *arguments, depth=depth)
    assert len(cells) == 6


def test_seconds_of_another_machine_are_not_averaged_with_these(run, monkeypatch, capsys):
    run()
    facts = accuracy.machine()
    monkeypatch.setattr(accuracy, "machine", lambda: facts | {"threads": 96})
    with pytest.raises(SystemExit):
        run("--seeds", "1")
    assert "96 threads of" in capsys.readouterr().err
    # Those of a GPU have a row of their own.
    monkeypatch.setattr(accuracy, "machine", lambda: facts | {"threads": 96, "gpu": "NVIDIA H200"})
    run("--seeds", "1")


def test_a_missing_recipe_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["no_such.yaml", "--output", str(tmp_path)])
    assert "No such file or directory: 'no_such.yaml'" in capsys.readouterr().err
