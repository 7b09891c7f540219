"""What `import vit` provides, and which libraries it leaves for later."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vit
from vit.__main__ import COMMANDS

LOADED = "VisionTransformer False"  # torch's compiler, which takes 2 s, is not imported to read weights
# What each import leaves for later: all of training and plotting, and torchvision, which takes seconds.
LATE = {
    "vit": ("lightning", "timm", "torchvision", "matplotlib", "jsonargparse", "sklearn", "safetensors"),
    "vit.explain, vit.analysis": ("matplotlib", "captum", "lightning", "PIL", "vit.training"),
    "vit.commands.explain": ("lightning", "torchvision", "matplotlib", "PIL"),
    "vit.commands.explain_files": ("lightning", "torchvision"),
}


def test_imports_give_models_and_attention_and_load_no_library_before_it_is_used():
    code = (
        "import sys, vit\n"
        "model = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)\n"
        "print(type(model.blocks[0].attn) is vit.attention.MultiHeadAttention, callable(vit.load), vit.__version__)\n"
        "print('vit.features' in sys.modules, vit.FeaturePyramid.__module__)\n"
    )
    for modules, late in LATE.items():
        code += f"import {modules}\nprint([name for name in {late} if name in sys.modules])\n"
    code += "print(type(vit.load('cifar10')).__name__, 'torch._dynamo' in sys.modules)\n"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [
        *(f"True True {vit.__version__}", "False vit.features.pyramid"),
        *["[]"] * len(LATE),
        LOADED,
    ]


@pytest.mark.parametrize("module", [vit, vit.attention, vit.weights], ids=lambda module: module.__name__)
def test_every_public_name_resolves(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vit' has no attribute 'FeaturePyramids'"):
        vit.FeaturePyramids  # noqa: B018


# Hides all that an install lacks.
INSTALL = """
import re, sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from packaging.requirements import Requirement

def simple(name):
    return re.sub(r"[-_.]+", "-", name).lower()

declared = [Requirement(line).name for line in {dependencies!r}]
installed = set()
while declared:
    name = simple(declared.pop())
    if name not in installed:
        installed.add(name)
        try:
            required = [Requirement(line) for line in distribution(name).requires or []]
        except ModuleNotFoundError:  # of another platform
            continue
        declared += [each.name for each in required if each.marker is None or each.marker.evaluate({{"extra": ""}})]
tops = packages_distributions().items()
hidden = {{top for top, names in tops if not installed & {{*map(simple, names)}}}} - {{"vit"}}
for module in list(sys.modules):
    if module.split(".")[0] in hidden:
        del sys.modules[module]


class Installed:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = map(Installed, sys.meta_path)

import vit
{code}
"""

# Loads and saves, and runs each command.
BASE = """
from vit.__main__ import COMMANDS, main

model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, mlp="gelu_tanh").eval()
plain = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3).eval()
for source, path, format in (
    *((plain, "a.safetensors", "vit"), (plain, "b.pth", "timm"), (plain, "timm_folder", "timm")),
    *((plain, "c.bin", "torchvision"), (model, "d.npz", "google"), (plain, "folder", "transformers")),
):
    vit.save(source, path, format=format)
    vit.load(path, num_heads=3)
vit.load("cifar10")
vit.export(plain, "program.pt2")
main(["weights", "show", "a.safetensors"])
print("loaded and saved")
Path("photos").mkdir()
typed = {"weights": "weights convert a.safetensors a.onnx --to onnx", "export": "export a.safetensors b.onnx"}
for name, command in COMMANDS.items():
    try:
        main(typed.get(name, command.example).split())
    except SystemExit as stopped:
        print(name, stopped.code, file=sys.stderr)
"""

# Looks at photographs, and reads labelled ones.
EXPLAIN = """
import torch
from torchvision.io import write_png
from vit.__main__ import main

torch.manual_seed(0)
for number in range(60):
    folder = Path("photos", ("cat", "dog")[number % 2])
    folder.mkdir(parents=True, exist_ok=True)
    write_png((torch.rand(3, 9, 8) * 255).to(torch.uint8), str(folder / f"{number}.png"))
vit.save(vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3, num_classes=2), "small.safetensors")
main("explain photos/cat/0.png --checkpoint small.safetensors --method relevance integrated_gradients --html".split())
main("features photos --checkpoint small.safetensors -o features.safetensors".split())
main("evaluate knn --checkpoint small.safetensors --data.root photos".split())
main("evaluate linear --checkpoint small.safetensors --data.root photos".split())
data = vit.data.Digits(batch_size=7, normalised=True)
data.setup("fit")
print(next(iter(data.train_dataloader()))[0].shape)
main("analysis --checkpoint small.safetensors --data.root photos --images 20".split())
print("looked at")
"""


def run_installed(code, extra, folder):
    """Run code as if the package and its dependencies were installed, those of an extra as well, and nothing else."""
    project = tomllib.loads((Path(vit.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    environment = os.environ | {"PYTHONPATH": str(Path(vit.__file__).parents[1])}
    program = [sys.executable, "-c", INSTALL.format(dependencies=dependencies, code=code)]
    return subprocess.run(program, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_the_extra_explain_suffices_for_photographs_features_analysis_and_data_without_lightning(tmp_path):
    done = run_installed(EXPLAIN, "explain", tmp_path)
    assert done.stdout.endswith("looked at\n"), done.stderr
    assert "torch.Size([7, 1, 8, 8])" in done.stdout
    drawn = {path.name for path in tmp_path.glob("explained/*.png")}
    assert drawn == {"0_relevance.png", "0_integrated_gradients.png", "sheet.png"}
    assert (tmp_path / "analysed/index.html").exists()


def test_the_declared_dependencies_suffice_to_load_and_save_and_each_other_command_names_its_extra(tmp_path):
    done = run_installed(BASE, None, tmp_path)
    assert done.stdout.endswith("loaded and saved\n"), done.stderr
    lines = done.stderr.splitlines()
    for name, said, ended in zip(COMMANDS, lines[::2], lines[1::2], strict=True):
        assert ended == f"{name} 2"
        assert re.fullmatch(r"error: .*, which is not installed: pip install 'vit-attention\[\w+\]'", said)


def test_every_name_of_the_data_modules_is_imported_when_it_is_used():
    import vit.data

    assert {getattr(vit.data, name).__name__ for name in vit.data.__all__} == set(vit.data.__all__)
    assert set(vit.data.DATA_SETS) == set(vit.data.__all__) - {"ImageDataModule", "UnsortedImages"}
    with pytest.raises(AttributeError, match="no attribute 'MNIST'"):
        vit.data.MNIST  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", ["shards", "shard_files", "plan"])
def test_training_does_not_know_shards_or_plans(name):
    """A data module is one file beside the others, and a command one file: nothing in vit/training names them."""
    files = [*(Path(__file__).parents[1] / "vit/training").rglob("*.py")]
    found = [
        re.findall(r"^\s*(?:from|import) (vit\S+)", file.read_text(encoding="utf-8"), re.MULTILINE) for file in files
    ]
    imported = {module.rpartition(".")[2] for of_file in found for module in of_file}
    assert len(imported) > 20
    assert name not in imported
