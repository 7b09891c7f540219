"""What `import vit` brings, and what it leaves until used."""

import subprocess
import sys

import pytest

import vit


def run(code):
    """What a new Python prints that runs the code."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_vit_loads_no_library_of_training_or_plotting():
    late = ["lightning", "timm", "torchvision", "matplotlib", "jsonargparse", "sklearn"]
    assert run(f"import sys, vit; print([name for name in {late} if name in sys.modules])") == "[]"


@pytest.mark.parametrize("module", [vit, vit.attention, vit.weights], ids=lambda module: module.__name__)
def test_every_public_name_resolves(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_import_vit_alone_gives_a_model_and_the_attention_behind_it():
    printed = run(
        "import vit\n"
        "model = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)\n"
        "print(isinstance(model.blocks[0].attn, vit.attention.MultiHeadAttention), callable(vit.load), vit.__version__)"
    )
    assert printed == f"True True {vit.__version__}"


@pytest.mark.slow
def test_importing_vit_takes_hardly_longer_than_importing_what_it_needs():
    def seconds(statement):
        # Of the processor: the clock on the wall also counts the tests beside this one.
        return float(run(f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"))

    pairs = [(seconds("import torch, einops"), seconds("import vit")) for _ in range(5)]
    # The least of five: other programs can only slow it down.
    needed, taken = (min(times) for times in zip(*pairs, strict=True))
    assert taken <= 1.15 * needed
