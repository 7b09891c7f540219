"""Images whose labels a table names: what is read, split, balanced and mixed, and what is refused."""

import re
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from vit.commands.fit import main
from vit.data import ImageTable
from vit.data.image_files import ImageFiles
from vit.data.split import stratified_split, stratify

ONE_EACH = "file,label\n" + "".join(f"{number}.png,{'ant' if number % 3 else 'bee'}\n" for number in range(24))
SEVERAL = "file,ant,bee,cow\n" + "".join(f"{n}.png,{n % 2},{int(n % 4 == 0)},{int(n in (3, 5))}\n" for n in range(24))


@pytest.fixture
def table(tmp_path):
    """Write a table and 24 images, each of the level of its number, and return the data module."""

    def write(content=SEVERAL, **kwargs):
        for number in range(24):
            (tmp_path / "in").mkdir(exist_ok=True)
            for folder in (tmp_path, tmp_path / "in"):
                Image.new("L", (6, 5), 10 * number).save(folder / f"{number}.png")
        path = tmp_path / "labels.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return ImageTable(str(path), **{"num_workers": 0, "val_fraction": 0.0, "test_fraction": 0.0} | kwargs)

    return write


GROUPED = "file,label,group\n" + "".join(
    f"{number}.png,{'ant' if number % 3 else 'bee'},{'pqrst'[number // 5]}\n" for number in range(24)
)


def ready(data):
    data.setup("fit")
    return data


