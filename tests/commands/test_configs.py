"""Configs by their names."""

from pathlib import Path

import pytest
import yaml

from vit.commands import configs
from vit.commands.configs import find_config, find_configs, packaged_configs
from vit.commands.fit import main


def test_each_config_of_the_repository_has_a_name_and_is_yaml():
    found = packaged_configs()
    assert {path.name for path in Path("configs").glob("*.yaml")} == {f"{name}.yaml" for name in found}
    assert all(isinstance(yaml.safe_load(path.read_text()), dict) for path in found.values())


@pytest.mark.parametrize(
    "typed",
    [["fit", "--config", "digits"], ["fit", "--config=digits"], ["fit", "-c", "digits", "--model.depth", "2"]],
)
def test_a_name_in_a_command_line_is_the_packaged_file(typed):
    found = find_configs(typed)
    assert [word.replace(str(packaged_configs()["digits"]), "digits") for word in found] == typed
    assert found != typed


def test_a_file_counts_more_than_a_packaged_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("digits").write_text("model: {}")
    assert find_config("digits") == "digits"


def test_the_path_in_the_repository_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("configs/digits.yaml") == str(packaged_configs()["digits"])


def test_configs_inside_the_package_are_those_of_a_wheel(tmp_path, monkeypatch):
    (tmp_path / "one.yaml").write_text("model: {}")
    monkeypatch.setattr(configs, "FOLDERS", (tmp_path, *configs.FOLDERS))
    assert packaged_configs() == {"one": tmp_path / "one.yaml"}


@pytest.mark.parametrize("name", ["digit", "somewhere/digits.yaml", "configs/none.yaml"])
def test_an_unknown_config_is_one_line_with_the_names_that_there_are(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", name])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no config {name}")
    assert "cifar10_quick" in error
    assert error.count("\n") == 1
