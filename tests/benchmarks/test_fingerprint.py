"""Fingerprints of results: what they notice, and that every stated number is current or says that it is not."""

import doctest
import json

import claims_heads
import fingerprint
import first_losses
import parts
import pytest
import torch
from map_scores import MODELS, map_scores
from parts import PARTS, Part, part_of
from records import RESULTS, write_json
from traced_operations import PASSES

import vit

DIGITS = ["--config", "configs/digits.yaml"]
# The smallest model that has everything whose change must be noticed.
SMALL = [*DIGITS, "--model.embed_dim", "16", "--model.depth", "1", "--model.num_heads", "2", "--data.flip", "true"]
FILES = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("module", [fingerprint, parts])
def test_the_examples_in_the_docstrings(module):
    failures, examples = doctest.testmod(module)
    assert examples
    assert failures == 0


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_result_is_current_or_says_that_it_is_out_of_date(file):
    for part, name, origin, found in fingerprint.states(json.loads(file.read_text()), file.stem):
        if found in ("current", "no fingerprint"):
            assert "stale" not in origin, f"{part} {name} is {found}: run python benchmarks/fingerprint.py --write"
        else:
            assert "stale" in origin, f"{part} {name}: {found}: run python benchmarks/fingerprint.py --write"


def test_every_result_belongs_to_a_part():
    for file in FILES:
        for name, _, _ in fingerprint.records_of(json.loads(file.read_text())):
            assert part_of(file.stem, name), f"{file.name}: {name!r}: add a part to benchmarks/parts.py"


def test_every_part_is_about_a_training_files_operations_or_maps():
    for name, part in PARTS.items():
        assert part.training or part.sources or part.operations or part.map_scores, name
        assert all(fingerprint.hash_of(fingerprint.ROOT, pattern) for pattern in part.sources), name
        assert {*part.operations} <= {*PASSES}, name
        assert {*part.map_scores} <= {*MODELS}, name


@pytest.fixture(scope="module")
def losses():
    """First losses of the small training, with further options."""
    return lambda *options: first_losses.first_losses([*SMALL, *options])["losses"]


@pytest.fixture(scope="module")
def unchanged(losses):
    """Those of the training itself."""
    return losses()


def test_losses_are_the_same_again_and_with_two_threads(losses, unchanged):
    assert len(unchanged) == first_losses.STEPS + 1
    assert losses() == unchanged
    assert fingerprint.close(unchanged, first_losses.first_losses(SMALL, threads=2)["losses"])


@pytest.mark.parametrize(
    "option",
    [
        "--model.lr=6.1e-3",
        "--model.weight_decay=0.1",
        "--model.betas=[0.9,0.98]",
        "--model.optimizer=adamw",
        "--model.init=glorot",
        "--model.warmup=0.3",
        "--model.decay=cosine",
        "--model.label_smoothing=0.11",
        "--model.ema_decay=null",
        "--model.dropout=0.01",
        "--model.patch_drop=0.5",
        "--data.flip=false",
        "--data.crop_padding=2",
        "--data.policy=randaugment",
        "--data.cutmix=1",
        "--data.batch_size=128",
    ],
)
def test_a_changed_setting_changes_the_losses(losses, unchanged, option):
    assert not fingerprint.close(unchanged, losses(option))


def test_the_settings_hold_what_the_first_losses_cannot_show():
    found = first_losses.first_losses([*SMALL, "--model.ema_decay=0.98", "--trainer.gradient_clip_val=0.1"])
    assert found["settings"] == {"ema_decay": 0.98, "clip": 0.1, "max_epochs": 30}


def test_the_end_of_mixing_changes_the_losses(losses):
    assert not fingerprint.close(losses("--data.cutmix=1"), losses("--data.cutmix=1", "--data.mix_until=0.5"))


LINE = "--config configs/digits.yaml"


def first(*losses, **settings):
    """What the first steps of a training find."""
    return lambda *_: {"losses": [*losses], "settings": settings}


@pytest.fixture
def result(tmp_path, monkeypatch):
    """A file of one result, with a part for it, at a commit whose files are those of now."""
    part = Part("tests", "tried", 1, (), training=parts.of_recipe, sources=("benchmarks/sources.py",))
    monkeypatch.setitem(PARTS, "tried", part)
    monkeypatch.setattr(fingerprint, "first_now", first(2.0, 1.0))
    monkeypatch.setattr(fingerprint, "first_at", first(2.0, 1.0))
    monkeypatch.setattr(fingerprint.Commits, "tree", lambda self, commit: fingerprint.ROOT if commit else None)
    path = tmp_path / "tried.json"
    write_json(path, {"one": {"recipe": "digits", "commit": "abc1234"}})
    return path


