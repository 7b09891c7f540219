"""What `make reproduce` runs, leaves out and goes on with; its commands run nothing here."""

import json
import subprocess
from pathlib import Path

import fingerprint
import parts
import pytest
import reproduce
from parts import PARTS, Part
from records import write_json

ROOT = Path(__file__).parents[2]


def test_every_script_and_config_of_a_part_exists():
    for part in PARTS.values():
        for command in part.commands:
            assert (ROOT / "benchmarks" / command.split()[0]).is_file()
        for word in " ".join([*part.commands, *part.trains]).split():
            assert not word.startswith("configs/") or (ROOT / word).is_file(), f"no {word}: change benchmarks/parts.py"


@pytest.fixture
def try_parts(tmp_path, monkeypatch):
    """Parts of one file, at a commit, whose commands write a cell; returns what ran."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    for module in (reproduce, fingerprint):
        monkeypatch.setattr(module, "RESULTS", results)
    table = {
        name: Part(name, "tried", 1, (f"{name}.py --data {{data}}",), f"{name}.*", sources=("benchmarks/sources.py",))
        for name in ("first", "second")
    }
    for module in (reproduce, fingerprint):
        monkeypatch.setattr(module, "PARTS", table)
    monkeypatch.setattr(parts, "PARTS", table)
    monkeypatch.setattr(reproduce, "commit", lambda: "abc1234")
    monkeypatch.setattr(fingerprint.Commits, "tree", lambda self, commit: fingerprint.ROOT)
    ran = []

    def run(words, cwd=None, check=None):
        ran.append(words[1:])
        if "--output" in words:
            path = Path(words[words.index("--output") + 1]) / "tried.json"
            cells = json.loads(path.read_text())
            name = Path(words[1]).stem
            write_json(path, cells | {name: {"commit": "abc1234", "value": 2}})
        return subprocess.CompletedProcess(words, returncode=int("fails.py" in words[1]))

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    return table, results / "tried.json", ran


def test_a_part_replaces_its_own_results_and_is_current_afterwards(try_parts, capsys):
    _, path, ran = try_parts
    write_json(path, {"first": {"commit": "0ld0ld0", "value": 1}, "second": {"commit": "0ld0ld0", "value": 1}})
    reproduce.main(["first", "--data", "photos"])
    cells = json.loads(path.read_text())
    assert (cells["first"]["value"], cells["second"]["value"]) == (2, 1)
    assert "fingerprint" in cells["first"]
    (script, *options), *pages = ran
    assert script == "benchmarks/first.py"
    assert options[:3] == ["--data", "photos", "--output"]
    assert pages == [["benchmarks/results_page.py"], ["benchmarks/pages.py"]]
    ran.clear()
    reproduce.main(["first"])
    assert ran == []
    assert capsys.readouterr().out.endswith("first: current\n")


def test_files_of_another_part_that_begin_alike_are_left_where_they_are(try_parts):
    _, path, _ = try_parts
    write_json(path, {})
    workplace = Path("runs/reproduce/abc1234/results")
    write_json(workplace / "tried_images.json", {})
    (workplace / "tried").mkdir()
    (workplace / "tried_cost.png").touch()
    reproduce.main(["first"])
    assert sorted(file.name for file in path.parent.iterdir()) == ["tried.json", "tried_cost.png"]


def test_a_part_goes_on_after_its_finished_commands(try_parts, monkeypatch):
    table, path, ran = try_parts
    table["first"] = Part("", "tried", 1, ("first.py", "fails.py"), "first", sources=("benchmarks/sources.py",))
    write_json(path, {"first": {"commit": "0ld0ld0", "value": 1}})
    with pytest.raises(SystemExit, match=r"first: python benchmarks/fails.py .* goes on from here"):
        reproduce.main(["first"])
    assert json.loads(path.read_text())["first"]["value"] == 1  # not replaced by half a part
    ran.clear()
    with pytest.raises(SystemExit):
        reproduce.main(["first"])
    assert [words[0] for words in ran] == ["benchmarks/fails.py"]


def test_trainings_that_have_ended_are_kept_and_others_continue(tmp_path):
    place = reproduce.Workplace(tmp_path, "photos")
    words = "--config configs/digits.yaml --data.root {data} --seed_everything 1"
    typed = ["--config", "configs/digits.yaml", "--data.root", "photos", "--seed_everything", "1"]
    start = ["python", "train.py", "fit", *typed, "--trainer.default_root_dir", str(tmp_path)]
    assert place.training(words) == start
    run = tmp_path / "runs/digits/version_0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/last.ckpt").touch()
    write_json(run / "results.json", {"seed": 0, "finished": False})
    assert place.training(words) == start
    write_json(run / "results.json", {"seed": 1, "finished": False})
    assert place.training(words) == [*start, "--ckpt_path", str(run / "checkpoints/last.ckpt")]
    write_json(run / "results.json", {"seed": 1, "finished": True})
    assert place.training(words) is None
    assert place.command("explanations.py --checkpoints {last:digits} --images 5")[2:4] == [
        "--checkpoints",
        str(run / "checkpoints/last.ckpt"),
    ]


def test_options_after_the_dashes_stay_behind_the_output(tmp_path):
    words = reproduce.Workplace(tmp_path, "photos").command("accuracy.py a.yaml -- --model.depth 2")
    assert words[2:] == ["a.yaml", "--output", str(tmp_path / "results"), "--", "--model.depth", "2"]


def test_changes_that_are_not_committed_are_refused(try_parts, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "commit", lambda: "abc1234-dirty")
    with pytest.raises(SystemExit):
        reproduce.main(["first"])
    assert "'abc1234-dirty', and results must name what they measured: commit" in capsys.readouterr().err


def test_a_part_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["head"])
    assert "no part 'head': choose from digits" in capsys.readouterr().err


def test_the_list_has_minutes_and_state_and_a_dry_run_its_commands(try_parts, capsys):
    _, path, ran = try_parts
    write_json(path, {"first": {"commit": "0ld0ld0", "value": 1}})
    reproduce.main(["--list"])
    listed = capsys.readouterr().out
    assert "no fingerprint" in listed
    assert "not measured" in listed
    reproduce.main(["--dry_run"])
    assert "first, about 1 minutes:\n    python benchmarks/first.py --data data/cifar10-jpeg --output" in (
        capsys.readouterr().out
    )
    assert ran == []
