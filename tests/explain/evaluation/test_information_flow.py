"""The effect of noise in each token, compared with noise that is added by hand."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.evaluation.information_flow import follow_noise, noise_effects
from vit.explain.evaluation.similarity import map_correlation
from vit.explain.maps import CONTROLS, Subject, signed_map
from vit.explain.maps.noise import draw_for_each


@pytest.mark.parametrize("pool", ["cls", "mean"])
@torch.no_grad()
def test_the_effect_of_a_token_is_how_far_noise_in_it_moves_what_is_read_out(images, pool):
    torch.manual_seed(0)
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7, pool=pool).eval()
    found = noise_effects(Subject(model, images), seed=3)
    tokens = model.embed(images)

    def read(tokens):
        for block in model.blocks:
            tokens = block(tokens, model.patch_embed.grid_size)
        return tokens[:, 0] if pool == "cls" else tokens[:, 1:].mean(dim=1)

    noise = draw_for_each(images, tokens.shape[1:], 3, draw=torch.randn) * tokens.std(dim=(1, 2), keepdim=True)
    for patch in (0, 7, 14):
        noisy = tokens.clone()
        noisy[:, 1 + patch] += noise[:, 1 + patch]
        assert_close(found.flatten(1)[:, patch], (read(noisy) - read(tokens)).norm(dim=-1), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_class_token_that_attends_to_one_patch_is_moved_by_that_patch_alone(images):
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, num_classes=7, attention="softmax").eval()
    model.blocks[0].attn.proj.weight.zero_()  # nothing is passed on
    assert noise_effects(Subject(model, images)).abs().max() == 0


def test_methods_are_compared_with_the_mean_effect_beside_the_controls(model, images):
    found = follow_noise(model, images, ["rollout"], seeds=2)
    assert found.column("method") == ["rollout", *(control for control in CONTROLS if control != "uniform")]
    subject = Subject(model, images)
    effects = (noise_effects(subject, 0) + noise_effects(subject, 1)) / 2
    assert_close(found.values["rollout"]["flow"], map_correlation(signed_map("rollout", subject), effects))
    assert found.row(method="rollout")["flow"].low > found.row(method="random")["flow"].high


@pytest.mark.parametrize("missing", ["entry", "last"])
def test_a_model_without_a_place_for_noise_is_refused(model, images, missing):
    subject = Subject(model, images)
    vars(subject)["anatomy"] = replace(subject.anatomy, parts=replace(subject.anatomy.parts, **{missing: None}))
    with pytest.raises(ValueError, match="VisionTransformer has no module that takes or returns its tokens before"):
        noise_effects(subject)
