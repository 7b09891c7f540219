"""Maps of backbones without logits."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES, of_timm, of_transformers, ours, randomised
from vit.capture import capture_attention, examine
from vit.explain import Features, PatchToken, Similarity, attention_rollout, explain

METHODS = (
    "attention",
    "rollout",
    "value",
    "relevance",
    "gradcam",
    "legrad",
    "input_gradient",
    "occlusion",
    "token_drop",
)
BACKBONES = {
    "ours": ours(num_classes=0),
    "timm": of_timm(num_classes=0),
    "transformers": of_transformers("ViTModel"),
    "transformers, without pooling": of_transformers("Dinov2Model", image_size=8),
}


@pytest.fixture(params=BACKBONES)
def backbone(request):
    """A backbone of each library."""
    return randomised(BACKBONES[request.param]())


def of_size(backbone):
    return IMAGES if "Dinov2" not in type(backbone).__name__ else torch.randn(3, 3, 8, 8).double()


def test_every_method_explains_a_feature_a_similarity_and_a_patch(backbone):
    images = of_size(backbone)
    for model in (
        Features(backbone).eval(),
        Similarity(backbone, images[:2]).eval(),
        PatchToken(backbone, images, row=1, column=2),
    ):
        grid = examine(model, images).grid
        for method in METHODS:
            if method == "token_drop" and isinstance(model, PatchToken):
                continue  # reads a token by its place
            maps = explain(model, images, method, target=0)
            assert maps.shape == (3, *grid)
            assert maps.isfinite().all()


def test_a_feature_is_explained_as_the_logit_of_a_head_that_copies_it():
    backbone = randomised(ours(num_classes=0)())
    classifier = randomised(ours(num_classes=12)())
    classifier.load_state_dict(backbone.state_dict(), strict=False)
    nn.init.eye_(classifier.head.weight)
    nn.init.zeros_(classifier.head.bias)
    for method in ("relevance", "input_gradient", "occlusion"):
        found = explain(Features(backbone).eval(), IMAGES, method, target=5)
        assert_close(found, explain(classifier, IMAGES, method, target=5), **EXACT)


def test_features_of_tokens_are_the_first_or_the_mean():
    tokens = torch.randn(2, 4, 3)
    backbone = nn.Identity()
    assert_close(Features(backbone)(tokens), tokens[:, 0])
    assert_close(Features(backbone, pool="mean")(tokens), tokens.mean(dim=1))
    assert_close(Features(backbone)(tokens[:, 0]), tokens[:, 0])


def test_an_image_is_most_similar_to_itself():
    similarity = Similarity(randomised(ours(num_classes=0)()), IMAGES).eval()(IMAGES)
    assert_close(similarity.diagonal(), torch.ones(3, dtype=torch.float64), **EXACT)
    assert (similarity - torch.eye(3)).max() < 1


def test_the_rollout_of_a_patch_is_its_row():
    backbone = randomised(ours(num_classes=0)())
    model = PatchToken(backbone, IMAGES, row=2, column=3)
    rolled = attention_rollout(capture_attention(backbone, IMAGES))
    # The class token is the first, so that patch 2 x 5 + 3 is token 14.
    assert_close(explain(model, IMAGES), rolled[:, 14, 1:].view(3, 3, 5), **EXACT)
    assert examine(model, IMAGES).readout.nonzero().tolist() == [[14]]


@pytest.mark.parametrize("place", [(3, 0), (0, 5), (-1, 0)])
def test_a_patch_outside_the_grid_is_refused(place):
    with pytest.raises(ValueError, match=r"must be one of 3 x 5, counted from 0"):
        PatchToken(randomised(ours(num_classes=0)()), IMAGES, *place)


def test_backbones_that_return_something_else_are_refused():
    class Several(nn.Module):
        def forward(self, images):
            return [images]

    with pytest.raises(ValueError, match="returned list, which is no tensor and has no pooler_output or last_hidden"):
        Features(Several())(IMAGES)
    pooled = nn.Sequential(randomised(ours(num_classes=0)())).eval()
    with pytest.raises(ValueError, match=r"Sequential returned features of shape \(2, 12\), not tokens"):
        PatchToken(pooled, IMAGES, 0, 0)


def test_the_mean_of_all_tokens_is_asked_for_also_of_a_model_with_a_pooler():
    class Pooled(nn.Module):
        def forward(self, images):
            return SimpleNamespace(pooler_output=images[:, 0] * 0, last_hidden_state=images)

    tokens = torch.randn(2, 4, 3)
    assert_close(Features(Pooled())(tokens), torch.zeros(2, 3))
    assert_close(Features(Pooled(), pool="mean")(tokens), tokens.mean(dim=1))


def test_a_backbone_in_training_mode_is_refused_and_left_in_it():
    backbone = randomised(ours(num_classes=0)()).train()
    with pytest.raises(ValueError, match="in training mode"):
        Similarity(backbone, IMAGES)
    with pytest.raises(ValueError, match="in training mode"):
        PatchToken(backbone, IMAGES, 0, 0)
    assert backbone.training


class PatchesAlone(nn.Module):
    """A backbone that returns its tokens without some at the start."""

    def __init__(self, vit, left_out=1):
        super().__init__()
        self.vit, self.left_out = vit, left_out

    def forward(self, images):
        return self.vit.forward_features(images)[:, self.left_out :]


def test_a_patch_is_the_same_if_the_backbone_returns_the_patches_alone():
    backbone = randomised(ours(num_classes=0)())
    expected = explain(PatchToken(backbone, IMAGES, row=2, column=3), IMAGES, "rollout")
    found = explain(PatchToken(PatchesAlone(backbone).eval(), IMAGES, row=2, column=3), IMAGES, "rollout")
    assert_close(found, expected, **EXACT)


class RegisterBehind(nn.Module):
    """A backbone with a register after the patches, which returns all tokens but the first, the class token."""

    def __init__(self, vit):
        super().__init__()
        self.vit, self.register = vit, nn.Parameter(torch.randn(1, 1, vit.embed_dim, dtype=torch.float64))

    def forward(self, images):
        tokens = torch.cat([self.vit.embed(images), self.register.expand(len(images), -1, -1)], dim=1)
        for block in self.vit.blocks:
            tokens = block(tokens)
        return self.vit.norm(tokens)[:, 1:]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 3), (2, 4)])
def test_as_many_other_tokens_behind_the_patches_as_before_them_do_not_change_which_patch_is_read(row, column):
    backbone = RegisterBehind(randomised(ours(num_classes=0)())).eval()
    rolled = attention_rollout(capture_attention(Features(backbone, "mean").eval(), IMAGES))
    found = explain(PatchToken(backbone, IMAGES, row=row, column=column), IMAGES, "rollout")
    assert_close(found, rolled[:, 1 + 5 * row + column, 1:16].view(3, 3, 5), **EXACT)


def test_a_backbone_that_returns_some_of_the_patches_is_refused():
    backbone = PatchesAlone(randomised(ours(num_classes=0)()), left_out=2).eval()
    with pytest.raises(ValueError, match=r"returned 14 tokens, .* mixes 16: return all of them, or the 15 patches"):
        PatchToken(backbone, IMAGES, row=0, column=0)
