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


@pytest.fixture
def broken_configs(folder) -> None:
    (folder / "empty.yaml").touch()
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    (folder / "list.yaml").write_text("- model\n- data\n")
    (folder / "open.yaml").write_text("model: {depth: 3\n")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--model.dept", "3"], "Option 'dept' is not accepted (did you mean depth?)"),
        (["--data.bath_size", "3"], "Option 'bath_size' is not accepted (did you mean batch_size?)"),
        (["--model.depth", "many"], "--model.depth: expected a whole number, got many"),
        (
            ["--model.pool", "max"],
            "--model.pool: expected one of ['cls', 'mean', 'cls+mean', 'cls+dist', 'map']",
        ),
        (["--model.patch_size", "3"], "image_size (8, 8) must be a multiple of patch_size (3, 3)"),
        (
            ["--model.patch_size", "3"],
            "of patch_size (3, 3): set --data.image_size [6,6] if the data have it, another --model.patch_size, or "
            "--model.pad_images true",
        ),
        (
            ["--model.patch_size", "4", "--model.patch_stride", "[2,3]"],
            "patch_stride (2, 3) must be patch_size (4, 4) less an even number of pixels",
        ),
        (["--model.attention", "windw"], "unknown attention 'windw': choose one of softmax, chunked, window"),
        (["--model.attention_kwargs.window", "2"], "attention 'softmax' has no argument 'window': it takes scaled"),
        (["--model.ema_decay", "1.5"], "ema_decay (1.5) must be between 0 and 1"),
        (["--model.optimizer", "sgd"], "--model.optimizer: expected one of ['adamw', 'muon'], got sgd"),
        (["--model.betas", "3"], "--model.betas: expected a list such as [1,2], got 3"),
        (["--model.betas", "[0.9,1]"], "betas (1.0) must be in [0, 1)"),
        (["--model.patch_size", "x"], "--model.patch_size: expected a whole number or a list such as [1,2], got x"),
        (["--model.patch_size", "0"], "patch_size (0) must be a positive whole number"),
        (["--model.patch_size", "-4"], "patch_size (-4) must be a positive whole number"),
        (["--model.patch_size", "1000000"], "image_size (8, 8) must be a multiple of patch_size (1000000, 1000000)"),
        (
            ["--model.image_size", "16"],
            "--model.image_size is that of the data: set --data.image_size, or leave it out",
        ),
        (["--model.img_size", "32"], "(img_size of timm is here --data.image_size)"),
        (["--model.in_chans", "1"], "(in_chans of timm is here --model.in_channels, which the data sets)"),
        (["--model.drop_path_rate", "0.1"], "(drop_path_rate of timm is here --model.drop_path)"),
        (["--model.global_pool", "avg"], "(global_pool of timm is here --model.pool)"),
        (["--model.init_values", "1e-4"], "(init_values of timm is here --model.layer_scale)"),
        (["--model.reg_tokens", "4"], "(reg_tokens of timm is here --model.num_registers)"),
        (["--model.pool", "token"], "got token (token of timm is here cls)"),
        (["--model.layer_scale", "x"], "--model.layer_scale: expected a number or null, got x"),
        (["--model.layer_scale", "true"], "--model.layer_scale: expected a number or null, got true"),
        (["--model.attention_kwargs", "3"], "expected a mapping such as {name: value} or null, got 3"),
        (["--model.lr", "-1"], "lr (-1.0) must be a number of at least 0"),
        (["--model.weight_decay", "-5"], "weight_decay (-5.0) must be a number of at least 0"),
        (["--model.mlp_ratio", "0"], "mlp_ratio (0.0) must be a number above 0"),
        (["--model.dropout", "1.0"], "dropout (1.0) must be in [0, 1)"),
        (["--model.num_registers", "-1"], "num_registers (-1) must be a whole number of at least 0"),
        (["--model.embed_dim", "100000"], "embed_dim 100000 and 2 blocks make about 240,000,000,000 parameters"),
        (["--data.mixup", "-1"], "mixup (-1.0) must be a number of at least 0"),
        (["--data.erasing", "2"], "erasing (2.0) must be in [0, 1]"),
        (["--data.num_workers", "-1"], "num_workers (-1) must be a whole number of at least 0"),
        (["--data.memory_limit", "-1"], "memory_limit (-1.0) must be a number of at least 0"),
        (["--data.crop_padding", "-1"], "crop_padding (-1) must be a whole number of at least 0"),
        (["--data.batch_size", "x"], "--data.batch_size: expected a whole number, got x"),
        (["--data.batch_size", "0"], "batch_size (0) must be a positive whole number"),
        (["--data.val_fraction", "1"], "val_fraction (1.0) must be in [0, 1)"),
        (
            ["--data.root", "photos"],
            "--data.root is an option of CIFAR10, CIFAR100, ImageFolder, ImageStrings, ImageTable, Shards: add",
        ),
        (["--data.root", "R\udcff\x1b[31m"], r"error: R\udcff\x1b[31m has bytes that are no text in UTF-8: rename the"),
        (["--experiment", "../../x"], "experiment ('../../x') must be the name of one folder"),
        (["--test_weights", "first"], "--test_weights: expected one of ['last', 'best'], got first"),
        (["--test_weights", "best", "--data.val_fraction", "0"], "test_weights is best, and no validation chooses"),
        (["--config", "nope.yaml"], "no config nope.yaml: name a file, or one of cifar10, cifar10_gpu"),
        (["--config", "empty.yaml"], "the config empty.yaml has no arguments by name"),
        (["--config", "binary.yaml"], "cannot read the config binary.yaml: 'utf-8' codec can't decode byte"),
        (["--config"], "argument -c/--config: expected one argument"),
        (["--experiment"], "argument --experiment: expected one argument"),
        (["--model", "ResNet"], "--model: unknown model 'ResNet': choose one of ViTClassifier, SequenceReader"),
        (["--model", "7"], "--model: unknown model '7': choose one of"),
        (["--model", "SequenceReadr"], "(did you mean SequenceReader?)"),
        (["--depth", "3"], "unrecognized arguments: --depth 3 (did you mean --model.depth?)"),
        (["--trainer.max_epoch", "3"], "(did you mean --trainer.max_epochs?)"),
        (["--epochs", "3"], "(it is --trainer.max_epochs here)"),
        (["--run_dir", "out"], "(it is --trainer.default_root_dir here)"),
        (["--version"], "(it is vit-attention --version here)"),
        (["--trainer.accumulate_grad_batches", "0"], "accumulate_grad_batches (0) must be a positive whole number"),
        (["--trainer.accelerator", "tpu"], "accelerator tpu, strategy auto, precision 32-true needs torch_xla, which"),
        (["--trainer.strategy", "xla"], "strategy xla, precision 32-true needs torch_xla, which is not installed"),
        (["--trainer.precision", "transformer-engine"], "precision transformer-engine needs transformer_engine, which"),
        (["--trainer.strategy", "fsdp2", "--model.ema_decay", "0.9"], "add --model.ema_decay null, or take strategy"),
        (["--trainer.callbacks+", "Timer"], "the callback Timer does not work here: --trainer.max_time"),
        (["--trainer.callbacks+", "ModelPruning"], "an argument is missing: add --trainer.callbacks.pruning_fn"),
        (["--trainer.logger", "WandbLogger"], "wandb is not installed: pip install wandb"),
        (["--config", "list.yaml"], "the config list.yaml has no arguments by name"),
        (["--config", "open.yaml"], "cannot read the config open.yaml: while parsing a flow"),
        (["--seed_everything", "x"], "--seed_everything: expected a whole number, got x"),
        (["--seed_everything", "true"], "--seed_everything: expected a whole number, got True"),
        (["--seed_everything", "-5"], "seed_everything (-5) must be a whole number from 0 to 4294967295"),
        (["--trainer.callbacks", "Foo"], "--trainer.callbacks: expected a list, the name of a class or null, got Foo"),
        (
            ["--trainer.callbacks+", "EarlyStopping", "--trainer.callbacks.monitor", "val_los"],
            "EarlyStopping monitors 'val_los', which no training logs: choose train_loss, lr, val_loss, val_accuracy",
        ),
        (
            ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val_loss", "--data.val_fraction=0"],
            "EarlyStopping monitors 'val_loss', which no training logs: choose train_loss, lr",
        ),
        (["--trainer.callbacks+", "LearningRateFinder"], "would replace the schedule of the training: compare"),
        (["--trainer.devices", "many"], "`devices` selected with `CPUAccelerator` should be an int > 0"),
        (["--trainer.strategy", "foo"], "You selected an invalid strategy name: `strategy='foo'`"),
        (["--trainer.accelerator", "abc"], "You selected an invalid accelerator name"),
        (["--trainer.precision", "7"], "--trainer.precision: expected one of [64, 32, 16], one of"),
        (["--trainer.max_time", "soon"], "`Timer(duration='soon')` is not a valid duration. Expected a string in"),
        (["--trainer.strategy", "ddp_spawn"], "strategy ddp_spawn trains in processes that end with their record"),
        (["--data.crop_padding", "9"], "crop_padding (9) must be smaller than the image (8, 8)"),
        (
            ["--data", "Digitz"],
            "unknown data set 'Digitz': choose one of CIFAR10, CIFAR100, CrowdedDigits, DigitStrings, Digits",
        ),
        (["--data", "Digitz"], "(did you mean Digits?)"),
        (["--data", "ImageFolder"], "add --data.root"),
        (["--data", "ImageFolder", "--data.root", "nowhere"], "no folder nowhere: name the data by --data.root"),
        (
            ["--trainer.max_epochs=-1"],
            "training has no end that warmup, decay cosine could be a share of: set trainer.",
        ),
        (
            ["--trainer.max_epochs=-1", "--model.decay=constant", "--model.warmup=0", "--data.mix_until=0.6"],
            "training has no end that mix_until could be a share of",
        ),
    ],
)
def test_a_wrong_argument(error_of, broken_configs, arguments, answer):
    """It is one line of at most 500 characters, and leaves no folder of a run."""
    line = error_of("fit", *TINY, *arguments)
    assert answer in line
    assert len(line) < 500
    assert "Given value" not in line  # the end of a list of types and failures
    assert not [*Path("runs").glob("*/*")]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["fit"], "add --config FILE, or --data NAME"),
        (
            ["fit", "--data.root", "photos"],
            "--data.root is an option of CIFAR10, CIFAR100, ImageFolder, ImageStrings, ImageTable, Shards: add",
        ),
        (["fit", "--data", "7"], "unknown data set '7': choose one of CIFAR10"),
        (["fit", "--model", "3"], "--model: "),
        (["ft"], "invalid choice: 'ft'"),
        (["test"], "test needs trained weights: add --ckpt_path FILE"),
        (["validate"], "validate needs trained weights"),
        (["predict"], "predict needs trained weights"),
        (["fit", *TINY, "--experiment=never", "--ckpt_path=last"], "no checkpoint runs/never/*/checkpoints/last.ckpt"),
    ],
)
def test_a_wrong_command_or_one_without_what_it_needs(error_of, arguments, answer):
    assert answer in error_of(*arguments)


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
