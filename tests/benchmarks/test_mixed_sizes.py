"""The benchmark of batches of many sizes, on small images."""

import json

import mixed_sizes


def test_every_way_gives_the_same_logits_and_has_a_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mixed_sizes, "RANGES", {"4 to 8 pixels": (1, 3)})
    monkeypatch.setattr(mixed_sizes, "IMAGES", 5)
    mixed_sizes.main(["--rounds", "1", "--output", str(tmp_path)])
    results = json.loads((tmp_path / "mixed_sizes.json").read_text())
    (cell,) = results["ranges"].values()
    assert cell["seconds"].keys() == mixed_sizes.WAYS.keys()
    assert all(seconds > 0 for seconds in cell["seconds"].values())
    assert "| 4 to 8 pixels |" in capsys.readouterr().out


def test_images_are_the_same_in_every_run():
    first, second = mixed_sizes.draw_images(2, 5), mixed_sizes.draw_images(2, 5)
    assert [image.shape for image in first] == [image.shape for image in second]
    assert all(8 <= side <= 16 for image in first for side in image.shape[1:])
