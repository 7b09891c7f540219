"""The command ``vit export``; its programs are tested in tests/weights/test_export.py."""

from pathlib import Path

import pytest
import torch

import vit
from vit.commands import export


def test_the_model_is_exported_and_the_line_says_how_near(finished, folder, capsys, monkeypatch):
    exported = []
    monkeypatch.setattr(export, "export", lambda *given: exported.append(given) or 3.4e-5)
    export.main([str(finished), "model.pt2"])
    last = "model.pt2: its logits differ from the model's by 3e-05 at most"
    assert capsys.readouterr().out.splitlines()[-1] == last
    ((model, path),) = exported
    images = torch.rand(3, 1, 8, 8)
    assert path == Path("model.pt2")
    assert torch.equal(model(images), vit.load(finished / "checkpoints/last.ckpt")(images))


def test_no_file_is_written_over(finished, folder, capsys):
    (folder / "model.pt2").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        export.main([str(finished), "model.pt2"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: model.pt2 exists: add --overwrite, or name another file\n"
    assert (folder / "model.pt2").read_text() == "mine"
