"""Explanations and analysis on a device without float64, as Apple's GPUs are."""

import pytest
import torch
from torch import nn

import vit
from tests.without_double import MPS, AppleGPU, on_mps
from vit import analysis
from vit.analysis.truncation import attention_spectra
from vit.explain import METHODS, attention_flow, capture_attention, explain
from vit.explain.evaluation import sanity
from vit.explain.evaluation.scoring import score
from vit.explain.evaluation.trust import trust_report
from vit.model.embedding import resize_patches
from vit.objectives.feature_evaluation import feature_std
from vit.support.precision import in_double

SIZES = {"image_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 5}


@pytest.fixture(autouse=True)
def _copies_stay_on_mps(monkeypatch):
    copied = nn.Parameter.__deepcopy__

    def copy(parameter, memo):
        on_mps(found := copied(parameter, memo))
        return found

    monkeypatch.setattr(nn.Parameter, "__deepcopy__", copy)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SIZES).eval()
    on_mps(model)
    return model


@pytest.fixture(scope="module")
def images():
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    on_mps(images)
    return images


@pytest.fixture(scope="module")
def labels():
    labels = torch.arange(8) % 5
    on_mps(labels)
    return labels


def test_the_device_refuses_what_apples_refuses(images):
    with AppleGPU():
        assert images.device == (images + 1).exp().device == torch.zeros(2, device=images.device).device == MPS
        for wide in (images.double, lambda: images.to(torch.float64), lambda: images.new_zeros(2, dtype=torch.double)):
            with pytest.raises(TypeError, match="doesn't support float64"):
                wide()
        with pytest.raises(TypeError, match=r"Tensor\.cpu"):
            images.numpy()
        assert in_double(images).dtype == images.cpu().double().dtype == torch.float64
        with pytest.raises(RuntimeError, match="float64 of the CPU"):
            images * in_double(images)


@pytest.mark.parametrize("method", METHODS)
def test_a_map_is_that_of_the_cpu(model, images, method):
    with AppleGPU():
        found = explain(model, images[:2], method).cpu()
    torch.manual_seed(0)
    on_cpu = vit.VisionTransformer(**SIZES).eval()
    pixels = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, explain(on_cpu, pixels[:2], method), rtol=1e-4, atol=1e-5)


def test_maps_are_judged(model, images, labels, monkeypatch):
    monkeypatch.setattr("vit.explain.evaluation.evidence.SEARCH_STEPS", 2)
    with AppleGPU():
        report = trust_report(model, images, ("rollout", "relevance"), labels, clusters=torch.arange(8) // 2)
    assert report.findings


def test_maps_are_scored_and_attention_is_replaced(model, images, labels):
    with AppleGPU():
        scores = score(model, [(images, labels)], ["rollout"])
        table = sanity.uniform_attention(model, images, labels)
    assert scores.rows
    assert table.rows


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, images, labels: analysis.describe_heads(model, images),
        lambda model, images, labels: analysis.truncation_curve(model, images, labels, [1, 2]),
        lambda model, images, labels: attention_spectra(model, images),
        lambda model, images, labels: analysis.attribute_edges(model, images, query=0),
        lambda model, images, labels: analysis.projection_ranks(model),
        lambda model, images, labels: analysis.head_importance(model, images, labels),
        lambda model, images, labels: analysis.token_norms(model, images),
        lambda model, images, labels: attention_flow(capture_attention(model, images[:1])).isfinite().all(),
    ],
    ids=["heads", "truncation", "spectra", "edges", "ranks", "importance", "norms", "flow"],
)
def test_heads_are_measured(model, images, labels, measure):
    with AppleGPU():
        assert measure(model, images, labels)


def test_patches_are_resized_there(model):
    weight = model.patch_embed.proj.weight
    expected = resize_patches(weight.detach().clone(), 6)
    with AppleGPU():
        resized = resize_patches(weight.detach(), 6)
        assert resized.device == MPS
    torch.testing.assert_close(resized, expected)


def test_the_spread_of_features_is_told_there(images):
    features = images.flatten(1)
    on_mps(features)
    with AppleGPU():
        assert 0 < feature_std(features) < 1
