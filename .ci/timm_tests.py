"""Runs timm's own tests of models on those of ``vit.timm_models``, from timm's sources, which .ci/run downloads.

The variable TIMM_TESTS names timm's folder of tests.
"""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

import vit.timm_models  # noqa: F401 - registers the models before timm's tests list them

VARIANTS = ["vit_attention_tiny_patch16_224", "vit_attention_small_patch32_224", "vit_attention_cifar10"]
SCRIPT = "TorchScript compiles no einops, and torch deprecates it for torch.export"
# Arguments besides the name of the model, as timm gives them.
TESTS = {
    "test_model_forward": {"batch_size": 1},
    "test_model_backward": {"batch_size": 2},
    "test_model_default_cfgs_non_std": {"batch_size": 1, "cfg_device": "meta"},
    "test_model_forward_features": {"batch_size": 1},
    "test_model_forward_intermediates_features": {"batch_size": 1},
    "test_model_forward_intermediates": {"batch_size": 1},
    "test_prune_intermediate_layers_contract": {},
    "test_prune_intermediate_layers_params_used": {},
    "test_model_forward_fx": {"batch_size": 1},
    "test_model_backward_fx": {"batch_size": 2},
    "test_model_forward_torchscript": {"batch_size": 1},
}


@pytest.fixture(scope="module")
def tests_of_timm() -> ModuleType:
    """Return timm's test_models.py as a module."""
    spec = importlib.util.spec_from_file_location("timm_test_models", Path(os.environ["TIMM_TESTS"], "test_models.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cases() -> list[object]:
    cannot = {"test_model_forward_torchscript": pytest.mark.xfail(reason=SCRIPT, strict=True)}
    return [pytest.param(name, id=name, marks=cannot.get(name, ())) for name in TESTS]


@pytest.mark.filterwarnings("ignore")  # timm's marks are not known to our pytest
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", _cases())
def test_the_model_passes_a_test_of_timm(tests_of_timm: ModuleType, name: str, variant: str) -> None:
    """Run one test of timm on one of our models."""
    getattr(tests_of_timm, name)(variant, **TESTS[name])
