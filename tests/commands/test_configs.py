"""Configs by their names."""

import os
from pathlib import Path

import pytest
import yaml

from vit.commands import configs
from vit.commands.configs import find_config, find_configs, packaged_configs, read_config
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


def test_a_folder_of_the_same_name_is_no_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert find_config("photos") == str(packaged_configs()["photos"])


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


CONFIGS = {
    "tab": (b"model:\n\tdepth: 3\n", "found character '\\t' that cannot start any token (line 2); indent by spaces"),
    "twice": (b"model: {}\ntrainer: {}\nmodel: {}\n", "model stands there twice: keep one of them (line 3)"),
    "twice below": (b"model: {depth: 3, depth: 4}\n", "depth stands there twice: keep one of them (line 1)"),
    "nul": (b"model: {depth: 3}\n\0\n", "special characters are not allowed"),
    "latin": ("experiment: Zürich\n".encode("latin-1"), "invalid start byte: save it as UTF-8"),
    "alias": (b"model: *nothing\n", "found undefined alias 'nothing' (line 1)"),
    "code": (b"model: !!python/object/apply:os.system ['touch attacked']\n", "could not determine a constructor"),
    "documents": (b"model: {}\n---\nmodel: {}\n", "expected a single document in the stream but found another"),
    "list": (b"- model\n", "has no arguments by name, such as model: or data:"),
    "deep": (b"model: " + b"[" * 60 + b"]" * 60, "is nested too deeply: take at most 50 levels"),
    "deeper": (b"model: " + b"[" * 3000 + b"]" * 3000, "is nested too deeply: take at most 50 levels"),
    "endless": (b"model: &a [*a]\n", "is nested too deeply: take at most 50 levels"),
    "bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (y, y, b",".join([b"*%c" % (y - 1)] * 9)) for y in b"bcdefg"),
        "says 6,053,444 values, which no config does",
    ),
}


@pytest.mark.parametrize(("content", "answer"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_of_a_stranger_is_refused_in_one_line(tmp_path, content, answer):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="the config ") as refused:
        read_config(path)
    assert f"the config {path}" in str(refused.value)
    assert answer in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pipe_a_folder_and_a_huge_file_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe is no regular file, and reading it might never end"):
        read_config(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"is a folder: name a file in it, such as .*/digits.yaml"):
        read_config(tmp_path)
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(configs.LARGEST + 1)
    with pytest.raises(ValueError, match=r"huge.yaml has 17 MB, which no config has"):
        read_config(tmp_path / "huge.yaml")
    with pytest.raises(ValueError, match=r"cannot read the config .*none.yaml: No such file"):
        read_config(tmp_path / "none.yaml")


def test_aliases_and_merged_mappings_are_taken(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: &small {depth: 3}\nother: {<<: *small, depth: 4}\n")
    assert read_config(path) == {"model": {"depth": 3}, "other": {"depth": 4}}
