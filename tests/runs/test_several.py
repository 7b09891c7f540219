"""Several runs of one training: which belong together, which are finished, and what their folder refuses."""

import contextlib
import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from PIL import Image

from vit.commands.shards import main
from vit.data import Shards
from vit.runs.several import Member, claim_experiment, find_runs, finished_run, last_checkpoint

CONFIG = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "precision": None},
    "data": {"class_path": "vit.data.ImageTable", "init_args": {"table": "a.csv", "folds": 2, "fold": 0, "seed": 0}},
    "model": {"class_path": "vit.ViTClassifier", "init_args": {"lr": 0.1, "betas": [0.9, 0.99], "init_from": None}},
    "experiment": None,
    "ckpt_path": None,
}
DATA = SimpleNamespace(splits={"train": (["a.png"], [0])}, groups={"a.png": "p"})


def changed(**changes):
    """The config with other values of options, which are named with __ in place of a dot."""
    config = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        part, _, option = name.partition("__")
        section = config[part] if option else config
        section = section.get("init_args", section) if option else section
        section[option or part] = value
    return config


def put_run(folder, config, checkpoint=False, **results):
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if checkpoint:
        (folder / "checkpoints/last.ckpt").touch()
    if results:
        (folder / "results.json").write_text(json.dumps(results))


def test_runs_of_a_training_differ_in_fold_seed_and_what_they_resume(tmp_path):
    put_run(tmp_path / "version_10", changed(data__fold=1, ckpt_path="x", experiment="a", trainer__precision="bf16"))
    put_run(tmp_path / "version_9", changed(data__fold=1))
    put_run(tmp_path / "version_0", changed(seed_everything=7, data__seed=7, model__init_from="x"))
    put_run(tmp_path / "version_1", changed(model__lr=0.2))
    put_run(tmp_path / "version_2", changed(trainer__max_epochs=4))
    put_run(tmp_path / "version_3", changed(data__folds=3))
    put_run(tmp_path / "version_of_mine", CONFIG)
    (tmp_path / "version_4").mkdir()
    found = find_runs(tmp_path, changed(data__fold=None, seed_everything=3))
    assert found == {
        Member(fold=0, seed=7): [tmp_path / "version_0"],
        Member(fold=1, seed=0): [tmp_path / "version_9", tmp_path / "version_10"],
    }


def test_the_latest_finished_run_and_the_latest_checkpoint_are_found(tmp_path):
    folders = [tmp_path / f"version_{number}" for number in range(4)]
    put_run(folders[0], CONFIG, checkpoint=True, finished=True)
    put_run(folders[1], CONFIG, checkpoint=True, finished=True)
    put_run(folders[2], CONFIG, checkpoint=True, stopped="KeyboardInterrupt")
    put_run(folders[3], CONFIG)
    assert finished_run(folders) == folders[1]
    assert last_checkpoint(folders) == folders[2] / "checkpoints/last.ckpt"
    assert (finished_run(folders[2:]), last_checkpoint(folders[3:])) == (None, None)


def test_an_experiment_takes_further_folds_and_seeds_of_the_same_training(tmp_path):
    claim_experiment(tmp_path, CONFIG, DATA)
    put_run(tmp_path / "version_0", CONFIG)
    claim_experiment(tmp_path, changed(data__fold=1, seed_everything=5, experiment="a", config=["b.yaml"]), DATA)


def test_an_experiment_without_runs_takes_any_training(tmp_path):
    claim_experiment(tmp_path, CONFIG, DATA)
    claim_experiment(tmp_path, changed(model__lr=0.2), DATA)
    put_run(tmp_path / "version_0", changed(model__lr=0.2))
    with pytest.raises(ValueError, match=r"have --model\.lr 0\.2, not 0\.1: choose another name by --experiment$"):
        claim_experiment(tmp_path, CONFIG, DATA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__folds": 5}, r"the runs of .* have --data\.folds 2, not 5: choose another name by --experiment$"),
        ({"trainer__max_epochs": 4}, r"the runs of .* have --trainer\.max_epochs 3, not 4: choose another name"),
        ({"model__betas": [0, 0]}, r"the runs of .* have --model\.betas \[0\.9, 0\.99\], not \[0, 0\]: choose another"),
    ],
)
def test_an_experiment_refuses_other_options(tmp_path, changes, message):
    claim_experiment(tmp_path, CONFIG, DATA)
    put_run(tmp_path / "version_0", CONFIG)
    with pytest.raises(ValueError, match=f"^{message}"):
        claim_experiment(tmp_path, changed(**changes), DATA)


@pytest.mark.parametrize(
    "changes", [{"splits": {"train": (["b.png"], [0])}}, {"splits": {"train": (["a.png"], [1])}}, {"groups": {}}]
)
def test_an_experiment_refuses_images_that_changed(tmp_path, changes):
    claim_experiment(tmp_path, CONFIG, DATA)
    put_run(tmp_path / "version_0", CONFIG)
    with pytest.raises(ValueError, match=r"^the images, their labels or groups changed since the first run of"):
        claim_experiment(tmp_path, CONFIG, SimpleNamespace(**{**vars(DATA), **changes}))


def test_an_experiment_of_other_runs_is_refused(tmp_path):
    put_run(tmp_path / "version_0", CONFIG)
    with pytest.raises(ValueError, match=r"has runs of other trainings: choose another name by --experiment$"):
        claim_experiment(tmp_path, CONFIG, DATA)


@pytest.mark.parametrize("duplicates", ["warn", "drop"])
def test_shards_are_the_same_images_at_each_start(duplicates, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for level in range(9):
            Image.new("L", (1, 1), level).save(tmp_path / "photos" / name / f"{level}.png")
        Image.new("L", (2, 1), ord(name)).save(tmp_path / "photos" / name / "own.png")

    def start():
        return Shards(f"{tmp_path}/shards/train-000000.tar", image_size=1, num_workers=0, duplicates=duplicates)

    with contextlib.redirect_stdout(None):
        main([str(tmp_path / "photos"), str(tmp_path / "shards"), "--workers", "1"])
    claim_experiment(tmp_path / "runs", CONFIG, start())
    (tmp_path / "runs/version_0").mkdir()
    claim_experiment(tmp_path / "runs", CONFIG, start())
    changed = start()
    labels = changed.splits["train"][1]
    labels[len(labels) // 2] = 1 - labels[len(labels) // 2]
    with (
        np.printoptions(threshold=1),  # as of more than 1,000 labels, numpy writes the first and the last ones
        pytest.raises(ValueError, match="the images, their labels or groups changed since the first run of"),
    ):
        claim_experiment(tmp_path / "runs", CONFIG, changed)