def written(path):
    """The result after its fingerprint is written."""
    fingerprint.write(path, fingerprint.Commits(path.parent))
    return json.loads(path.read_text())["one"]


def test_a_result_gets_the_fingerprint_of_its_commit_and_is_current(result):
    found = written(result)
    assert found["fingerprint"]["trainings"] == {LINE: {"losses": [2.0, 1.0], "settings": {}}}
    assert [*found["fingerprint"]["sources"]] == ["benchmarks/sources.py"]
    assert "stale" not in found


def test_a_changed_training_is_named_and_a_repaired_one_is_current_again(result, monkeypatch):
    written(result)
    monkeypatch.setattr(fingerprint, "first_now", first(2.0, 1.1))
    assert written(result)["stale"] == f"the first losses of {LINE} differ"
    monkeypatch.setattr(fingerprint, "first_now", first(2.0, 1.0, max_epochs=9))
    assert written(result)["stale"] == f"max_epochs of {LINE} is 9, and was None"
    monkeypatch.setattr(fingerprint, "first_now", lambda line: None)
    assert written(result)["stale"] == f"{LINE} cannot be trained any more"
    monkeypatch.setattr(fingerprint, "first_now", first(2.0, 1.000001))
    assert "stale" not in written(result)


def test_a_changed_file_is_named(result, monkeypatch):
    written(result)
    monkeypatch.setattr(fingerprint, "hash_of", lambda tree, pattern: "other")
    assert written(result)["stale"] == "benchmarks/sources.py has changed"


def test_changed_operations_are_named(result, monkeypatch):
    monkeypatch.setitem(PARTS, "tried", Part("tests", "tried", 1, (), operations=("inference",)))
    monkeypatch.setattr(fingerprint, "operations_at", lambda tree, name: "before")
    monkeypatch.setattr(fingerprint, "operations_now", lambda name: "before")
    assert written(result)["fingerprint"]["operations"] == {"inference": "before"}
    assert "stale" not in written(result)
    monkeypatch.setattr(fingerprint, "operations_now", lambda name: "now")
    assert written(result)["stale"] == "the operations of inference have changed"


def test_operations_of_another_commit_are_those_of_its_files():
    assert fingerprint.operations_at(fingerprint.ROOT, "inference") == fingerprint.operations_now("inference")


def test_operations_that_cannot_be_traced_at_a_commit_give_no_fingerprint(result, monkeypatch):
    monkeypatch.setitem(PARTS, "tried", Part("tests", "tried", 1, (), operations=("inference",)))
    monkeypatch.setattr(fingerprint, "operations_at", lambda tree, name: None)
    assert "fingerprint" not in written(result)


def test_changed_numbers_of_maps_are_named_and_added_rows_change_none(result, monkeypatch):
    monkeypatch.setitem(PARTS, "tried", Part("tests", "tried", 1, (), map_scores=("mean",)))
    before = {"map of rollout": 0.5, "score of rollout": 1.0}
    monkeypatch.setattr(fingerprint, "map_scores_at", lambda tree, name: before)
    monkeypatch.setattr(fingerprint, "map_scores_now", lambda name: before | {"map of new": 1.0})
    assert written(result)["fingerprint"]["map_scores"] == {"mean": before}
    assert "stale" not in written(result)
    monkeypatch.setattr(fingerprint, "map_scores_now", lambda name: before | {"score of rollout": 1.001})
    assert written(result)["stale"] == "the score of rollout of the small model mean changed"


def test_numbers_of_maps_that_cannot_be_computed_at_a_commit_give_no_fingerprint(result, monkeypatch):
    monkeypatch.setitem(PARTS, "tried", Part("tests", "tried", 1, (), map_scores=("mean",)))
    monkeypatch.setattr(fingerprint, "map_scores_at", lambda tree, name: None)
    assert "fingerprint" not in written(result)


@pytest.fixture(scope="module")
def maps_of_the_class_token():
    """Numbers of the maps and scores of the small model that reads the class token."""
    return map_scores("class token")


def test_numbers_of_maps_are_those_of_another_commit_with_the_same_files(maps_of_the_class_token):
    assert not fingerprint.changed_rows(
        maps_of_the_class_token, fingerprint.map_scores_at(fingerprint.ROOT, "class token")
    )


