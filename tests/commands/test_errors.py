"""An error of the user is one clear line on standard error, and exit status 2."""

import json
import pickle
import socket
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from PIL import Image

from tests.tiny import TINY
from vit.commands.errors import plain_output


@pytest.fixture
def checkpoint(finished) -> Path:
    return finished / "checkpoints/last.ckpt"


@pytest.fixture
def pets(folder) -> Path:
    """Two classes of four training and four test images each."""
    for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (folder / "pets" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / "pets" / name / f"{number}.png")
    return folder / "pets"


def test_a_file_that_is_not_a_checkpoint(error_of, folder):
    (folder / "notes.ckpt").write_text("remember the milk")
    assert "notes.ckpt is not a checkpoint, or is damaged" in error_of("test", "--ckpt_path", "notes.ckpt")


def test_a_checkpoint_with_code_is_refused_and_nothing_runs(error_of, folder):
    class Attack:
        def __reduce__(self):
            return (Path.touch, (folder / "attacked",))

    with (folder / "evil.ckpt").open("wb") as file:
        pickle.dump(Attack(), file)
    torch.save({"state_dict": {}, "hyper_parameters": {"depth": Attack()}}, folder / "evil2.ckpt")
    for name in ("evil.ckpt", "evil2.ckpt"):
        for command in (["test"], ["predict", "--data.root", "."], ["fit", *TINY]):
            answer = error_of(*command, "--ckpt_path", name)
            assert f"{name} is refused: it carries pickled code" in answer or "is not a checkpoint" in answer
    assert not (folder / "attacked").exists()


def test_a_class_path_in_a_checkpoint_imports_nothing(error_of, folder, checkpoint):
    (folder / "trap.py").write_text("raise SystemExit('imported')")
    contents = torch.load(checkpoint, weights_only=True)
    contents["data"] = {"class_path": "trap.Trap", "init_args": {}}
    torch.save(contents, "trapped.ckpt")
    assert "no data: add --config FILE" in error_of("test", "--ckpt_path", "trapped.ckpt")


SPEC = {"class_path": "trap.Trap", "init_args": {}}


@pytest.mark.parametrize(
    "attention_kwargs",
    [SPEC, {"window": SPEC}, {"window": [SPEC]}, {"window": json.dumps(SPEC)}, json.dumps({"window": SPEC}), [SPEC]],
    ids=["whole", "value", "in a list", "text", "whole as text", "list"],
)
def test_a_class_path_in_the_one_argument_of_any_type_imports_nothing(error_of, folder, checkpoint, attention_kwargs):
    (folder / "trap.py").write_text("import pathlib; pathlib.Path('imported').touch()\nclass Trap: pass")
    contents = torch.load(checkpoint, weights_only=True)
    contents["hyper_parameters"]["attention_kwargs"] = attention_kwargs
    torch.save(contents, "trapped.ckpt")
    for command in (["test"], ["predict", "--data.root", "."], ["fit", *TINY]):
        assert "trapped.ckpt is refused: its attention_kwargs are" in error_of(*command, "--ckpt_path", "trapped.ckpt")
    assert not (folder / "imported").exists()


def test_a_checkpoint_of_another_architecture(error_of, checkpoint):
    answer = error_of("test", "--ckpt_path", checkpoint, "--model.depth", "3")
    assert "comes from another architecture, 12 tensors differ" in answer
    assert "network.blocks.2.attn.proj.bias is missing" in answer


def test_a_checkpoint_of_images_of_another_size_names_both_and_the_option_that_sets_it(error_of, folder, checkpoint):
    for digit in range(10):
        (folder / "digits" / str(digit)).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8), number).save(folder / "digits" / str(digit) / f"{number}.png")
    typed = ["test", "--ckpt_path", checkpoint, "--data", "ImageFolder", "--data.root", "digits"]
    answer = error_of(*typed, "--data.image_size", "[8,12]")
    assert answer.endswith(
        "its images have (8, 8) pixels and these (8, 12): leave out --data.image_size, or give images of (8, 8)"
    )
    answer = error_of("predict", *typed[1:3], "--data.root", "digits", "--data.image_size", "[7,9]")
    assert "image_size (7, 9) must be a multiple of patch_size (4, 4): set --data.image_size [4,8] if" in answer


def test_a_checkpoint_of_other_classes(error_of, pets, checkpoint):
    answer = error_of("test", "--ckpt_path", checkpoint, "--data", "ImageFolder", "--data.root", "pets")
    assert "pets has images of cat, dog, and the model knows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9: name each class" in answer


def test_a_truncated_image_is_named(error_of, pets):
    image = pets / "train/dog/3.png"
    image.write_bytes(image.read_bytes()[:40])
    answer = error_of("fit", *TINY, "--data", "ImageFolder", "--data.root", "pets", "--data.num_workers", "0")
    assert "cannot read image pets/train/dog/3.png" in answer


