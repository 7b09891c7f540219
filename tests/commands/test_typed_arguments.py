"""Typed arguments, read before the parser is built: the last config decides, and a typed word over all configs."""

from pathlib import Path

import pytest
import yaml

from vit.commands.typed_arguments import read_typed


@pytest.fixture
def configs(tmp_path):
    """The options that name two configs, which contradict each other in all that is read."""
    parts = (
        {"model": "ViTClassifier", "data": "Digits", "trainer": {"default_root_dir": "one"}, "experiment": "first"},
        {"model": "SequenceReader", "data": "CIFAR10", "trainer": {"default_root_dir": "two"}, "experiment": "second"},
    )
    words = []
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(part))
        words += ["--config", str(path)]
    return words


def test_the_last_config_decides(configs):
    found = read_typed(["fit", *configs])
    assert (found.model, found.data, found.root) == ("SequenceReader", "CIFAR10", Path("two"))
    assert found.experiment_of_runs == "second"


def test_a_typed_word_decides_over_all_configs_wherever_it_stands(configs):
    typed = ["--model", "ViTClassifier", "--data", "Digits", "--trainer.default_root_dir", "three"]
    for words in ([*typed, *configs], [*configs, *typed]):
        found = read_typed(["fit", *words, "--experiment", "third"])
        assert (found.model, found.data, found.root) == ("ViTClassifier", "Digits", Path("three"))
        assert found.experiment_of_runs == "third"
