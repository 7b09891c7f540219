"""The script for a machine that is there for minutes only."""

import itertools
import json
import sys
import time
from pathlib import Path

import on_gpu
import pytest
import torch
from on_gpu import LADDER, Part, main, parts
from PIL import Image
from throughput_models import SIZES

import train as command_line

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Put scripts into the place of the parts, each a name and lines of Python, and run them."""

    def run(texts, minutes=1.0, needs=0.0):
        monkeypatch.setattr(on_gpu, "FOLDER", tmp_path / "scripts")
        (tmp_path / "scripts").mkdir()
        for name, text in texts.items():
            (tmp_path / "scripts" / f"{name}.py").write_text(text)
        monkeypatch.setattr(on_gpu, "parts", lambda *_: {name: Part([f"{name}.py"], needs) for name in texts})
        main(["--data", "photos", "--minutes", str(minutes), "--output", str(tmp_path / "out")])

    return run


def test_a_part_that_fails_is_one_line_and_the_next_begins(scripts, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1 parts did not end well"):
        scripts({"first": "raise ValueError('no such kernel')", "second": "print('here')"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first: failed with exit status 1: ValueError: no such kernel (")
    assert lines[1].startswith("second: done (")
    assert (tmp_path / "out" / "on_gpu.log").read_text().endswith("here\n")


def test_when_the_time_is_over_a_part_is_stopped_and_none_begins(scripts, capsys):
    start = time.monotonic()
    with pytest.raises(SystemExit, match="1 parts did not end well"):
        scripts({"long": "import time\ntime.sleep(60)", "next": "print('here')"}, minutes=0.02, needs=0.5)
    assert time.monotonic() - start < 20
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("long: stopped: no time left (")
    assert lines[1] == "next: passed over, it needs 0 s and -0 s are left"


def test_sizes_and_files_exist():
    todo = parts(Path("photos"), Path("out"), smoke=False)
    for name, part in todo.items():
        assert name == "environment" or (ROOT / "benchmarks" / part.command[0]).exists()
        after = part.command.index("--sizes") + 1 if "--sizes" in part.command else None
        sizes = itertools.takewhile(lambda word: word[0] != "-", part.command[after:] if after else [])
        assert set(sizes) <= set(SIZES)
    assert "384x12-p2-32" in todo["utilisation"].command


@pytest.mark.parametrize("name", LADDER)
def test_every_rung_is_something_that_the_command_line_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    typed = parts(Path("photos"), Path("out"), smoke=False)[name].command
    further = typed[typed.index("--") + 1 :]
    typed = ["--config", str(ROOT / on_gpu.RECIPE), *further, "--trainer.accelerator", "cpu"]
    command_line.main([*typed, "--trainer.precision", "32-true"], run=False)


def test_a_trial_never_writes_among_the_results(capsys):
    with pytest.raises(SystemExit):
        main(["--data", "photos", "--minutes", "1", "--smoke", "--output", str(on_gpu.RESULTS)])
    assert "a trial measures nothing" in capsys.readouterr().err


def test_a_part_of_another_name_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--data", "photos", "--minutes", "1", "--parts", "3 minutes", "--output", str(tmp_path)])
    assert "no part '3 minutes': choose from 'environment', '1 minute'" in capsys.readouterr().err


@pytest.mark.slow
def test_it_runs_on_any_machine_as_a_trial(tmp_path, monkeypatch, capsys):
    for split, name, index in [(s, n, i) for s in ("train", "test") for n in "ab" for i in range(26)]:
        (tmp_path / "images" / split / name).mkdir(parents=True, exist_ok=True)
        noise = torch.randint(256, (32, 32, 3), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(tmp_path / "images" / split / name / f"{index}.png")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = ["environment", "1 minute", "10 minutes", "utilisation"]
    main(["--data", "images", "--minutes", "9", "--smoke", "--output", "out", "--parts", *chosen])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == chosen
    assert (tmp_path / "out" / "environment.txt").read_text().startswith("{")
    cells = json.loads((tmp_path / "out" / "accuracy.json").read_text())
    assert list(cells) == ["cifar10 1 minute, cpu, seed 0", "cifar10, cpu, seed 0"]
    assert len(json.loads((tmp_path / "out" / "throughput.json").read_text())) == 1