def labels_of(data, stage="train"):
    """The label of each image of a split, by its number."""
    images, labels = data.sets[stage].decode(torch.arange(len(data.sets[stage].labels)))
    return dict(zip((images[:, 0, 0, 0] // 10).tolist(), labels.tolist(), strict=True))


def test_one_label_for_each_image_is_a_class_number(table):
    data = ready(table(ONE_EACH, balance="loss"))
    assert labels_of(data) == {number: int(number % 3 == 0) for number in range(24)}
    assert (data.class_names, data.num_classes, data.several_labels) == (["ant", "bee"], 2, False)
    assert (data.image_size, data.in_channels, data.root) == ((5, 6), 1, data.table.parent)
    assert data.sets["train"].labels.dtype == torch.long
    assert data.class_weights.tolist() == [24 / (2 * 16), 24 / (2 * 8)]


def test_names_of_classes_in_the_first_line_are_kept_as_they_can_be_shown(table, capsys):
    data = ready(table(SEVERAL.replace("ant", "an\x1b[31mt")))
    assert data.class_names == [r"an\x1b[31mt", "bee", "cow"]
    assert data.sets["train"].labels.shape == (24, 3)
    assert "\x1b" not in capsys.readouterr().out


def test_names_of_classes_are_kept_as_they_can_be_shown(table):
    assert table(ONE_EACH.replace("bee", "\x1b[31mbee")).class_names == ["\\x1b[31mbee", "ant"]


@pytest.mark.parametrize(
    "content",
    [
        "file,label\n1.png,b\n0.png,c\n1.png,a\n2.png,\n",
        "\ufefffile , label\r\n\r\n1.png,b;a\r\n0.png , c ; c\r\n2.png,;\r\n",
        "label,split,file\na ; b,train,./1.png\nc,Training,0.png\n,train,2.png\nc,train,0.png\n",
        "file,a,b,c\n1.png,1,true,0\n0.png,0,0,1\n2.png,False,0,0\n0.png,0,false,TRUE\n",
    ],
)
def test_several_labels_are_rows_of_zeros_and_ones_however_they_are_written(table, content):
    data = ready(table(content))
    assert labels_of(data) == {1: [1, 1, 0], 0: [0, 0, 1], 2: [0, 0, 0]}
    assert (data.class_names, data.several_labels) == (["a", "b", "c"], True)
    assert data.sets["train"].labels.dtype == torch.float32


def test_the_inventory_counts_images_and_of_each_class_its_labels(table):
    first, *rows = ready(table(SEVERAL)).inventory.lines
    assert first.endswith(": 24 train")
    assert [row.split() for row in rows] == [["train"], ["ant", "12"], ["bee", "6"], ["cow", "2"]]


def test_classes_of_columns_keep_the_order_of_the_columns(table):
    assert table("cow,file,ant\n1,0.png,0\n0,1.png,1\n").class_names == ["cow", "ant"]


def test_files_are_named_from_another_folder_and_further_columns_are_said_not_to_be_read(table, tmp_path, capsys):
    data = ready(table("id,file,label\n7,0.png,a\n8,1.png,b\n", root=str(tmp_path / "in")))
    assert data.splits["train"][0] == [tmp_path / "in/0.png", tmp_path / "in/1.png"]
    assert "labels are those of the column label; not read: id" in capsys.readouterr().out


def test_the_few_images_without_one_label_are_named(table, capsys):
    rows = [f"{number}.png,{'ab'[number % 2]}\n" for number in range(7)]
    table("".join(["file,label\n", *rows, "7.png,\n", "0.png,b\n"]))
    said = capsys.readouterr().out
    assert "labels.csv: 1 of 8 images have no label (7.png)" in said
    assert "labels.csv: 1 of 8 images have several labels (0.png)" in said
    table("file,label\n0.png,a;b\n1.png,b\n2.png,\n")
    table(ONE_EACH)
    assert " images have " not in capsys.readouterr().out


def test_splits_are_those_of_the_table(table):
    names = ["train", "Valid", "test", "Train", "validation", "testing"]
    lines = [f"{number}.png,{'ab'[number > 2]},{name}\n" for number, name in enumerate(names)]
    data = ready(table("file,label,split\n" + "".join(lines), val_fraction=0.5, test_fraction=0.5))
    assert {stage: labels_of(data, stage) for stage in data.sets} == {
        "train": {0: 0, 3: 1},
        "val": {1: 0, 4: 1},
        "test": {2: 0, 5: 1},
    }
    assert data.has_validation


@pytest.mark.parametrize("content", [ONE_EACH, SEVERAL])
def test_held_out_images_are_of_every_class_and_the_same_in_memory_and_streamed(table, content):
    options = {"test_fraction": 0.3, "val_fraction": 0.3, "batch_size": 5, "flip": True, "crop_scale": (0.5, 1.0)}
    data, streamed = (ready(table(content, **options, crop_ratio=0.5, memory_limit=limit)) for limit in (1, 0))
    assert isinstance(streamed.sets["train"].images, ImageFiles)
    found = {stage: labels_of(data, stage) for stage in data.sets}
    assert sorted(number for part in found.values() for number in part) == [*range(24)]
    assert found["train"] | found["val"] | found["test"] == labels_of(ready(table(content)))
    for stage in ("train", "val", "test"):
        assert len(found[stage]) > 1
        assert found[stage] == labels_of(streamed, stage)
        batches = [getattr(each, f"{stage}_dataloader")() for each in (data, streamed)]
        for (images, labels), (again, labels_again) in zip(*batches, strict=True):
            assert torch.equal(images, again)
            assert torch.equal(labels, labels_again)
            assert labels.dtype == data.sets[stage].labels.dtype


@pytest.mark.parametrize("memory_limit", [1, 0])
def test_images_of_a_group_are_in_one_split_in_memory_and_streamed(table, memory_limit, capsys):
    sets = ready(table(GROUPED, test_fraction=0.2, val_fraction=0.2, memory_limit=memory_limit)).sets
    assert "24 images in 5 groups, which no split divides" in capsys.readouterr().out
    groups = {stage: {int(file.split(".")[0]) // 5 for file in part.files} for stage, part in sets.items()}
    assert sorted(group for part in groups.values() for group in part) == [0, 1, 2, 3, 4]
    assert all(groups.values())


def test_groups_of_files_that_can_be_read_stay_those_of_the_table(table):
    data = table(GROUPED, skip_damaged=True)
    data.splits["train"][0][3].write_text("no image")
    part = ready(data).sets["train"]
    assert len(part.files) == 23
    assert [data.groups[file] for file in part.files] == ["pqrst"[number] for number in part.groups.tolist()]


def test_images_below_the_root_of_the_disk_keep_their_groups(table, tmp_path):
    names = [str(tmp_path.relative_to("/") / f"{number}.png") for number in range(4)]
    lines = [f"{name},{'ab'[number % 2]},{'pq'[number // 2]}\n" for number, name in enumerate(names)]
    part = ready(table("file,label,group\n" + "".join(lines), root="/")).sets["train"]
    assert (part.files, part.groups.tolist()) == (names, [0, 0, 1, 1])


@pytest.mark.parametrize("content", [ONE_EACH, SEVERAL, GROUPED])
def test_each_image_is_tested_in_one_fold_and_its_group_with_it(table, content):
    found, tested = [], []
    for fold in range(3):
        data = ready(table(content, folds=3, fold=fold, val_fraction=0.2, test_fraction=0.5))
        parts = {stage: labels_of(data, stage) for stage in data.sets}
        assert sorted(number for part in parts.values() for number in part) == [*range(24)]
        assert all(parts.values())
        tested += parts["test"]
        found.append({number: stage for stage, part in parts.items() for number in part})
    assert sorted(tested) == [*range(24)]
    if content is GROUPED:
        assert all(of_fold[number] == of_fold[number // 5 * 5] for of_fold in found for number in range(24))


def test_folds_are_cut_of_the_training_and_the_validation_images_that_a_table_names(table, capsys):
    lines = [f"{number}.png,{'ab'[number % 2]},{['train', 'val', 'test'][number % 3]}\n" for number in range(24)]
    tested = []
    for fold in range(2):
        data = table("file,label,split\n" + "".join(lines), folds=2, fold=fold)
        assert not data.has_validation
        tested += labels_of(ready(data), "test")
    assert sorted(tested) == [number for number in range(24) if number % 3 < 2]
    assert "8 test images that the data name are left out: the folds are parts of the others" in capsys.readouterr().out


def test_a_class_that_only_one_group_has_cannot_be_cut_into_folds(table):
    content = GROUPED.replace("20.png,ant,t", "20.png,cow,t")
    message = r"^fold \d of 3 holds all images of cow, and no image is left to train on: add groups of cow, or delete"
    for fold in range(3):
        with pytest.raises(ValueError, match=message):
            ready(table(content, folds=3, fold=fold))
    with pytest.raises(ValueError, match=r"^folds \(6\) must be at most the number of groups, 5$"):
        ready(table(GROUPED, folds=6, fold=0))


def test_too_few_groups_to_hold_some_out_are_an_error_with_their_number(table):
    content = "file,label,group\n" + "".join(f"{number}.png,{'ab'[number % 2]},all\n" for number in range(24))
    for share in ("val", "test"):
        with pytest.raises(ValueError, match=rf"^{share}_fraction \(0.5\) of 24 images in 1 group holds out none"):
            ready(table(content, **{f"{share}_fraction": 0.5}))


@pytest.mark.parametrize("memory_limit", [1, 0])
def test_rows_that_pad_a_batch_are_minus_one(table, memory_limit):
    data = ready(table(memory_limit=memory_limit, batch_size=5))
    data.sets["test"] = data.sets["train"].subset(torch.arange(9))
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(global_rank=1, world_size=2, overfit_batches=0, strategy=strategy)
    labels = torch.cat([labels for _, labels in data.test_dataloader()])
    # Of the second process: images 5 to 8, and one that pads the batch.
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [-1, -1, -1]]


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_labels_are_blended_as_the_images_are(table, mix):
    data = ready(table(batch_size=24, **{mix: 1.0}))
    plain = ready(table(batch_size=24))
    ((_, labels),), ((images, targets),) = plain.train_dataloader(), data.train_dataloader()
    assert (images.dtype, targets.shape) == (torch.float32, (24, 3))
    other = labels.roll(1, 0)
    differing = labels != other
    shares = ((targets - other) / (labels - other))[differing]
    assert shares.tolist() == pytest.approx([shares[0].item()] * len(shares), abs=1e-5)
    assert 0 < shares[0] < 1
    assert torch.equal(targets[~differing], labels[~differing])


def test_sampling_draws_images_by_their_rarest_label(table):
    data = ready(table(balance="sampling", batch_size=24))
    ((_, labels),) = data.train_dataloader()
    # Strata of 6 bees, 2 cows, 10 other ants, 6 images of none.
    assert stratify(labels).bincount().tolist() == [6] * 4


def test_of_several_labels_the_rarest_one_decides_and_each_keeps_an_image():
    labels = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]])
    assert stratify(labels).tolist() == [0, 1, 2, 3, 0]
    # b, c and d are rarer than a: of each of their pairs, the one with a may be held out.
    pairs = torch.eye(4)[[1, 1, 2, 2, 3, 3]]
    pairs[::2, 0] = 1
    for order in (pairs, pairs.flip(0)):
        kept, held_out = stratified_split(order, 0.5)
        assert sorted([*kept.tolist(), *held_out.tolist()]) == [*range(6)]
        assert (order[kept].sum(dim=0) > 0).all()


def test_damaged_images_may_be_left_out(table):
    data = table("file,label\n0.png,a\n1.png,b\n2.png,b;a\n", skip_damaged=True)
    data.splits["train"][0][1].write_text("no image")
    assert labels_of(ready(data)) == {0: [1, 0], 2: [1, 1]}


def test_the_command_line_takes_a_table(table):
    path = str(table(ONE_EACH).table)
    arguments = ["--model.patch_size", "1", "--model.embed_dim", "12", "--model.depth", "1", "--model.num_heads", "3"]
    data = ["--data", "ImageTable", "--data.table", path, "--data.crop_ratio", "0.9", "--data.flip", "true"]
    cli = main([*data, *arguments], run=False)
    assert (cli.model.network.num_classes, cli.datamodule.crop_ratio, cli.datamodule.augmentation["flip"]) == (
        2,
        0.9,
        True,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\n0.png,a\n", "the first line of {} is 'name,label', without a column 'file': add it"),
        ("", "the first line of {} is '', without a column 'file': add it"),
        ("File,Label\n0.png,a\n", "the first line of {} has 'File': write file, or rename the class"),
        ("file,label,Split\n0.png,a,test\n", "the first line of {} has 'Split': write split, or rename the class"),
        ("file,label,Label\n0.png,a,b\n", "the first line of {} has 'label' and 'Label': rename one"),
        ("file,a,b,GROUP\n0.png,1,0,p\n", "the first line of {} has 'GROUP': write group, or rename the class"),
        ("file;label\n0.png;a\n", "is 'file;label', without a column 'file': separate the cells by commas, not by ';'"),
        ("file\tlabel\n0.png\ta\n", r"without a column 'file': separate the cells by commas, not by '\t'"),
        ("file,label\n", "{} names no images: write a line file,label for each"),
        ("file\n0.png\n", "{} has no label: add a column label, or one of 0 and 1 for each class"),
        ("file,label\n0.png,\n1.png,;\n", "{} has no label: add a column label, or one of 0 and 1 for each class"),
        ("file,label\n0.png,a\n1.png,a\n", "the images of {} are of one class (a): add another class"),
        ("file,label\n0.png,a\n1.png\n", "line 3 of {} has no label: write file,label"),
        ("file,label\n0.png,a\n,b\n", "line 3 of {} has no file: write file,label"),
        ("file,label\n0.png,a\n1.png,a,b\n", "line 3 of {} has 3 cells, more than the first line (2): write a cell"),
        ('file,label\n0.png,a\n1.png,"b\n2.png,c\n', "cannot read {}: unexpected end of data; save it as CSV in UTF-8"),
        (b"file,label\n0.png,\xff\n", "cannot read {}: 'utf-8' codec can't decode"),
        ("file,label\n0.png,a\n1.png,b".encode("utf-16"), "cannot read {}: 'utf-8' codec can't decode"),
        ("file,label\n0.png,a\n1.p\0ng,b\n", "line 3 of {} has a NUL byte: save the table as CSV in UTF-8"),
        ("file,label,label\n0.png,a,b\n", "the first line of {} is 'file,label,label': give each column a name of its"),
        (",file,a\n0,0.png,1\n", "the first line of {} is ',file,a': give each column a name of its own"),
        (
            "file,label\n0.png,a\ngone.png,b\nlost.png,b\n",
            "{} names 2 of 3 images that are not there: gone.png, lost.png",
        ),
        (
            "file,label\n0.png,a\n/etc/1.png,b\n",
            "line 3 of {} names /etc/1.png, outside of the folder: name files below",
        ),
        ("file,label\n0.png,a\nin/../../1.png,b\n", "line 3 of {} names in/../../1.png, outside of the folder"),
        (
            "file,label,split\n0.png,a,train\n0.png,b,test\n",
            "line 3 of {} names 0.png for test, a line before for train",
        ),
        (
            "file,label,split\n0.png,a,train\n1.png,b,dev\n",
            "line 3 of {} has the split 'dev': write train, val or test",
        ),
        ("file,label,split\n0.png,a,train\n1.png,b,\n", "line 3 of {} has the split '': write train, val or test"),
        ("file,label,split\n0.png,a,train\n1.png,b,test\n", "{} has no training image of b: add images, or delete the"),
        ("file,a,b\n0.png,1,0\n1.png,1,0\n", "{} has no training image of b: add images, or delete the class"),
        ("file,a,b\n0.png,1,0\n1.png,1,2\n", "line 3 of {} has '2' in the column b: write 0 or 1"),
        ("file,a,b\n0.png,1,0\n1.png,1,\n", "line 3 of {} has '' in the column b: write 0 or 1"),
        (
            "file,label,group\n0.png,a,p\n1.png,b,\n",
            "line 3 of {} has no group: an image that belongs to no other one has a group of its own",
        ),
        (
            "file,label,group\n0.png,a,p\n1.png,b,q\n./0.png,a,q\n",
            "line 4 of {} names 0.png for the group q, a line before for p: keep one group",
        ),
        (
            "file,label,split,group\n0.png,a,train,p\n1.png,b,train,q\n2.png,a,test,p\n",
            "the group p of {} is in two splits, train and test: images of a group belong to one split",
        ),
        ("file,a,b\n0.png,1,0\n./0.png,1,1\n", "line 3 of {} names 0.png again with other labels: keep one line for"),
    ],
)
def test_a_table_that_is_wrong_is_refused_in_one_line(table, tmp_path, content, message):
    with pytest.raises(ValueError, match=re.escape(message.format(tmp_path / "labels.csv"))) as error:
        table(content)
    assert "\n" not in str(error.value)


def test_a_missing_table_and_a_class_without_readable_images_are_named(table, tmp_path):
    with pytest.raises(ValueError, match=f"^no table {tmp_path / 'gone.csv'}: name a CSV file with the columns file"):
        ImageTable(str(tmp_path / "gone.csv"))
    data = table("file,label\n0.png,a\n1.png,b\n2.png,a;b\n3.png,c\n", skip_damaged=True)
    data.splits["train"][0][3].write_text("no image")
    with pytest.raises(ValueError, match=r"^no readable training image of c: add images, or delete the class$"):
        ready(data)


def test_the_names_of_a_model_number_the_labels_of_a_part_of_the_classes(table):
    data = table("file,label,split\n0.png,bee,test\n1.png,ant,test\n", class_names=["bee", "cow", "ant"])
    data.setup("test")
    assert labels_of(data, "test") == {0: 0, 1: 2}
    assert data.sets["test"].files == ["0.png", "1.png"]


def test_a_table_of_a_part_of_the_classes_is_tested_whole_also_with_several_labels(table, capsys):
    content = re.sub(",1\n", ",0\n", SEVERAL)  # no cow
    data = table(content, class_names=["ant", "bee", "cow"], test_fraction=0.2)
    data.setup("test")
    assert {stage: len(part.labels) for stage, part in data.sets.items()} == {"test": 24}
    assert "has a part of the classes: all 24 images are evaluated" in capsys.readouterr().out
    data = table(SEVERAL, class_names=["ant", "bee", "cow"], test_fraction=0.25)
    data.setup("test")
    assert len(data.sets["test"].labels) == 7
    told = "names no test images: 7 of 24 are tested, held out as in the training; to test all, put them into test/,"
    assert f"{data.root} {told}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "known", "message"),
    [
        (
            ONE_EACH,
            ["ant", "beetle"],
            r"images of bee \(did you mean beetle\?\), and the model knows ant, beetle: name",
        ),
        (SEVERAL, ["ant", "bee", "cow", "dog"], "labels.csv has no column dog, which the model knows: add it$"),
    ],
)
def test_classes_that_do_not_fit_those_of_the_model_are_named(table, content, known, message):
    with pytest.raises(ValueError, match=message):
        table(content, class_names=known)


def test_columns_are_in_the_order_of_the_model(table):
    data = ready(table(class_names=["cow", "ant", "bee"]))
    assert data.sets["train"].labels[3].tolist() == [1.0, 1.0, 0.0]