def test_no_network_and_no_data(error_of, monkeypatch):
    def no_network(*_, **__):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    answer = error_of("fit", *TINY, "--data", "CIFAR10", "--data.root", "empty")
    assert "put cifar-10-python.tar.gz into empty" in answer
    assert "or try --data Digits, which needs no download" in answer


@pytest.mark.parametrize(
    "message",
    [
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "[gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:20114",
        "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    ],
)
def test_a_process_that_has_lost_another_one_ends_with_a_line(message, capsys):
    with pytest.raises(SystemExit) as end, plain_output():
        raise torch.distributed.DistNetworkError(message + "\nException raised from recvBytes")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: another process of the training has ended ({message})\n"


def test_a_loss_that_is_no_longer_finite_stops_at_its_step_and_keeps_the_last_good_checkpoint(error_of, folder):
    answer = error_of("fit", *TINY, "--model.lr", "1e22", "--experiment", "nan")
    assert "the loss is no longer finite, first at step " in answer
    assert "try a lower --model.lr (1e+22)" in answer
    for path in folder.glob("runs/nan/version_0/checkpoints/*.ckpt"):
        tensors = torch.load(path, weights_only=True)["state_dict"].values()
        assert all(tensor.isfinite().all() for tensor in tensors)


def test_a_disk_that_fills_up_while_training(run, folder, monkeypatch, capsys, pictures):
    save, saved = torch.save, []

    def full_after_two(contents, file):
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        saved.append(file)
        save(contents, file)

    monkeypatch.setattr("vit.runs.checkpoints.torch.save", full_after_two)
    for what in ("run_pictures.draw_curves", "record.write_results"):
        monkeypatch.setattr(f"vit.runs.{what}", lambda *_, **__: full_after_two(None, None))
    with pytest.raises(SystemExit) as stopped:
        run("fit", *TINY, "--trainer.max_epochs", "3", "--experiment", "full")
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: could not write {folder}/runs/full/version_0/checkpoints/")
    assert "No space left on device): the one before is intact; free some space, then resume" in output.err
    lines = ["could not draw the curves so far", "could not write the results so far", "results so far", "resume with"]
    assert [line.split(":")[0] for line in output.out.splitlines()[-4:]] == lines
    assert torch.load("runs/full/version_0/checkpoints/last.ckpt", weights_only=True)["epoch"] == 0


def test_predict_without_images(error_of, folder, checkpoint):
    assert "add --data.root" in error_of("predict", "--ckpt_path", checkpoint)
    assert "no images at nowhere" in error_of("predict", "--ckpt_path", checkpoint, "--data.root", "nowhere")
    (folder / "empty").mkdir()
    assert "no images in empty" in error_of("predict", "--ckpt_path", checkpoint, "--data.root", "empty")


def test_an_object_in_a_message_has_no_address(monkeypatch, capsys):
    with pytest.raises(SystemExit), plain_output():
        raise MisconfigurationException("found <lightning.pytorch.loggers.CSVLogger object at 0x7f02c670cd50>")
    assert capsys.readouterr().err == "error: found CSVLogger\n"


def test_a_full_disk_is_a_line_without_the_number_of_the_error_wherever_it_is_raised(capsys):
    with pytest.raises(SystemExit), plain_output():
        raise OSError(28, "No space left on device", "runs/x")
    assert capsys.readouterr().err == (
        "error: runs/x: no space left on device: free some space, or name a place on another disk\n"
    )


def test_an_error_of_the_system_that_no_user_can_mend_keeps_its_traceback():
    with pytest.raises(OSError, match="Bad file descriptor"), plain_output():
        raise OSError(9, "Bad file descriptor")


def test_a_machine_without_a_c_compiler_for_its_gpu_is_told(capsys):
    with pytest.raises(SystemExit), plain_output():
        raise RuntimeError("backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please specify via CC")
    assert capsys.readouterr().err == (
        "error: torch's compiler needs a C compiler, and none is there: install gcc, or add --model.compile false\n"
    )


def test_too_large_a_tensor_is_told_in_gigabytes(capsys):
    with pytest.raises(SystemExit), plain_output():
        raise RuntimeError(
            "not valid\nDefaultCPUAllocator: can't allocate memory: you tried to allocate 80000000000 bytes."
        )
    assert capsys.readouterr().err.startswith(
        "error: 80.0 GB more memory than there is: try a smaller --data.batch_size"
    )


def test_a_warning_is_a_line_without_its_place_in_a_library():
    with plain_output():
        line = warnings.formatwarning("use\nanother", UserWarning, "lightning/fabric/connector.py", 571)
    assert line == "note: use another\n"
    assert "connector.py" in warnings.formatwarning("use another", UserWarning, "connector.py", 571)


def test_a_bug_keeps_its_traceback(run, monkeypatch):
    monkeypatch.setattr("vit.training.objective.make_optimizer", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError):
        run("fit", *TINY)
