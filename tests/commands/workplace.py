"""A folder to type commands in: photographs, files that are damaged, empty or something else, and two trained runs."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image

REPOSITORY = Path(__file__).parents[2]
FORMATS = ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "ppm", "pgm")
CLASSES = ("cat", "cells", "dog", "moon", "space")


def make_workplace(folder: Path) -> None:
    """Make what the commands of ``commands.txt`` name, except for the runs.

    - ``PHOTOS/photos``: five classes of twelve pictures in nine formats; beside it folders that are wrong in one way.
    - ``FILES``: configs, checkpoints and other files that are damaged, empty or foreign, as their names say.
    - ``OUT``: an empty folder.
    """
    _make_photographs(folder / "PHOTOS")
    (folder / "FILES").mkdir()
    _make_configs(folder / "FILES")
    _make_weights(folder / "FILES")
    _make_plates(folder / "PHOTOS")
    (folder / "OUT").mkdir()
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    shutil.copy(REPOSITORY / "README.md", folder)


def _crop(number: int, side: int = 24) -> Image.Image:
    """Return a part of a picture of scikit-learn, another one for each number."""
    picture = load_sample_image(("flower.jpg", "china.jpg")[number % 2])
    top, left = (37 * number) % 380, (91 * number) % 590
    return Image.fromarray(np.ascontiguousarray(picture[top : top + side, left : left + side]))


def _save(number: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = _crop(number)
    (picture.convert("L") if path.suffix == ".pgm" else picture).save(path)


def _make_photographs(folder: Path) -> None:
    rows = ["file,label"]
    for i, name in enumerate(CLASSES):
        for number in range(12):
            file = f"photos/{name}/{number:02}.{FORMATS[number % len(FORMATS)]}"
            _save(12 * i + number, folder / file)
            rows.append(f"{file},{name}")
    (folder / "photos/cat/00.png").rename(folder / "photos/cat/la.png")
    (folder / "labels.csv").write_text("\n".join(rows).replace("cat/00.png", "cat/la.png"))
    for name in ("photos_bad", "renamed", "fourclasses", "dup"):
        shutil.copytree(folder / "photos", folder / name)
    (folder / "damaged").mkdir()
    for number, content in enumerate((b"", b"no picture", (folder / "photos/dog/00.png").read_bytes()[:60])):
        (folder / f"photos_bad/dog/bad{number}.png").write_bytes(content)
        (folder / f"damaged/bad{number}.png").write_bytes(content)
    (folder / "renamed/cat").rename(folder / "renamed/chat")
    shutil.rmtree(folder / "fourclasses/space")
    shutil.copy(folder / "dup/cat/la.png", folder / "dup/dog/la.png")
    (folder / "emptydir").mkdir()
    for number in range(8):
        _save(number, folder / f"oneclass/cat/{number}.png")
        _save(number, folder / f"flat/{number}.png")
        for name in ("cat", "dog"):
            _save(number + 50 * (name == "dog"), folder / f"trainonly/train/{name}/{number}.png")
            _save(number + 50 * (name == "dog"), folder / f"valextra/train/{name}/{number}.png")
            _save(number + 9, folder / f"data/train/{name}/{number}.png")
    _save(0, folder / "oneimg/cat/0.png")
    _save(0, folder / "oneimg/dog/0.png")
    for name in ("cat", "dog", "horse"):
        _save(3, folder / f"valextra/val/{name}/0.png")


def _make_plates(folder: Path) -> None:
    """Make pictures of texts: right ones, without their table, and with a table of another separator."""
    for name, table in (("plates", "file,text\n{}"), ("plates_bad", None), ("plates_semi", "file;text\n{}")):
        for number in range(12):
            _save(number, folder / f"{name}/train/{number}.png")
        separator = ";" if name == "plates_semi" else ","
        rows = "\n".join(f"{number}.png{separator}{number * 37}" for number in range(12))
        if table:
            (folder / name / "train/texts.csv").write_text(table.format(rows))


def _make_configs(folder: Path) -> None:
    texts = {
        "tabs": "model:\n\tdepth: 3\n",
        "bad_indent": "model:\n  depth: 3\n num_heads: 2\n",
        "empty": "",
        "list": "- model\n- data\n",
        "unknown_key": "data: {class_path: Digits}\nmodle: {depth: 3}\n",
        "wrongtype": "data: {class_path: Digits}\nmodel: {depth: many}\n",
        "nul": "model: {depth: 3}\n\0\n",
        "nested": "model: " + "[" * 3000 + "]" * 3000,
        "bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{y}: &{y} [{','.join([f'*{x}'] * 9)}]\n" for x, y in zip("abcdefg", "bcdefgh", strict=True)),
        "python": "model: !!python/object/apply:os.system ['touch FILES/attacked']\n",
        "twice": "model: {depth: 3}\nmodel: {depth: 4}\n",
        "anchor": "model: *nothing\n",
        "null": "model: null\ndata: null\ntrainer: null\n",
        "number": "17\n",
        "text": "the model has a depth of three\n",
        "list_of_models": "model: [1, 2]\ndata: {class_path: Digits}\n",
        "text_model": "model: three\ndata: {class_path: Digits}\n",
        "key_is_a_list": "? [model, data]\n: 3\n",
        "date": "data: {class_path: Digits}\nmodel: {depth: 2024-01-01}\n",
        "infinite": "data: {class_path: Digits}\nmodel: {lr: .inf}\n",
        "surrogate": 'data: {class_path: Digits}\nexperiment: "\\ud800"\n',
        "windows": "data: {class_path: Digits}\r\nmodel: {depth: 1}\r\n",
        "two_documents": "data: {class_path: Digits}\n---\nmodel: {depth: 1}\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "latin1.yaml").write_bytes("experiment: Zürich\n".encode("latin-1"))
    (folder / "utf16.yaml").write_text("model: {depth: 3}\n", encoding="utf-16")
    os.mkfifo(folder / "pipe")
    with (folder / "huge.yaml").open("wb") as file:
        file.truncate(17 * 2**20)


def _make_weights(folder: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1000)}, "hyper_parameters": {}}, folder / "whole.ckpt")
    (folder / "trunc.ckpt").write_bytes((folder / "whole.ckpt").read_bytes()[:700])
    (folder / "whole.ckpt").unlink()
    (folder / "zero.ckpt").touch()
    (folder / "pickle.ckpt").write_bytes(pickle.dumps({"state_dict": Path("x")}))
    save_file({"features": torch.zeros(3, 4)}, folder / "features.safetensors", {"files": '["a", "b", "c"]'})
    Image.new("RGB", (200, 100)).save(folder / "sheet_formats.png")
