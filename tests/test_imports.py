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

# What each import leaves for later: all of training and plotting, and torchvision, which takes seconds.
LATE = {
    "vit": ("lightning", "timm", "torchvision", "matplotlib", "jsonargparse", "sklearn", "safetensors"),
    "vit.explain, vit.analysis": ("matplotlib", "captum", "lightning", "PIL", "vit.training"),
    "vit.commands.explain, vit.commands.photographs, vit.explain.photograph_sheet": ("lightning", "torchvision"),
}


@pytest.mark.slow
def test_imports_give_models_and_attention_and_load_no_library_before_it_is_used():
    code = (
        "import sys, vit\n"
        "model = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)\n"
        "print(type(model.blocks[0].attn) is vit.attention.MultiHeadAttention, callable(vit.load), vit.__version__)\n"
        "print('vit.features' in sys.modules, vit.FeaturePyramid.__module__)\n"
    )
    for modules, late in LATE.items():
        code += f"import {modules}\nprint([name for name in {late} if name in sys.modules])\n"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"True True {vit.__version__}", "False vit.features.pyramid", *["[]"] * len(LATE)]


@pytest.mark.parametrize("module", [vit, vit.attention, vit.weights], ids=lambda module: module.__name__)
def test_every_public_name_resolves(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vit' has no attribute 'FeaturePyramids'"):
        vit.FeaturePyramids  # noqa: B018


# Hides all that a base install lacks, then loads and saves, and runs each command.
BASE_INSTALL = """
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
sys.modules |= dict.fromkeys(hidden)

import vit
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
typed = {{"weights": "weights convert a.safetensors a.onnx --to onnx", "export": "export a.safetensors b.onnx"}}
for name, command in COMMANDS.items():
    try:
        main(typed.get(name, command.example).split())
    except SystemExit as stopped:
        print(name, stopped.code, file=sys.stderr)
"""


@pytest.mark.slow
def test_the_declared_dependencies_suffice_to_load_and_save_and_each_other_command_names_its_extra(tmp_path):
    project = tomllib.loads((Path(vit.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    code = BASE_INSTALL.format(dependencies=project["dependencies"])
    environment = os.environ | {"PYTHONPATH": str(Path(vit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
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
