"""The table of the test images of several runs, from those of the runs."""

import csv

from vit.runs.out_of_fold import write_out_of_fold
from vit.runs.several import Member


def put_table(folder, content):
    folder.mkdir()
    (folder / "test_images.csv").write_text(content)
    return folder


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_rows_of_all_runs_have_their_group_fold_and_seed(tmp_path):
    runs = {
        Member(0, 7): put_table(tmp_path / "a", "file,true_class,class\nin/1.png,ant,bee\n"),
        Member(1, 7): put_table(tmp_path / "b", 'file,true_class,class\n"2,2.png",bee,bee\n3.png,ant,ant\n'),
    }
    groups = {"in/1.png": "p", "2,2.png": "q", "3.png": "q"}
    assert write_out_of_fold(tmp_path / "all.csv", runs, groups) == 3
    names = ("file", "group", "fold", "seed", "true_class", "class")
    assert [tuple(row.items()) for row in rows_of(tmp_path / "all.csv")] == [
        tuple(zip(names, values, strict=True))
        for values in [
            ("in/1.png", "p", "0", "7", "ant", "bee"),
            ("2,2.png", "q", "1", "7", "bee", "bee"),
            ("3.png", "q", "1", "7", "ant", "ant"),
        ]
    ]


def test_without_folds_and_groups_the_table_has_seeds_alone(tmp_path):
    runs = {
        Member(None, 0): put_table(tmp_path / "a", "file,class\n1.png,bee\n"),
        Member(None, 1): put_table(tmp_path / "b", "file,class,class_over_views\n1.png,ant,bee\n"),
    }
    write_out_of_fold(tmp_path / "all.csv", runs, {})
    assert rows_of(tmp_path / "all.csv") == [
        {"file": "1.png", "seed": "0", "class": "bee", "class_over_views": ""},
        {"file": "1.png", "seed": "1", "class": "ant", "class_over_views": "bee"},
    ]


def test_runs_that_tested_no_image_have_no_table(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/results.json").write_text('{"objective": "ViTClassifier", "test_weights": "last"}')
    assert write_out_of_fold(tmp_path / "all.csv", {Member(None, 0): tmp_path / "a"}, {}) == 0
    assert not (tmp_path / "all.csv").exists()


def test_a_file_whose_name_looks_like_a_formula_has_its_group(tmp_path):
    runs = {Member(0, 7): put_table(tmp_path / "a", "file,true_class,class\n'-1.png,ant,bee\n")}
    assert write_out_of_fold(tmp_path / "all.csv", runs, {"-1.png": "p"}) == 1
    assert rows_of(tmp_path / "all.csv")[0]["group"] == "p"
