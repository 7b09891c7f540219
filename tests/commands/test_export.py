"""The command ``vit export``."""

import pytest
import torch

import vit
from vit.commands import export


@pytest.mark.slow
def test_the_program_gives_the_logits_of_the_model_and_says_how_near(finished, folder, capsys):
    export.main([str(finished), "model.pt2"])
    assert "model.pt2: its logits differ from the model's by" in capsys.readouterr().out
    images = torch.rand(3, 1, 8, 8)
    logits = torch.export.load("model.pt2").module()(images)
    torch.testing.assert_close(logits, vit.load(finished / "checkpoints/last.ckpt")(images), atol=1e-4, rtol=0)


def test_no_file_is_written_over(finished, folder, capsys):
    (folder / "model.pt2").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        export.main([str(finished), "model.pt2"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: model.pt2 exists: add --overwrite, or name another file\n"
    assert (folder / "model.pt2").read_text() == "mine"
