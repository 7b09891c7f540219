"""An untrained model with large logits, so that patches matter, and images for it."""

import pytest
import torch

from tests.architectures import OURS
from vit import VisionTransformer


@pytest.fixture(scope="module")
def model(request):
    torch.manual_seed(0)
    model = VisionTransformer(**OURS | {"depth": getattr(request.module, "DEPTH", 2)}).eval()
    with torch.no_grad():
        model.head.weight.mul_(30)
    return model


@pytest.fixture(scope="module")
def images():
    return torch.randn(31, 3, 6, 10, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def short_search():
    """Adversarial attention is searched in a few steps, where it is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.explain.evaluation.evidence.SEARCH_STEPS", 3)
        yield
