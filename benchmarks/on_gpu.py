"""All measurements for a machine with one GPU, the most important ones first.

The machine may be available for minutes only. So each part is a process of its own that writes its results as soon as
it has them; a part that fails is one line, and the next one starts; a part that needs more than the remaining minutes
is skipped. Results and a log go to the folder in the variable OUT, or to benchmarks/results without it.

    python benchmarks/on_gpu.py --data data/cifar10-jpeg --minutes 30 [--parts environment "1 minute" ...]
    python benchmarks/on_gpu.py --data data/cifar10-jpeg --minutes 10 --smoke --output smoke    # a trial, without a GPU

`python benchmarks/results_page.py --add FOLDER` adds the results of that folder to those here.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from records import RESULTS, machine

FOLDER = Path(__file__).parent
RECIPE = "configs/cifar10_gpu.yaml"
START = 60  # seconds of a process besides its training: imports, decoding, compiling, test


@dataclass(frozen=True)
class Part:
    """A part of the measurements.

    Attributes:
        command: A script of this folder and its arguments.
        seconds: The remaining seconds without which it is skipped.
    """

    command: list[str]
    seconds: float


# Smaller recipes for fewer minutes: light augmentation, since short trainings underfit.
LIGHT = ["--data.policy", "none", "--data.mixup", "0", "--data.cutmix", "0", "--model.drop_path", "0"]
LADDER: dict[str, list[str]] = {
    "1 minute": ["--model.patch_size", "4", "--model.depth", "6", *LIGHT],
    "2 minutes": ["--model.patch_size", "4", "--model.depth", "9", *LIGHT],
    "5 minutes": ["--data.mixup", "0"],
}
# The smallest training, to try the script without a GPU.
SMOKE_TRAINING = [
    *("--model.embed_dim", "12", "--model.num_heads", "1", "--model.depth", "1", "--model.compile", "false"),
    *("--data.batch_size", "8", "--data.policy", "none", "--trainer.max_steps", "2", "--trainer.max_time", "null"),
    *("--trainer.limit_val_batches", "1", "--trainer.limit_test_batches", "1", "--trainer.accelerator", "cpu"),
]


def parts(data: Path, output: Path, smoke: bool) -> dict[str, Part]:
    """Return all parts by name, in order."""
    result: dict[str, Part] = {"environment": Part([], 0)}
    for name, changed in LADDER.items():
        minutes = int(name.split()[0])
        limit = ["--trainer.max_time", f"00:00:{minutes:02}:00"]
        result[name] = _training(f"cifar10_gpu {name}", [*changed, *limit], minutes, data, output, smoke)
    result["10 minutes"] = _training("cifar10_gpu", [], 10, data, output, smoke)
    out, quick = ["--output", str(output)], ["--rounds", "1"] if smoke else []
    utilisation = ["--sizes", "384x12-p2-32", "--dtypes", "bf16", "--compiled"]
    others = ["--sizes", "192x6-p4-32", "384x12-p4-32", "S16-224", "B16-224"]
    if smoke:
        utilisation = others = ["--sizes", "192x6-p4-32", "--dtypes", "fp32", "--modes", "inference", "--batch", "2"]
    result["utilisation"] = Part(["throughput.py", *utilisation, *quick, *out], 120)
    result["throughput, eager"] = Part(["throughput.py", *others, *quick, *out], 120)
    # Compiling five libraries takes most of the time, so only training in bfloat16 is compiled.
    compiled = [] if smoke else ["--modes", "train", "--dtypes", "bf16", "--compiled"]
    result["throughput, compiled"] = Part(["throughput.py", *others, *compiled, *quick, *out], 180)
    result["pipeline"] = Part(["pipeline.py", *quick, *(["--images", "200"] if smoke else []), *out], 120)
    if smoke:
        return {name: Part(part.command, 0) for name, part in result.items()}
    return result


def _training(name: str, further: list[str], minutes: float, data: Path, output: Path, smoke: bool) -> Part:
    """Return a training through accuracy.py."""
    command = ["accuracy.py", RECIPE, "--data", str(data), "--seeds", "0", "--name", name, "--output", str(output)]
    return Part([*command, "--", *further, *(SMOKE_TRAINING if smoke else [])], 60 * minutes + START)


def run(command: list[str], seconds: float, log: Path) -> str:
    """Run a script of this folder for at most some seconds, and return its error in one line, "" on success."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])}
    script = [sys.executable, str(FOLDER / command[0]), *command[1:]]
    with log.open("a") as file:
        # A session of its own, so that the processes it started can be ended with it.
        process = subprocess.Popen(
            script, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return "stopped: no time left"
            raise
    return f"failed with exit status {status}: {_last_line(log)}" if status else ""


def environment() -> str:
    """Return the machine, PyTorch's build and its attention kernels as text."""
    smi = subprocess.run("nvidia-smi || echo no GPU", shell=True, capture_output=True, text=True, check=False).stdout
    kernels = {
        name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "cudnn")
    }
    return f"{json.dumps(machine(), indent=1)}\nattention kernels: {kernels}\n{torch.__config__.show()}\n{smi}"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def main(arguments: list[str] | None = None) -> None:
    """Run part by part while time is left."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="class folders of images, train/ and test/")
    parser.add_argument("--minutes", type=float, required=True, help="minutes for all parts together")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="which parts (default: all)")
    parser.add_argument(
        "--output", type=Path, default=Path(os.environ.get("OUT", RESULTS)), help="folder of the results"
    )
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, to try the script")
    options = parser.parse_args(arguments)
    if options.smoke and options.output == RESULTS:
        parser.error(f"--smoke measures nothing of use: give another --output than {RESULTS}")
    todo = parts(options.data, options.output, options.smoke)
    if unknown := [name for name in options.parts or [] if name not in todo]:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(repr(name) for name in todo)}")
    options.output.mkdir(parents=True, exist_ok=True)
    log, failed = options.output / "on_gpu.log", 0
    for name in options.parts or todo:
        part, left = todo[name], start + 60 * options.minutes - time.monotonic()
        if left < part.seconds:
            print(f"{name}: skipped, it needs {part.seconds:.0f} s and {left:.0f} s are left", flush=True)
            continue
        if name == "environment":
            (options.output / "environment.txt").write_text(environment())
            print("environment: done", flush=True)
            continue
        began = time.monotonic()
        wrong = run(part.command, left, log)
        failed += bool(wrong)
        print(f"{name}: {wrong or 'done'} ({time.monotonic() - began:.0f} s)", flush=True)
    if failed:
        raise SystemExit(f"error: {failed} parts failed: see {log}")


if __name__ == "__main__":
    main()
