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


def test_an_option_with_the_levels_of_a_config_is_the_short_one():
    typed = ["--model.init_args.init_from", "x.ckpt", "--model.init_args.num_heads=3", "--data.class_path=ImageFolder"]
    found = read_typed(["fit", *typed, "--data.init_args.root", "photos", "--model.class_path", "ViTClassifier"])
    assert (found.start, found.wanted, found.model) == ("x.ckpt", {"num_heads": 3}, "ViTClassifier")
    assert (found.data, found.places) == ("ImageFolder", {"root": "photos"})


def test_the_checkpoint_of_a_config_is_that_of_the_command_unless_another_is_typed(tmp_path):
    config = tmp_path / "resumed.yaml"
    config.write_text("ckpt_path: before.ckpt\n")
    assert read_typed(["fit", "--config", str(config)]).checkpoint == "before.ckpt"
    assert read_typed(["fit", "--config", str(config), "--ckpt_path", "x.ckpt"]).checkpoint == "x.ckpt"


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [("image_size: 64", "set --data.image_size, or leave it out"), ("num_classes: 3", "leave it out")],
)
def test_what_the_data_decide_is_refused_in_a_config_as_on_the_command_line(tmp_path, argument, remedy):
    config = tmp_path / "c.yaml"
    config.write_text(f"data: {{class_path: Digits}}\nmodel: {{{argument}}}\n")
    name = argument.partition(":")[0]
    with pytest.raises(ValueError, match=f"^{name} of the model in a config is that of the data: {remedy}$"):
        read_typed(["fit", "--config", str(config)])
    config.write_text(f"data: {{class_path: Digits}}\nmodel: {{{name}: null}}\n")
    assert name in read_typed(["fit", "--config", str(config)]).given
