"""The last block without the tokens that the head does not read."""

import pytest
from torch import nn
from torch.testing import assert_close

import vit
from tests.inference.small_models import images_for, model_of
from vit.inference.class_token_only import ClassTokenOnly, reads_class_token_only


@pytest.mark.parametrize(
    "kwargs",
    [
        *({}, {"num_registers": 2, "layer_scale": 0.3, "qk_norm": True}, {"mlp": "swiglu", "pre_norm": True}),
        *({"depth": 1}, {"fc_norm": True, "num_classes": 0}, {"num_kv_heads": 1}, {"tie_qkv": True}),
        *({"attention": name} for name in ("linear", "talking", "differential", "gated", "simplified")),
    ],
    ids=str,
)
def test_a_last_block_that_computes_the_class_token_alone_gives_the_same_logits(kwargs):
    model = model_of(**kwargs)
    if not reads_class_token_only(model):  # a mechanism whose queries depend on each other
        assert not model.blocks[-1].attn.mechanism.independent_queries
        return
    images = images_for(model, 3)
    lengths = []
    model.blocks[-1].mlp.fc1.register_forward_hook(lambda module, inputs, output: lengths.append(output.shape[1]))
    logits = ClassTokenOnly(model)(images)
    assert lengths == [1]
    expected = model.forward_head(model.forward_features(images))
    assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_all_tokens_are_computed_where_more_than_the_class_token_is_read():
    assert reads_class_token_only(model_of())
    for kwargs in ({"pool": "mean"}, {"pool": "cls+mean"}, {"pos_embed": "rope"}, {"attention": "window"}):
        assert not reads_class_token_only(model_of(**kwargs)), kwargs
    hooked = model_of()
    hooked.blocks[-1].mlp.register_forward_hook(lambda *_: None)
    replaced = model_of()
    replaced.forward_head = lambda tokens, pre_logits=False: tokens.mean(1)
    of_another_class = model_of()
    of_another_class.__class__ = type("Other", (vit.VisionTransformer,), {})
    other_block = model_of()
    other_block.blocks[-1] = nn.Identity()
    assert not any(map(reads_class_token_only, (hooked, replaced, of_another_class, other_block)))
