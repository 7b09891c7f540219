"""What a model returns: logits, one score, features or tokens, and what is said of anything else."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, of_transformers, randomised
from tests.capture.handwritten_attention import expected_attention, fused, spelled
from tests.capture.wrapped_model import Around
from vit.capture import capture_attention, examine
from vit.capture.interception.kernels import count_kernels
from vit.capture.parts.logits import logits_of
from vit.explain import Features, explain

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_one_score_for_each_image_is_the_only_class():
    vit = spelled(fused, fused, classes=1)
    model = Around(vit, lambda vit, images: vit(images)[:, 0]).eval()
    assert capture_attention(model, IMAGES).logits.shape == (2, 1)
    for method in ("rollout", "relevance", "gradcam", "occlusion", "input_gradient", "token_drop"):
        assert_close(explain(model, IMAGES, method), explain(vit, IMAGES, method), **EXACT)


def test_scores_of_places_need_a_module_around_or_a_method_without_a_class():
    model = Around(spelled(fused, fused), lambda vit, images: vit(images)[:, :, None, None] * torch.ones(3, 5)).eval()
    for method in ("relevance", "occlusion", "input_gradient"):
        with pytest.raises(ValueError, match=r"Around returned scores of shape \(2, 7, 3, 5\), not one for each class"):
            explain(model, IMAGES, method)
    assert_close(explain(model, IMAGES), explain(model.vit, IMAGES), **EXACT)


@pytest.mark.parametrize(
    ("made_of", "message"),
    [
        (lambda logits: logits.argmax(dim=1), r"the model returned torch\.int64, such as numbers of classes"),
        (lambda logits: logits[:, :0], r"Around returned no logits, \(2, 0\): give a model with a head"),
    ],
    ids=["class numbers", "no classes"],
)
def test_class_numbers_and_no_logits_are_refused(made_of, message):
    model = Around(spelled(fused, fused), lambda vit, images: made_of(vit(images))).eval()
    for method in ("relevance", "occlusion"):
        with pytest.raises(ValueError, match=message):
            explain(model, IMAGES, method)


@pytest.mark.parametrize(
    ("name", "options", "read"),
    [("Dinov2Model", {"image_size": 8}, [0]), ("ViTModel", {}, [0]), ("IJepaModel", {}, list(range(15)))],
)
def test_models_of_transformers_without_logits_are_mapped_without_a_class(name, options, read):
    model = randomised(of_transformers(name, **options)())
    images = IMAGES
    anatomy = examine(model, images)
    assert (anatomy.depth, anatomy.grid) == (3, (3, 5))
    assert anatomy.readout.nonzero()[:, 0].tolist() == read
    assert len(capture_attention(model, images)) == 3
    if read == [0]:
        assert_close(explain(model, images), explain(Features(model).eval(), images), **EXACT)
    for method in ("relevance", "gradcam", "occlusion", "token_drop"):
        with pytest.raises(ValueError, match=r"no \.logits: give .*, such as vit.explain.Features; attention, rollout"):
            explain(model, images, method)


def test_what_a_model_returns_is_said_and_not_hidden_behind_its_patch_size():
    model = Around(spelled(fused, fused), lambda vit, images: {"scores": vit(images)}).eval()
    for method in ("rollout", "occlusion"):
        with pytest.raises(ValueError, match=r"the model returned dict, which is no tensor and has no \.logits"):
            explain(model, IMAGES, method)


def test_a_model_whose_attention_cannot_be_seen_says_so_when_tokens_are_dropped():
    model = spelled(lambda q, k, v: (q @ k.mT).sigmoid() @ v)
    model.patch_size = 2
    with pytest.raises(ValueError, match="called none of torch's attention functions"):
        explain(model, IMAGES, "token_drop")


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_attention_that_only_the_dispatcher_sees_is_counted():
    def attend(q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.mT), -1), v)

    scripted = torch.jit.script(attend)
    model = spelled(scripted, scripted)
    assert count_kernels(model, IMAGES) == {"aten._softmax": 2}
    with pytest.raises(ValueError, match=r"cannot be intercepted \(aten._softmax 2 times, of which none is called"):
        capture_attention(model, IMAGES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_quantised_layers_are_read_where_they_can_be():
    vit = spelled(fused, fused, fused).float()
    model = torch.ao.quantization.quantize_dynamic(vit, {nn.Linear}, dtype=torch.qint8)
    images = IMAGES.float()
    assert_close(list(capture_attention(model, images)), expected_attention(model, images), rtol=0, atol=0.02)
    with pytest.raises(ValueError, match="logits of Spelled have no gradient, as of quantised layers, so which tokens"):
        explain(model, images)


def test_sparse_logits_are_returned_dense():
    with pytest.raises(ValueError, match=r"logits that are torch.sparse_coo: return logits.to_dense"):
        logits_of(torch.eye(3).to_sparse())
