"""The command vit weights."""

import sys

import pytest
import timm
import torch

import vit
from vit.commands.weights import main


def test_show_prints_the_report_and_the_arguments(capsys):
    main(["show", "cifar10"])
    report, arguments = capsys.readouterr().out.splitlines()
    assert report == f"weights of cifar10 (vit): {len(vit.load('cifar10').state_dict())} as they are"
    assert arguments.startswith("835,722 parameters; VisionTransformer(")
    assert "patch_stride=" in arguments


def test_convert_writes_what_the_library_reads(tmp_path, capsys):
    theirs = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=1, num_heads=3, num_classes=5)
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    folder = tmp_path / "folder"
    main(["convert", str(tmp_path / "timm.pth"), str(folder), "--to", "transformers", "--num_heads", "3"])
    assert capsys.readouterr().out.splitlines()[-1] == f"written as transformers: {folder}"
    main(["convert", str(folder), str(tmp_path / "again.pth"), "--to", "timm"])
    again = torch.load(tmp_path / "again.pth")
    assert again.keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in theirs.state_dict().items())


def test_convert_to_onnx_exports_the_model(tmp_path, capsys, monkeypatch):
    exported = []
    monkeypatch.setattr("vit.commands.weights.export", lambda *given: exported.append(given))
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3).eval()
    vit.save(model, tmp_path / "model.safetensors")
    main(["convert", str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx"), "--to", "onnx"])
    assert capsys.readouterr().out.splitlines()[-1] == f"written as onnx: {tmp_path / 'model.onnx'}"
    ((read, path),) = exported
    images = torch.randn(3, 3, 8, 8)
    assert path == tmp_path / "model.onnx"
    assert torch.equal(read(images), model(images))


def test_without_the_extra_convert_to_onnx_says_what_to_install(tmp_path, monkeypatch, capsys):
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3)
    vit.save(model, tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx"), "--to", "onnx"])
    said = "error: this needs onnxscript, which is not installed: pip install 'vit-attention[export]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "model.onnx").exists()


def test_an_image_size_may_be_told(tmp_path, capsys):
    theirs = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=1, num_heads=3, img_size=(32, 128))
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    with pytest.warns(UserWarning, match=r"it is read as of \(64, 64\); if it was trained on \(32, 128\), build a Vis"):
        main(["show", str(tmp_path / "timm.pth"), "--num_heads", "3", "--image_size", "32", "128"])
    assert "image_size=(32, 128)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["show", "nowhere.pth"], "no model at nowhere.pth"),
        (["convert", "cifar10", "m.pth", "--to", "timm"], "format 'timm' has no patch_stride"),
        (["convert", "cifar10", "m.pth", "--to", "keras"], "invalid choice: 'keras'"),
        (["convert", "cifar10", "m.pth", "--to", "onnx"], "m.pth must end in .onnx"),
        ([], "required: command"),
    ],
)
def test_a_mistake_is_one_line(typed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(typed)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
