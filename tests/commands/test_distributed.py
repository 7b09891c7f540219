"""Two processes train the same model as one process on the joined batch, replicated (DDP) or sharded (FSDP2)."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image
from sklearn.datasets import load_digits
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import vit
from tests.forked import forked
from tests.tiny import CPU, MODEL, run_command
from vit.data import DigitStrings
from vit.data.strings import save_numbers
from vit.data.views import Views
from vit.model.patch_drop import PatchDrop
from vit.objectives import ViTClassifier
from vit.runs.tested_images import read_rows

FULL = StateDictOptions(full_state_dict=True)
REPOSITORY = Path(__file__).parents[2]
COMMON = [
    *("--data", "ImageFolder", "--data.root", "digits"),
    *(*MODEL, *CPU, "--model.test_views", "flip"),
    # The true gradient of a key's bias is zero, and AdamW makes whole steps of its rounding errors.
    *("--model.qkv_bias", "false"),
    *("--trainer.max_epochs", "2", "--trainer.callbacks+", "seen_images.SeenImages"),
]


def started_by_the_script(folder: Path, experiment: str, *arguments: str) -> Path:
    """Run ``fit`` in a process of its own, which starts the second one; return the folder of the run."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests/commands")])
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPOSITORY / "train.py"), "fit", *COMMON, "--experiment", experiment, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "runs" / experiment / "version_0"


