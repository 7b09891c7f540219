"""What `import vit` provides, and which libraries it leaves for later."""

import subprocess
import sys

import pytest

import vit


@pytest.mark.slow
def test_import_vit_alone_gives_models_and_attention_and_loads_no_library_of_training_or_plotting():
    late = ["lightning", "timm", "torchvision", "matplotlib", "jsonargparse", "sklearn", "safetensors"]
    code = (
        "import sys, vit\n"
        "model = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)\n"
        "print(type(model.blocks[0].attn) is vit.attention.MultiHeadAttention, callable(vit.load), vit.__version__)\n"
        "print('vit.features' in sys.modules, vit.FeaturePyramid.__module__)\n"
        f"print([name for name in {late} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [f"True True {vit.__version__}", "False vit.features.pyramid", "[]"]


@pytest.mark.parametrize("module", [vit, vit.attention, vit.weights], ids=lambda module: module.__name__)
def test_every_public_name_resolves(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vit' has no attribute 'FeaturePyramids'"):
        vit.FeaturePyramids  # noqa: B018


@pytest.mark.slow
def test_image_files_are_read_without_lightning():
    code = "import sys, vit.data.image_files, vit.commands.explain; print('lightning' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "False"


def test_every_name_of_the_data_modules_is_imported_when_it_is_used():
    import vit.data

    assert {getattr(vit.data, name).__name__ for name in vit.data.__all__} == set(vit.data.__all__)
    assert set(vit.data.DATA_SETS) == set(vit.data.__all__) - {"ImageDataModule", "UnsortedImages"}
    with pytest.raises(AttributeError, match="no attribute 'MNIST'"):
        vit.data.MNIST  # noqa: B018 - the access is the test