@pytest.mark.parametrize(
    ("place", "changed", "rows"),
    [
        ("vit.explain.maps.rollout.with_residual", lambda mixing, residual: mixing, "map of rollout"),
        ("vit.explain.evaluation.scoring.gini", lambda maps: maps.sum(dim=(1, 2)), "score of center"),
        ("vit.explain.evaluation.scoring.pointing_game", lambda maps, masks: masks[:, 0, 0], "place of legrad"),
        ("vit.explain.evaluation.information_flow.map_correlation", lambda a, b: a.mean(dim=(1, 2)), "flow of value"),
        ("vit.explain.evaluation.sanity.uniform", lambda layer, attn: attn, "uniform of 0"),
    ],
)
def test_another_map_or_measure_changes_its_numbers(maps_of_the_class_token, monkeypatch, place, changed, rows):
    monkeypatch.setattr(place, changed)
    assert rows in fingerprint.changed_rows(maps_of_the_class_token, map_scores("class token"))


def test_an_unknown_small_model_is_refused():
    with pytest.raises(ValueError, match=r"no model 'max': choose one of mean, class token$"):
        map_scores("max")


def test_a_fingerprint_that_lacks_what_its_part_is_about_is_made_anew_or_out_of_date(result, monkeypatch):
    written(result)
    monkeypatch.setitem(PARTS, "tried", Part("tests", "tried", 1, (), sources=("benchmarks/parts.py",)))
    monkeypatch.setattr(fingerprint.Commits, "tree", lambda self, commit: None)
    assert written(result)["stale"] == "the fingerprint has no benchmarks/parts.py"
    monkeypatch.setattr(fingerprint.Commits, "tree", lambda self, commit: fingerprint.ROOT)
    assert "stale" not in written(result)


@pytest.mark.parametrize("commit", [None, ""])
def test_a_result_of_no_known_commit_gets_no_fingerprint(result, commit):
    write_json(result, {"one": {"recipe": "digits", "commit": commit}})
    assert written(result) == {"recipe": "digits", "commit": commit}


def test_trainings_before_the_measurement_need_a_commit_of_their_own(result, monkeypatch):
    part = Part("tests", "tried", 1, (), training=parts.of_recipe, trains=("--config configs/digits.yaml",))
    monkeypatch.setitem(PARTS, "tried", part)
    assert "fingerprint" not in written(result)
    write_json(result, {"one": {"recipe": "digits", "commit": "abc1234", "training": {"commit": "abc1234"}}})
    assert "fingerprint" in written(result)


def test_files_of_a_dirty_commit_are_not_known(tmp_path):
    assert fingerprint.Commits(tmp_path).tree("abc1234-dirty") is None
    assert fingerprint.Commits(tmp_path).tree(None) is None
    assert fingerprint.Commits(tmp_path).tree("0000000") is None


HEADS = ["claims.py", "heads", "1 head"]


def test_a_claim_has_the_first_losses_of_its_own_training_and_its_length(monkeypatch):
    experiment, kept = claims_heads, []
    fit = experiment.fit
    monkeypatch.setattr(
        experiment, "fit", lambda *args, **options: kept.append(args) or fit(*args, **options | {"steps": 4})
    )
    found = first_losses.first_losses(HEADS)
    (model, images, labels), *others = kept
    assert not others  # nothing is trained or measured after the first steps
    assert model.blocks[0].attn.num_heads == 1
    assert found["settings"] == {"images": len(images), "steps": 300, "lr": 3e-3, "warmup": 50}
    assert experiment.fit is not fit  # the experiment is as it was
    torch.manual_seed(0)
    expected = fit(
        vit.VisionTransformer(**experiment.MODEL, num_heads=1), images, labels, steps=4, lr=3e-3, warmup=0, seed=0
    )
    assert fingerprint.close(found["losses"], expected)


def test_another_model_of_a_claim_has_other_losses(monkeypatch):
    before = first_losses.first_losses(HEADS)["losses"]
    monkeypatch.setitem(claims_heads.MODEL, "mlp_ratio", 3.0)
    assert not fingerprint.close(before, first_losses.first_losses(HEADS)["losses"])


def test_losses_of_a_claim_are_computed_in_the_files_of_another_commit():
    line = "claims.py heads '1 head'"
    assert fingerprint.first_at(fingerprint.ROOT, line) == fingerprint.first_now(line)
    assert fingerprint.first_now("claims.py heads '3 heads'") is None


def test_an_unknown_setting_of_a_claim_is_refused():
    with pytest.raises(ValueError, match=r"unknown setting '3 heads' of heads: choose one of 1 head, 2 heads"):
        first_losses.first_losses(["claims.py", "heads", "3 heads"])


def test_words_without_a_config_are_refused():
    with pytest.raises(ValueError, match=r"names no config: add --config FILE"):
        first_losses.first_losses(["--model.depth", "2"])