def started_from_outside(
    folder: Path, experiment: str, *arguments: str, processes: int = 1, common: Sequence[str] = COMMON, status: int = 0
) -> Path:
    """Run ``fit`` in processes that find their rank in the environment, as torchrun starts them."""
    port = free_port()

    def fit(rank: int) -> None:
        os.chdir(folder)
        sys.path.append(str(REPOSITORY / "tests/commands"))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "XDG_CACHE_HOME": str(folder / "cache")}
        if processes > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "none"}
            ranks |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            os.environ |= {name: str(value) for name, value in ranks.items()}
            rank_zero_only.rank = rank  # as lightning finds it in the environment when it is imported
        sys.argv = ["train.py"]
        run_command("fit", *common, "--experiment", experiment, *arguments)

    outputs = [folder / f"{experiment}_{rank}.txt" for rank in range(processes)]
    started = [forked(output, fit, rank) for rank, output in enumerate(outputs)]
    for process in started:
        process.join()
        assert process.exitcode == status, [path.read_text() for path in outputs]
    return folder / "runs" / experiment / "version_0"


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 training images, 37 for validation and 41 for test: awkward numbers for two processes."""
    root = tmp_path_factory.mktemp("distributed")
    digits = load_digits(n_class=2)
    images = (digits.images * 255 / 16).astype("uint8")
    start = 0
    for split, count in (("train", 200), ("val", 37), ("test", 41)):
        for number in range(start, start + count):
            place = root / "digits" / split / str(digits.target[number])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).save(place / f"{number}.png")
        start += count
    return root


@pytest.fixture(scope="module")
def one_process(folder: Path) -> Path:
    return started_from_outside(folder, "one", "--data.batch_size", "40")


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def two_processes(request: pytest.FixtureRequest, folder: Path) -> Path:
    for seen in folder.glob("seen_2_*.txt"):
        seen.unlink()
    strategy = request.param
    typed = ["--data.batch_size", "20", "--trainer.devices", "2", "--trainer.strategy", strategy]
    if strategy == "ddp":
        return started_by_the_script(folder, strategy, *typed)
    return started_from_outside(folder, strategy, *typed, processes=2)


# One test, because the workers of pytest-xdist would each start the three runs anew for tests of their own.
def test_two_processes_train_and_evaluate_as_one_process_does_on_the_joined_batch(folder, one_process, two_processes):
    paths = [run / "checkpoints/last.ckpt" for run in (one_process, two_processes)]
    weights_of_one, weights_of_two = (torch.load(path, weights_only=True)["state_dict"] for path in paths)
    torch.testing.assert_close(weights_of_two, weights_of_one, rtol=1e-4, atol=1e-6)

    one, two = (json.loads((run / "results.json").read_text()) for run in (one_process, two_processes))
    for name in ("val_accuracy", "test_accuracy", "test_accuracy_views"):
        assert two[name] == one[name] is not None
    rows_of_one, rows_of_two = read_rows(one_process), read_rows(two_processes)
    assert len(rows_of_one) == 41
    for name in ("file", "true_class", "class", "class_over_views"):
        assert [row[name] for row in rows_of_two] == [row[name] for row in rows_of_one]
    assert two["scores"]["threshold"]["value"] == pytest.approx(one["scores"]["threshold"]["value"], abs=1e-4)
    assert two["devices"] == 2
    assert (two["steps"], two["epochs"]) == (one["steps"], one["epochs"]) == (10, 2.0)

    lines = [line for rank in (0, 1) for line in (folder / f"seen_2_{rank}.txt").read_text().splitlines()]
    epochs = [Counter(line.split()[1] for line in lines if line.startswith(f"{epoch} ")) for epoch in (0, 1)]
    assert sum(epochs[0].values()) == 200
    assert epochs[0] == epochs[1]


def test_the_command_of_the_documentation_for_sharded_training_runs_on_two_processes_of_a_cpu(tmp_path):
    lines = (REPOSITORY / "docs/scale.md").read_text().replace("\\\n", "").splitlines()
    (line,) = (line for line in lines if line.startswith("python train.py fit") and "strategy fsdp2" in line)
    typed = shlex.split(line.removeprefix("python train.py fit"))
    brief = ["--trainer.max_steps", "2", "--trainer.limit_test_batches", "0", "--trainer.accelerator", "cpu"]
    run = started_from_outside(tmp_path, "sharded", *typed, *brief, processes=2, common=[])
    results = json.loads((run / "results.json").read_text())
    assert (results["steps"], results["devices"]) == (2, 2)
    assert 0 <= results["val_accuracy"] <= 1


def test_two_processes_train_a_reader_as_one_process_does(tmp_path):
    numbers = DigitStrings(count=90).numbers("train")
    for split, rows in (("train", slice(0, 40)), ("val", slice(40, 61)), ("test", slice(61, 90))):
        part = replace(numbers, images=numbers.images[rows], tokens=numbers.tokens[rows], boxes=numbers.boxes[rows])
        save_numbers(part, tmp_path / "numbers" / split)
    reader = [
        *("--data", "ImageStrings", "--data.root", "numbers", "--model", "SequenceReader", *CPU),
        *("--model.patch_size", "16", "--model.embed_dim", "8", "--model.depth", "1", "--model.num_heads", "2"),
        *("--model.qkv_bias", "false", "--trainer.max_epochs", "2"),
    ]
    one = started_from_outside(tmp_path, "one", "--data.batch_size", "10", common=reader)
    typed = ["--data.batch_size", "5", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    two = started_from_outside(tmp_path, "two", *typed, processes=2, common=reader)
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    results = [json.loads((run / "results.json").read_text()) for run in (one, two)]
    assert results[0]["scores"]["lengths"] == results[1]["scores"]["lengths"]
    assert [result["devices"] for result in results] == [1, 2]


def test_two_processes_train_several_labels_as_one_process_does(folder):
    rows = ["file,split,one,odd"]
    for path in sorted((folder / "digits").rglob("*.png")):
        _, split, digit, name = path.relative_to(folder).parts
        rows.append(f"digits/{split}/{digit}/{name},{split},{digit},{int(path.stem) % 2}")
    (folder / "labels.csv").write_text("\n".join(rows))
    labels = [
        *("--data", "ImageTable", "--data.table", "labels.csv", "--model", "MultilabelClassifier", *MODEL, *CPU),
        *("--model.qkv_bias", "false", "--model.positive_weights", "balanced", "--trainer.max_epochs", "2"),
    ]
    one = started_from_outside(folder, "labels_one", "--data.batch_size", "40", common=labels)
    typed = ["--data.batch_size", "20", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    two = started_from_outside(folder, "labels_two", *typed, processes=2, common=labels)
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    scores = [json.loads((run / "results.json").read_text())["scores"] for run in (one, two)]
    assert scores[1]["count"] == scores[0]["count"] == 41
    assert scores[1]["mean_average_precision"] == pytest.approx(scores[0]["mean_average_precision"], abs=0.01)


def test_a_signal_to_one_of_two_processes_stops_both_and_they_go_on_as_if_it_had_not_come(folder, monkeypatch):
    two = ["--trainer.strategy", "ddp", "--data.batch_size", "20", "--ckpt_path", "auto"]

    def fit(experiment: str, status: int = 0) -> Path:
        return started_from_outside(folder, experiment, *two, processes=2, common=COMMON[:-2], status=status)

    def stop_one(module: LightningModule, *_: object) -> None:
        if module.trainer.global_step == 3 and module.global_rank == 1:
            signal.raise_signal(signal.SIGTERM)

    undisturbed = fit("undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr(ViTClassifier, "on_before_optimizer_step", stop_one, raising=False)
        stopped = fit("stopped", status=143)
    assert torch.load(stopped / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 4
    resumed = fit("stopped").with_name("version_1")
    weights = [
        torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (undisturbed, resumed)
    ]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())
    assert json.loads((resumed / "results.json").read_text())["devices"] == 2
    said = [(folder / f"stopped_{rank}.txt").read_text() for rank in (0, 1)]
    assert said[0].count("goes on from runs/stopped/version_0/checkpoints/last.ckpt") == 1
    assert "goes on" not in said[1]
    assert "Traceback" not in "".join(said)


PARTS = """
trainer:
  strategy:
    class_path: vit.training.sharding.FullySharded
    init_args: {save_distributed_checkpoint: true}
