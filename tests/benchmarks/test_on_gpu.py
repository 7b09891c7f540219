"""The script for a machine that is available for minutes only."""

import itertools
import json
import time
from pathlib import Path

import on_gpu
import pipeline
import pytest
import throughput
import torch
from on_gpu import LADDER, Part, main, parts
from throughput_models import SIZES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Replace the parts by scripts, each a name and lines of Python, and run them."""

    def run(texts, minutes=1.0, needs=0.0):
        monkeypatch.setattr(on_gpu, "FOLDER", tmp_path / "scripts")
        (tmp_path / "scripts").mkdir()
        for name, text in texts.items():
            (tmp_path / "scripts" / f"{name}.py").write_text(text)
        monkeypatch.setattr(on_gpu, "parts", lambda *_: {name: Part([f"{name}.py"], needs) for name in texts})
        main(["--data", "photos", "--minutes", str(minutes), "--output", str(tmp_path / "out")])

    return run


def test_a_part_that_fails_is_one_line_and_the_next_begins(scripts, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1 parts failed"):
        scripts({"first": "raise ValueError('no such kernel')", "second": "print('here')"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first: failed with exit status 1: ValueError: no such kernel (")
    assert lines[1].startswith("second: done (")
    assert (tmp_path / "out" / "on_gpu.log").read_text().endswith("here\n")


def test_at_the_end_of_the_time_a_part_is_stopped_and_the_next_is_skipped(scripts, capsys):
    start = time.monotonic()
    with pytest.raises(SystemExit, match="1 parts failed"):
        scripts({"long": "import time\ntime.sleep(60)", "next": "print('here')"}, minutes=0.02, needs=0.5)
    assert time.monotonic() - start < 20
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("long: stopped: no time left (")
    assert lines[1] == "next: skipped, it needs 0 s and -0 s are left"


def test_sizes_and_files_exist():
    todo = parts(Path("photos"), Path("out"), smoke=False)
    for name, part in todo.items():
        assert name == "environment" or (ROOT / "benchmarks" / part.command[0]).exists()
        after = part.command.index("--sizes") + 1 if "--sizes" in part.command else None
        sizes = itertools.takewhile(lambda word: word[0] != "-", part.command[after:] if after else [])
        assert set(sizes) <= set(SIZES)
    assert "384x12-p2-32" in todo["utilisation"].command


@pytest.mark.parametrize("name", LADDER)
def test_the_command_line_takes_every_rung(name, build):
    typed = parts(Path("photos"), Path("out"), smoke=False)[name].command
    narrow = ["--model.embed_dim", "12", "--model.num_heads", "1"]  # for time's sake
    build(["--config", str(ROOT / on_gpu.RECIPE), *typed[typed.index("--") + 1 :], *narrow])


@pytest.mark.parametrize("smoke", [False, True])
def test_the_scripts_take_the_arguments_of_their_parts(smoke, tmp_path, monkeypatch):
    for script in (throughput, pipeline):
        monkeypatch.setattr(script, "measure", lambda *_: {})
        monkeypatch.setattr(script, "report", str)
        monkeypatch.setattr(script, "DEVICE", torch.device("cpu" if smoke else "cuda"))
    scripts = {"throughput.py": throughput, "pipeline.py": pipeline}
    commands = [part.command for part in parts(Path("photos"), tmp_path, smoke).values()]
    commands = [command for command in commands if command and command[0] in scripts]
    assert len(commands) == 4
    for script, *arguments in commands:
        scripts[script].main(arguments)
    assert len(json.loads((tmp_path / "throughput.json").read_text())) == (1 if smoke else 22)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--smoke", "--output", str(on_gpu.RESULTS)], "--smoke measures nothing of use"),
        (
            ["--parts", "3 minutes", "--output", "out"],
            "unknown part '3 minutes': choose from 'environment', '1 minute'",
        ),
    ],
)
def test_unknown_parts_and_a_trial_among_the_results_are_refused(arguments, error, capsys):
    with pytest.raises(SystemExit):
        main(["--data", "photos", "--minutes", "1", *arguments])
    assert error in capsys.readouterr().err


def test_a_trial_runs_on_any_machine(save_noise, tmp_path, monkeypatch, capsys):
    for name in ("train/a", "train/b", "test/a", "test/b"):
        save_noise(tmp_path / "images" / name, 26)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = ["environment", "1 minute"]
    main(["--data", "images", "--minutes", "9", "--smoke", "--output", "out", "--parts", *chosen])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == chosen
    assert (tmp_path / "out" / "environment.txt").read_text().startswith("{")
    cells = json.loads((tmp_path / "out" / "accuracy.json").read_text())
    assert list(cells) == ["cifar10_gpu 1 minute, cpu, seed 0"]
