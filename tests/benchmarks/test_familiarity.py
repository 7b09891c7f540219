"""The benchmark of images that the packaged model does not know."""

import json

import torch
from familiarity import SIDE, main, other_images
from PIL import Image

import vit


def test_each_kind_has_images_that_differ_and_scrambled_ones_have_the_pixels_of_known_ones():
    known = torch.randint(0, 256, (6, 3, SIDE, SIDE), dtype=torch.uint8)
    kinds = other_images(known, 6)
    for images in kinds.values():
        assert images.shape == (6, 3, SIDE, SIDE)
        assert images.dtype == torch.uint8
        assert len(images.unique(dim=0)) == 6
    scrambled = kinds["scrambled images"]
    assert not torch.equal(scrambled, known)
    for one, other in zip(scrambled, known, strict=True):
        assert torch.equal(one.flatten().sort().values, other.flatten().sort().values)
        assert any(
            torch.equal(one[:, :8, :8], other[:, r : r + 8, s : s + 8])
            for r in range(0, 32, 8)
            for s in range(0, 32, 8)
        )


def test_scores_and_thresholds_are_written(tmp_path, capsys):
    names = vit.load("cifar10").pretrained_cfg["class_names"]
    for part in ("train", "test"):
        for number, name in enumerate(names):
            (tmp_path / part / name).mkdir(parents=True)
            for index in range(2):
                colour = (25 * number, 99 * index, 255 - 25 * number)
                Image.new("RGB", (SIDE, SIDE), colour).save(tmp_path / part / name / f"{index}.png")
    thresholds = tmp_path / "known.json"
    main(["--data", str(tmp_path), "--output", str(tmp_path), "--images", "20", "--thresholds", str(thresholds)])
    results, known = (json.loads(path.read_text()) for path in (tmp_path / "familiarity.json", thresholds))
    assert results["images"] == known["images"] == 20
    assert len(known["energies"]) == len(known["percents"]) == 99
    for row in results["scores"].values():
        assert row["quantiles"] == sorted(row["quantiles"])
        assert {*row["caught"]} == {"1", "5"}
        assert all(0 <= share <= 1 for caught in (*row["caught"].values(), row["area"]) for share in caught.values())
    assert "energy" in capsys.readouterr().out
