"""Pictures with texts from a CSV file: what is read, how it is split, and what is refused."""

import csv

import pytest
import torch
from PIL import Image

from vit.data import ImageStrings
from vit.data.image_files import decode


def write(folder, texts, size=(12, 6), columns=("file", "text")):
    """Write a picture for each text and ``texts.csv``; the pixels of a picture are its number."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.png" for number in range(len(texts))]
    for number, name in enumerate(names):
        Image.new("L", size, 10 * number).save(folder / name)
    with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *zip(names, texts, strict=True)])
    return folder


def strings(root, **kwargs):
    return ImageStrings(str(root), **{"num_workers": 0} | kwargs)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "plates"


def texts_of(data, stage):
    """The text of each picture of a split, by the picture's number."""
    part = data.sets[stage]
    numbers = (part.images[:, 0, 0, 0] // 10).tolist()
    return dict(zip(numbers, data.alphabet.decode(part.labels), strict=True))


def test_letters_length_and_size_are_those_of_the_data(root):
    data = strings(write(root, ["ba", "c", "", "abc", "a"] * 4))
    assert (data.letters, data.max_length, data.image_size, data.in_channels) == ("abc", 3, (6, 12), 1)
    assert (data.num_classes, data.class_names) == (0, [])


def test_every_picture_keeps_its_text_in_one_of_three_splits(root):
    texts = [f"{number:02}" for number in range(20)]
    data = strings(write(root, texts))
    data.setup("fit")
    found = {stage: texts_of(data, stage) for stage in data.sets}
    assert {stage: len(part) for stage, part in found.items()} == {"train": 14, "val": 2, "test": 4}
    assert found["train"] | found["val"] | found["test"] == dict(enumerate(texts))


def test_splits_in_folders_are_kept(root):
    for stage, texts in (("train", ["a", "b", "aa"]), ("test", ["ba"])):
        write(root / stage, texts)
    data = strings(root, val_fraction=0)
    data.setup("fit")
    assert {stage: texts_of(data, stage) for stage in data.sets} == {
        "train": {0: "a", 1: "b", 2: "aa"},
        "test": {0: "ba"},
    }
    assert not data.has_validation


def test_a_split_under_another_name_or_without_its_texts_is_refused(root):
    for stage in ("train", "val"):
        write(root / stage, ["a", "b"])
    (root / "val").rename(root / "Valid")
    with pytest.raises(ValueError, match="Valid looks like a split, which is read from val only: rename it to val"):
        strings(root)
    (root / "Valid").rename(root / "val")
    (root / "val/texts.csv").rename(root / "val/Texts.csv")
    with pytest.raises(ValueError, match=r"val has pictures and no texts.csv: write a line file,text for each"):
        strings(root)


@pytest.mark.parametrize("memory_limit", [4, 0], ids=["in memory", "streamed"])
def test_batches_have_rows_of_tokens(root, memory_limit):
    data = strings(write(root, ["ab", "b", "a", "ba", "aa"]), batch_size=2, memory_limit=memory_limit, val_fraction=0)
    data.setup("fit")
    images, tokens = next(iter(data.train_dataloader()))
    assert (images.shape, tokens.shape) == ((2, 1, 6, 12), (2, 4))
    assert tokens[:, 0].tolist() == [data.alphabet.start] * 2
    rest = [tokens for _, tokens in data.test_dataloader()]
    assert rest[0].shape == (1, 4)


def test_pictures_are_scaled_whole_whatever_their_aspect_ratio(root):
    write(root, ["a", "b", "c", "d"], size=(40, 5))
    striped = Image.new("L", (40, 5))
    striped.paste(255, (0, 0, 4, 5))  # the left tenth
    striped.save(root / "0.png")
    data = strings(root, image_size=(10, 20), val_fraction=0, test_fraction=0)
    data.setup("fit")
    image = data.sets["train"].images[0, 0]
    assert image[:, 0].min() > 200
    assert image[:, 4:].max() < 60
    assert torch.equal(image[None], decode(root / "0.png", (10, 20), 1, stretch=True))


def test_letters_that_look_the_same_are_the_same(root):
    data = strings(write(root, ["caf\u00e9", "cafe\u0301", "face", "f"]))
    assert data.letters == "acef\u00e9"
    assert data.max_length == 4
    assert strings(root, letters="acfe\u0301e").letters == "acf\u00e9e"


def test_a_byte_order_mark_and_further_columns_are_no_error(root):
    write(root, ["a", "b", "c"])
    (root / "texts.csv").write_text("\ufefffile,text,note\n0.png,a,x\n1.png,b,y\n2.png,c,z\n", encoding="utf-8")
    assert strings(root).letters == "abc"


def test_blanks_around_a_text_are_no_letters(root):
    write(root, ["a", "b", "c"])
    (root / "texts.csv").write_text("file, text\n0.png, a\n1.png, b c\n2.png,c \n", encoding="utf-8")
    assert strings(root).letters == " abc"
    assert strings(root).max_length == 3


def table(text):
    return lambda root: (root / "texts.csv").write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "texts.csv").unlink(), "no texts.csv in .*write a line file,text for each picture"),
        (
            table("name;text\n0.png;a\n"),
            "the first line of .* is 'name;text', without a column 'file': separate .* by commas, not by ';'",
        ),
        (table("file,text\n"), "names no images: write a line file,text for each"),
        (table(""), "the first line of .* is ''"),
        (table("text,file\na\n"), "line 2 of .* has no file: write text,file"),
        (
            table("file,text\n0.png,a\n1.png,b\n2.png,c\n/none/3.png,d\n"),
            "1 of 4 images that are not there: /none/3.png; add them",
        ),
        (table("file,text\n0.png,a\n1.png\n2.png,c\n"), "line 3 of .* has no text: write file,text"),
        (table("file,text\n0.png,a\n0.png,b\n"), "line 3 of .* names 0.png again"),
        (table("file,text\n\n\n0.png,a\n../plates/0.png,b\n"), "line 5 of .* names 0.png again"),
        (table("file,text\n0.png,a\n1.png,1,5\n"), 'line 3 of .* 3 cells, more than .* comma in quotes, such as "1,5"'),
        (table("file,text\n0.png,a\n1.png,b\n"), "pictures without a line in .*: 2.png; add lines, or delete them"),
        (
            lambda root: (root / "1.png").unlink(),
            "names 1 of 3 images that are not there: 1.png; add them, or delete the",
        ),
        (lambda root: (root / "texts.csv").write_bytes(b"file,text\n0.png,\xff\n"), "cannot read .*utf-8"),
        (
            lambda root: Image.new("L", (7, 7)).save(root / "1.png"),
            r"2 sizes, such as 6x12, 7x7: name rows and columns",
        ),
    ],
)
def test_what_does_not_fit_is_refused(root, damage, message):
    damage(write(root, ["a", "b", "c"]))
    with pytest.raises(ValueError, match=message):
        strings(root)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"letters": "ab"}, "text 'c' has the letter 'c', which 'ab' lacks: add it"),
        ({"letters": "abca"}, "the alphabet 'abca' has 'a' twice"),
        ({"max_length": 0}, r"max_length \(0\) must be a positive whole number"),
        ({"max_length": 1}, "text 'ab' has 2 letters, more than the maximum of 1"),
        ({"image_size": 0}, r"image_size \(0\)"),
        ({"test_fraction": 1}, r"test_fraction \(1\) must be in \[0, 1\)"),
    ],
)
def test_a_wrong_argument_is_refused(root, arguments, message):
    write(root, ["ab", "b", "c"])
    with pytest.raises(ValueError, match=message):
        strings(root, **arguments)


def test_files_may_be_named_in_full(root, monkeypatch):
    write(root, ["a", "b", "c"])
    lines = [f"{root / f'{number}.png'},{letter}" for number, letter in enumerate("abc")]
    (root / "texts.csv").write_text("\n".join(["file,text", *lines]))
    monkeypatch.chdir(root.parent)
    assert strings(root.name).letters == "abc"


def test_too_few_pictures_to_split_are_refused(root):
    data = strings(write(root, ["a"]))
    with pytest.raises(ValueError, match=r"test_fraction \(0.2\) of 1 images holds out none: add images, or set 0"):
        data.setup("fit")


def test_an_empty_picture_is_named_or_left_out(root, capsys):
    write(root, ["a", "b", "c", "d"])
    (root / "2.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"2.png: it is no image: replace or delete the file"):
        strings(root, test_fraction=0, val_fraction=0).setup("fit")
    data = strings(root, test_fraction=0, val_fraction=0, skip_damaged=True)
    data.setup("fit")
    assert texts_of(data, "train") == {0: "a", 1: "b", 3: "d"}
