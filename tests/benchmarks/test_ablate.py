"""The ablation, with a training that takes no time."""

import itertools
import json
from datetime import date
from pathlib import Path

import ablate
import pytest
from ablate import PARTS, main, note_removed, report
from training_runs import TrainingError

ROOT = Path(__file__).parents[2]
COSINE = PARTS["cosine decay"]
GAINS = {"--data.flip": -0.02, "--model.pool": 0.01}


def described(typed):
    """The arguments of a recipe that drops half of the patches for 0.7 of its steps, and has the cosine decay."""
    given = dict(itertools.pairwise(typed))
    recipe = {"patch_drop": 0.5, "patch_drop_until": 0.7}
    model = {name: float(given.get(f"--model.{name}", share)) for name, share in recipe.items()}
    data = {"batch_size": int(given.get("--data.batch_size", 128))}
    others = [word for word in typed if word not in COSINE]
    return json.dumps({"model": {"init_args": model}, "data": {"init_args": data}, "others": others})


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the ablation with trainings of known accuracy; return its cells and the arguments of the trainings."""
    given = []

    def train(name, typed, threads):
        given.append((typed, threads))
        options = dict(itertools.pairwise(typed))
        if "--model.qkv_bias" in options:
            raise TrainingError(f"{name} failed with exit status 1: no")
        seed, steps = int(options["--seed_everything"]), int(options["--trainer.max_steps"])
        gain = sum(gain for option, gain in GAINS.items() if option in options) * (1 + seed)
        facts = {"parameters": 7, "precision": "32-true", "data": "Digits", "command": "python train.py fit"}
        return facts | {"val_accuracy": 0.6 + 0.05 * seed + gain, "val_loss": 1.25, "steps": steps, "seed": seed}

    monkeypatch.setattr(ablate, "train", train)
    monkeypatch.setattr(ablate, "described", described)
    monkeypatch.setattr(ablate, "commit", lambda: "abc1234")

    def run(*arguments):
        main(["configs/quick.yaml", "--steps", "70", "--output", str(tmp_path), *arguments])
        return json.loads((tmp_path / "ablation.json").read_text()), given

    return run


ONLY = ["--only", "the recipe", "no flip", "class token alone"]


def test_differences_are_taken_under_the_same_seed(run, tmp_path, unpadded, capsys):
    cells, _ = run(*ONLY, "--seeds", "0", "1")
    assert len(cells) == 6
    text = (tmp_path / "ablation.md").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    text = unpadded(text)
    rows = [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")]
    assert rows == ["part", "the recipe", "no flip", "class token alone"]
    # Against the recipe 2 points less under seed 0 and 4 under seed 1, and 1 and 2 points more.
    assert "| no flip | `--data.flip false` | 70 | 59.50 ± 2.12 | -3.00 ± 1.41 | 1.250 ± 0.000 | 0, 1 |" in text
    assert "| class token alone | `--model.pool cls` | 70 | 64.00 ± 4.24 | +1.50 ± 0.71 | 1.250 ± 0.000 |" in text
    assert "## quick, 70 steps" in text


def test_the_test_set_is_not_read_and_trainings_do_not_share_a_folder(run):
    _, given = run(*ONLY, "--parallel", "2")
    for typed, threads in given:
        fixed = {"--trainer.limit_test_batches": "0", "--data.val_fraction": "0.1", "--trainer.max_steps": "70"}
        assert dict(itertools.pairwise(typed)).items() >= fixed.items()
        assert threads == 1
    assert len({typed[typed.index("--experiment") + 1] for typed, _ in given}) == 3


def test_parts_get_the_steps_that_take_the_same_time(run, tmp_path, unpadded):
    cells, _ = run("--only", "the recipe", "all patches", "half of the patches to the end")
    # 0.7 of the steps take 0.56, the others 1.
    recipe = 0.7 * 0.56 + 0.3
    steps = {"the recipe": 70, "all patches": round(70 * recipe), "half of the patches to the end": 70 * recipe / 0.56}
    assert {cell["part"]: cell["steps"] for cell in cells.values()} == pytest.approx(steps, abs=0.5)
    assert "| all patches | `--model.patch_drop 0` | 48 |" in unpadded((tmp_path / "ablation.md").read_text())


def test_a_smaller_batch_gets_more_steps(run):
    cells, _ = run("--only", "the recipe", "batch of 64")
    steps = {cell["part"]: cell["steps"] for cell in cells.values()}
    assert steps == {"the recipe": 70, "batch of 64": round(70 / ablate.ON_HALF_THE_IMAGES)}


def test_a_failure_stops_no_other_part(run, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1 of 3 trainings failed"):
        run("--only", "no qkv bias", "no flip", "the recipe")
    assert "error: no qkv bias, seed 0 failed with exit status 1: no\n" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "ablation.json").read_text())) == 2


def test_a_part_that_the_recipe_has_already_is_skipped(run, capsys):
    cells, given = run("--only", "the recipe", "cosine decay", "no flip")
    assert [cell["part"] for cell in cells.values()] == ["no flip", "the recipe"]
    assert len(given) == 2
    assert "cosine decay: skipped, configs/quick.yaml has it already\n" in capsys.readouterr().err


def test_a_recipe_that_train_py_refuses_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ablate, "described", lambda typed: "")
    with pytest.raises(SystemExit):
        main(["configs/no_such.yaml", "--steps", "3", "--output", str(tmp_path)])
    assert capsys.readouterr().err.strip().endswith("python train.py fit --config configs/no_such.yaml")


def test_removed_parts_have_a_table_of_their_own(run, tmp_path, unpadded):
    path = tmp_path / "ablation.json"
    run(*ONLY, "--seeds", "0")
    note_removed("no flip", path)
    run(*ONLY, "--seeds", "1")
    run("--only", "the recipe", "no flip", "--steps", "99")
    note_removed("no flip", path)
    text = unpadded(path.with_suffix(".md").read_text())
    assert text.index("## quick, 70 steps") < text.index("## Tried and removed")
    current, gone = text.split("## Tried and removed")
    assert "| class token alone |" in current
    assert "no flip" not in current
    today = date.today()
    assert f"| no flip | quick, 70 steps | -3.00 ± 1.41 | 0, 1 | abc1234 | `--data.flip false` | {today} |" in gone
    assert f"| no flip | quick, 99 steps | -2.00 | 0 | abc1234 | `--data.flip false` | {today} |" in gone
    # The table stays the same when the recipe runs again.
    cells = json.loads(path.read_text())
    cells["quick, 70 steps: the recipe, seed 0"]["val_accuracy"] = 0.9
    assert unpadded(report(cells)).split("## Tried and removed")[1] == gone
    # It does not need any other table.
    alone = {name: cell for name, cell in cells.items() if "note" in cell}
    assert "## quick" not in report(alone)


def test_a_part_without_the_recipe_beside_it_cannot_be_noted(run, tmp_path):
    run("--only", "no flip")
    with pytest.raises(ValueError, match=r"has 'quick, 70 steps: no flip, seed 0', but not the recipe under that seed"):
        note_removed("no flip", tmp_path / "ablation.json")


@pytest.mark.parametrize("commit", ["", "abc1234-dirty"])
def test_a_part_that_no_commit_has_cannot_be_noted(run, tmp_path, monkeypatch, commit):
    monkeypatch.setattr(ablate, "commit", lambda: commit)
    run(*ONLY)
    with pytest.raises(ValueError, match=f"is from commit '{commit}': commit the part, and run it again"):
        note_removed("no flip", tmp_path / "ablation.json")


def parts_without_a_common_option():
    """The arguments of all parts, several in one command line where no option repeats."""
    groups = []
    for changed in PARTS.values():
        group = next((group for group in groups if not {*changed[::2]} & {*group}), None)
        if group is None:
            groups.append(group := [])
        group += changed
    return groups


@pytest.mark.parametrize("changed", parts_without_a_common_option())
def test_the_command_line_takes_every_part(changed, build):
    build(["--config", str(ROOT / "configs" / "cifar10_quick.yaml"), *changed])
