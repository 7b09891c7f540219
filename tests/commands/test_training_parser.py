"""An argument that was typed wrong is one clear line with the option that was probably meant, and exit status 2."""

from pathlib import Path

import pytest

from tests.tiny import TINY


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
        (
            ["--model.attention", "convolution", "--model.attention_kwargs.kernel", "4"],
            "kernel (4) must be odd and positive: take 3 or 5",
        ),
        (
            ["--model.attention", "routed", "--model.attention_kwargs.k", "500"],
            "k (500) heads are more than num_heads",
        ),
        (["--data.label_noise", "1.5"], "label_noise (1.5) must be in [0, 1]"),
        (["--data.corrupt.fog", "1"], "unknown corruption 'fog'"),
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
        (["fit"], "no data: add --config FILE, or --data NAME"),
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
