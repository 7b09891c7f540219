"""Images that a CSV file names, with one label or several each."""

import pytest
import torch

from vit.data import ImageTable

FOLDER = "photos"
SEVERAL = {"a": "ant;bee", "b": "bee", "c": "ant; cat", "d": "", "e": "cat", "f": "ant", "g": "bee", "h": "cat;ant"}


@pytest.fixture
def write(write_image, tmp_path):
    """Write photographs and a table; return the data module."""

    def write(text, names="abcdefgh", **options):
        for name in names:
            write_image(f"{FOLDER}/{name}.png")
        (tmp_path / FOLDER / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        options = {"num_workers": 0, "val_fraction": 0.25, "test_fraction": 0.25, "image_size": 6} | options
        return ImageTable(str(tmp_path / FOLDER / "labels.csv"), **options)

    return write


def lines(labels, header="file,label"):
    return "\n".join([header, *(f"{name}.png,{label}" for name, label in labels.items())])


def labels_of(data):
    """The labels of each file of each split, by name."""
    return {
        stage: {
            path.stem: "".join(name[0] for name, there in zip(data.class_names, label, strict=True) if there)
            if isinstance(label, list)
            else data.class_names[label]
            for path, label in zip(paths, mine, strict=True)
        }
        for stage, (paths, mine) in data.files.items()
    }


def test_a_cell_or_several_lines_hold_several_labels(write):
    data = write(lines(SEVERAL) + "\nb.png,cat\n")
    assert data.class_names == ["ant", "bee", "cat"]
    assert labels_of(data) == {
        "train": {"a": "ab", "b": "bc", "c": "ac", "d": "", "e": "c", "f": "a", "g": "b", "h": "ac"}
    }


def test_one_column_a_class_in_their_order(write):
    data = write("file,cat,ant\na.png,1,0\nb.png,true,TRUE\nc.png,0,0\nd.png,no,yes\n")
    assert data.class_names == ["cat", "ant"]
    assert labels_of(data)["train"] == {"a": "c", "b": "ca", "c": "", "d": "a"}


@pytest.mark.parametrize("text", ["file,label\na.png,ant\nb.png,bee\n", "file,ant,bee\na.png,1,0\nb.png,0,1\n"])
def test_one_label_for_each_image_is_the_number_of_its_class(write, text):
    data = write(text, val_fraction=0, test_fraction=0)
    data.setup("fit")
    assert data.sets["train"].labels.tolist() == [0, 1]
    assert data.sets["train"].labels.dtype == torch.long


def test_a_column_names_the_split_and_the_rest_is_held_out_of_training(write):
    splits = ("train", "val", "Test", "training", "train", "train", "validation", "test")
    named = {name: f"{SEVERAL[name]},{split}" for name, split in zip(SEVERAL, splits, strict=True)}
    text = lines(named, "file,label,split")
    data = write(text)
    data.setup("fit")
    assert {stage: "".join(sorted(found)) for stage, found in labels_of(data).items()} == {
        "train": "adef",
        "val": "bg",
        "test": "ch",
    }
    assert data.has_validation
    assert data.sets["val"].labels.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("memory_limit", [4.0, 0.0])
def test_batches_have_rows_of_labels_and_padding_of_minus_one(write, memory_limit):
    data = write(lines(SEVERAL), memory_limit=memory_limit, batch_size=3, val_fraction=0, test_fraction=0)
    data.setup("fit")
    data.sets["val"] = data.sets["train"]
    batches = list(data.val_dataloader())
    assert [tuple(images.shape) for images, _ in batches] == [(3, 3, 6, 6), (3, 3, 6, 6), (2, 3, 6, 6)]
    labels = torch.cat([labels for _, labels in batches])
    assert labels.tolist() == [[float(name in SEVERAL[key]) for name in data.class_names] for key in SEVERAL]
    sampler = data.val_dataloader().sampler
    sampler.world_size = 3
    assert [labels.tolist() for _, labels in data.val_dataloader()]


def test_each_split_has_its_share_of_the_rarest_label(write):
    rare = {f"{n}": "rare;usual" if n % 4 == 0 else "usual" for n in range(16)}
    data = write(lines(rare), names=rare, val_fraction=0.25, test_fraction=0.25)
    data.setup("fit")
    assert [int(data.sets[stage].labels[:, 0].sum()) for stage in ("train", "val", "test")] == [2, 1, 1]


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_mixed_images_have_mixed_labels(write, mix):
    data = write(lines(SEVERAL), batch_size=8, val_fraction=0, test_fraction=0, **{mix: 1.0})
    data.setup("fit")
    ((images, labels),) = data.train_dataloader()
    assert images.is_floating_point()
    rows = data.sets["train"].labels
    assert labels.shape == (8, 3)
    assert torch.allclose(labels.sum(dim=0), rows.sum(dim=0))
    assert not all(row in rows.tolist() for row in labels.tolist())


def test_balanced_sampling_draws_the_rarest_labels_as_often_as_the_others(write):
    rare = {f"{n}": "rare;usual" if n == 0 else "usual" for n in range(8)}
    data = write(lines(rare), names=rare, val_fraction=0, test_fraction=0, balance="sampling", batch_size=8)
    data.setup("fit")
    ((_, labels),) = data.train_dataloader()
    assert labels[:, 0].sum() == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na.png,ant\n", "the first line of .* is 'name,label': it must have file"),
        ("file;label\na.png;ant\n", "not separated by commas.*: it must have file"),
        ("file,label,label\na.png,ant,bee\n", "has 'label' twice"),
        ("file\na.png\n", "has no labels: add a column label"),
        ("file,label\n", "names no images"),
        ("", "the first line of .* is ''"),
        ("file,label\na.png,ant,bee\n", "line 2 of .* has more values than the first line"),
        ("file,label,split\na.png,ant\n", "line 2 of .* has no split"),
        ("file,label\na.png,ant\nnone.png,bee\n", r"names 1 files that are not in .*: none\.png; add them"),
        ("file,label\n../a.png,ant\n", r"line 2 of .* names \.\./a\.png, which is not below"),
        ("file,label\n/etc/hosts,ant\n", "line 2 of .* names /etc/hosts, which is not below"),
        ("file,label\na\0.png,ant\n", "line 2 of .* names no file|line contains NUL"),
        ("file,ant,bee\na.png,1,2\n", "line 2 of .* has '2' for bee: write 1 if the image shows it, or 0"),
        ("file,ant,bee\na.png,1,0\na.png,0,0\n", "line 3 of .* has other labels for a.png than an earlier one"),
        ("file,label,ant\na.png,ant,1\n", "write the label in one column, or one column a class"),
        ("file,label,split\na.png,ant;bee,later\n", "has the split 'later': write train, val or test"),
        ("file,label,split\na.png,ant,train\na.png,bee,test\n", "line 3 of .* has a.png for test, and an earlier"),
        ("file,label,split\na.png,ant,test\nb.png,bee,test\n", "has no image for train"),
        ("file,label\na.png,ant\nb.png,ant\n", "are of 1 classes: name at least two"),
        (b"file,label\na.png,\xff\n", "cannot read"),
        ('file,label\n"a.png,ant\n', "cannot read"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_remedy(write, text, message):
    with pytest.raises(ValueError, match=message) as error:
        write(text)
    assert "\n" not in str(error.value)


def test_a_missing_table_and_a_class_without_training_images_are_named(write, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none\.csv"):
        ImageTable(str(tmp_path / "none.csv"))
    data = write("file,label,split\na.png,ant;bee,train\nb.png,bee,train\nc.png,cat,test\n", val_fraction=0)
    with pytest.raises(ValueError, match="no readable training image of cat"):
        data.setup("fit")


def test_another_root_is_named_and_a_byte_order_mark_is_skipped(write, write_image, tmp_path):
    write("file,label\na.png,ant\nb.png,bee\n")
    (tmp_path / "elsewhere.csv").write_text("\ufefffile,label\na.png,ant\nb.png,bee\n", encoding="utf-8")
    data = ImageTable(str(tmp_path / "elsewhere.csv"), root=str(tmp_path / FOLDER))
    assert labels_of(data)["train"] == {"a": "ant", "b": "bee"}
