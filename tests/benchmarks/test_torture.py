"""Runs that are killed, resumed and compared, at a small size."""

import json
import random

import pytest
import torch
import torture

from vit.runs.run_pictures import RunPictures


def tampered(folder, what):
    """Change a file of a round in a way that a kill could; return it with its bytes before."""
    disturbed = torture.finished(folder, seed=0)
    places = {"weights": disturbed / "checkpoints/last.ckpt", "results": disturbed / "results.json"}
    path = places.get(what, folder / "predictions.csv")
    before = path.read_bytes()
    if what == "weights":
        checkpoint = torch.load(path, weights_only=True)
        checkpoint["state_dict"]["network.head.bias"][3] += 1e-6
        torch.save(checkpoint, path)
    elif what == "results":
        path.write_text(json.dumps(json.loads(before) | {"steps": 1}))
    else:
        path.write_bytes(before[:-30])
    return path, before


# One test, because the workers of pytest-xdist would each torture runs of their own.
def test_killed_runs_end_with_the_bits_of_undisturbed_ones_and_a_difference_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("curves", "images"):  # pictures take longer than the training of a model so small
        monkeypatch.setattr(RunPictures, f"_draw_{name}", lambda *_: None)
    result = torture.torture(tmp_path, kills=3, seed=0, kills_a_round=4)
    assert sum(result["kills"].values()) >= 3
    assert set(result["kills"]) <= {"SIGKILL", "SIGTERM"}
    for what in ("weights", "results", "predictions"):
        path, before = tampered(tmp_path / "round_0", what)
        with pytest.raises(AssertionError):
            torture.compare(tmp_path / "round_0", tmp_path / "undisturbed")
        path.write_bytes(before)
    torture.compare(tmp_path / "round_0", tmp_path / "undisturbed")


def test_the_moments_are_those_of_the_seed(monkeypatch):
    class Sleeper:
        process = None

        def start(self):
            self.process = self

        def is_alive(self):
            return True

        def kill(self, number):
            events.append(number)

        def finish(self):
            events.append("finished")

    runs = []
    for seed in (0, 0, 1):
        events = []
        monkeypatch.setattr(torture.time, "sleep", events.append)
        torture.disturb([Sleeper()], 3, 10.0, random.Random(seed))
        runs.append(events)
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][-1] == "finished"
    assert all(0 <= moment <= 10 for moment in runs[0][:-1:2])