"""


def test_a_distributed_checkpoint_is_tested_predicted_and_resumed_as_one_file_is(folder):
    (folder / "parts.yaml").write_text(PARTS)
    (folder / "photos").mkdir()
    Image.new("L", (8, 8), 99).save(folder / "photos/0.png")
    sharded = ["--trainer.devices", "2", "--model.ema_decay", "null", "--data.batch_size", "20"]
    ways = {"whole": ["--trainer.strategy", "fsdp2"], "parts": ["--config", "parts.yaml"]}
    tested = {"whole": ["--test_weights", "best"], "parts": []}
    runs = {
        name: started_from_outside(
            folder, f"fsdp2_{name}", *sharded, *way, *tested[name], processes=2, common=COMMON[:-2]
        )
        for name, way in ways.items()
    }
    file, parts = (run / "checkpoints/last.ckpt" for run in runs.values())
    assert file.is_file()
    assert parts.is_dir()
    assert not [*runs["parts"].rglob("*.unfinished"), *runs["parts"].rglob("*previous*")]
    expected, found = (vit.load(path).state_dict() for path in (file, parts))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())

    def evaluate(path: Path) -> None:
        os.chdir(folder)
        sys.argv = ["train.py"]
        run_command("test", "--ckpt_path", path, *CPU)
        run_command("test", "--ckpt_path", file.with_name("best.ckpt"), *CPU)
        run_command("predict", "--ckpt_path", path, *CPU, "--data.root", "photos", "--output", "predicted.csv")

    process = forked(folder / "parts.txt", evaluate, parts)
    process.join()
    assert process.exitcode == 0, (folder / "parts.txt").read_text()
    for run in runs.values():
        first, again = (json.loads(path.read_text()) for path in sorted(run.rglob("results.json"), reverse=True))
        assert Path(first["tested_file"]).name == Path(again["tested_file"]).name
        assert first["test_accuracy"] == again["test_accuracy"]
    assert len((folder / "predicted.csv").read_text().splitlines()) == 2

    longer = ["--trainer.max_epochs", "4", "--ckpt_path"]
    ends = []
    for name, way, path, processes in (
        ("file_2", ways["whole"], file, 2),
        ("parts_2", ways["parts"], parts, 2),
        ("parts_whole_2", ways["whole"], parts, 2),
        ("parts_1", ["--trainer.devices", "1", "--data.batch_size", "40"], parts, 1),
    ):
        typed = [*sharded, *way, *longer, str(path)]
        run = started_from_outside(folder, name, *typed, processes=processes, common=COMMON[:-2])
        ends.append(vit.load(run / "checkpoints/last.ckpt").state_dict())
    for name, tensor in ends[0].items():
        assert torch.equal(ends[1][name], tensor)
        assert torch.equal(ends[2][name], tensor)
        torch.testing.assert_close(ends[3][name], tensor, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_one_process_is_resumed_by_two_that_shard_and_theirs_by_one(folder):
    def resumed(name: str, checkpoint: Path | None, processes: int) -> Path:
        length = ["--trainer.max_epochs", "2"] if checkpoint is None else ["--trainer.max_epochs", "4"]
        length += [] if checkpoint is None else ["--ckpt_path", str(checkpoint)]
        way = ["--trainer.devices", str(processes), "--data.batch_size", str(40 // processes)]
        way += ["--trainer.strategy", "fsdp2"] if processes > 1 else []
        typed = ["--model.ema_decay", "null", *way, *length]
        run = started_from_outside(folder, name, *typed, processes=processes, common=COMMON[:-2])
        return run / "checkpoints/last.ckpt"

    one, two = resumed("of_one", None, 1), resumed("of_two", None, 2)
    ends = [resumed("one_by_one", one, 1), resumed("one_by_two", one, 2), resumed("two_by_one", two, 1)]
    contents = [torch.load(path, weights_only=True) for path in ends]
    for other in contents[1:]:
        torch.testing.assert_close(other["state_dict"], contents[0]["state_dict"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other["optimizer_states"], contents[0]["optimizer_states"], rtol=1e-3, atol=1e-6)


def same_views(views, images, local_size):
    """Views that do not depend on chance, which is another one in each process."""
    rows, columns = local_size
    return [images, images.flip(3), images[..., :rows, -columns:].contiguous()]


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("MaskedAutoencoder", ["--model.decoder_dim", "8", "--model.decoder_heads", "2"]),
        ("SIGReg", ["--model.local_views", "1", "--model.sigreg_weight", "0.3"]),
        ("DINO", ["--model.local_views", "1", "--model.prototypes", "16", "--model.teacher_decay", "0.5"]),
    ],
)
def test_two_processes_learn_without_labels_as_one_process_does(objective, options, folder, monkeypatch):
    monkeypatch.setattr(Views, "__call__", same_views)
    monkeypatch.setattr(PatchDrop, "draw", lambda _, batch, patches, device="cpu": torch.tensor([[2]] * batch))
    learner = [
        *("--data", "ImageFolder", "--data.root", "digits", "--model", objective, *MODEL, *CPU, *options),
        *("--model.qkv_bias", "false", "--trainer.max_epochs", "2"),
    ]
    one = started_from_outside(folder, f"{objective}_1", "--data.batch_size", "40", common=learner)
    typed = ["--data.batch_size", "20", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    two = started_from_outside(folder, f"{objective}_2", *typed, processes=2, common=learner)
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    scores = [json.loads((run / "results.json").read_text())["scores"] for run in (one, two)]
    assert scores[1]["count"] == scores[0]["count"] == 41
    for name in ("effective_rank", "feature_std", "knn_accuracy"):
        assert scores[1][name] == pytest.approx(scores[0][name], abs=0.01)


@pytest.mark.parametrize("attention", ["softmax", "talking", "performer"])
def test_a_sharded_model_from_the_meta_device_is_initialised_whole(attention, tmp_path):
    port = free_port()

    def initialise(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
        sizes = {"image_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2, "qk_norm": True, "layer_scale": 1e-4}
        with torch.device("meta"):
            model = vit.VisionTransformer(**sizes, attention=attention)
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        for part in (*model.blocks, model):
            torch.distributed.fsdp.fully_shard(part, mesh=mesh)
        model.to_empty(device="cpu")
        for tensor in [*model.parameters(), *model.buffers()]:
            getattr(tensor.data, "to_local", lambda tensor=tensor: tensor.data)().fill_(torch.nan)
        torch.manual_seed(0)
        warnings.filterwarnings("ignore", "DTensor random operators", UserWarning)  # on the CPU, says torch
        model.init_weights()
        assert all(tensor.isfinite().all() for tensor in get_model_state_dict(model, options=FULL).values())

    processes = [forked(tmp_path / f"{rank}.txt", initialise, rank) for rank in range(2)]
    for rank, process in enumerate(processes):
        process.join()
        assert process.exitcode == 0, (tmp_path / f"{rank}.txt").read_text()
