"""What `import vit` provides, and which libraries it leaves for later."""

import subprocess
import sys

import pytest

import vit


def test_import_vit_alone_gives_models_and_attention_and_loads_no_library_of_training_or_plotting():
    late = ["lightning", "timm", "torchvision", "matplotlib", "jsonargparse", "sklearn", "safetensors"]
    code = (
        "import sys, vit\n"
        "model = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)\n"
        "print(type(model.blocks[0].attn) is vit.attention.MultiHeadAttention, callable(vit.load), vit.__version__)\n"
        f"print([name for name in {late} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"True True {vit.__version__}", "[]"]


@pytest.mark.parametrize("module", [vit, vit.attention, vit.weights], ids=lambda module: module.__name__)
def test_every_public_name_resolves(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
