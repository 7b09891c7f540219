"""Logits that read more than the last tokens: the maps that follow attention to these are refused."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, of_timm, of_transformers, of_vit_pytorch, ours, randomised
from tests.capture.wrapped_model import Around
from vit.capture import capture_attention, examine
from vit.capture.parts.last_tokens import by_image
from vit.explain import METHODS, explain
from vit.explain.maps import Subject, signed_map

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FOLLOW = ("attention", "rollout", "gradient_rollout", "relevance", "legrad", "value", "value_rollout")
MORE = "the logits of .* read more than its last tokens"


class Branched(nn.Module):
    """A ViT of ours whose head gets more: ``branch(images, tokens of all layers)``, (B, 12)."""

    def __init__(self, branch, **kwargs):
        super().__init__()
        self.branch, self.vit, self.more = branch, ours(**kwargs)(), nn.Linear(12, 7)

    def forward(self, images):
        tokens = [self.vit.embed(images)]
        for block in self.vit.blocks:
            tokens.append(block(tokens[-1]))
        return self.vit.forward_head(self.vit.norm(tokens[-1])) + self.more(self.branch(images, tokens))


BRANCHES = {
    "embedded patches": lambda images, tokens: tokens[0].mean(dim=1),
    "class token of an early layer": lambda images, tokens: tokens[2][:, 0],
    "pixels": lambda images, tokens: images.flatten(1)[:, :12],
}


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_maps_that_follow_attention_are_refused_if_a_branch_passes_layers_by(branch, pool):
    subject = Subject(randomised(Branched(BRANCHES[branch], pool=pool)), IMAGES)
    for method in FOLLOW:
        with pytest.raises(ValueError, match=MORE.replace(".*", "Branched")):
            signed_map(method, subject)
    for method in sorted({*METHODS} - {*FOLLOW, "attnlrp", "token_drop"}):
        assert signed_map(method, subject).shape == (2, 3, 5)
    with pytest.raises(ValueError, match=MORE):
        _ = subject.anatomy.readout


@pytest.mark.parametrize("images", [IMAGES[:1].repeat(2, 1, 1, 1), torch.zeros_like(IMAGES[:1]), IMAGES[:1]])
@pytest.mark.parametrize("branch", [*BRANCHES.values(), lambda images, tokens: images.mean(dim=(2, 3)).repeat(1, 4)])
def test_a_branch_is_found_in_copies_of_an_image_in_one_that_is_its_own_mirror_image_and_in_a_single_one(
    images, branch
):
    assert examine(randomised(Branched(branch)), images).reads_more


def test_the_weights_alone_are_captured_whatever_the_logits_read():
    model = randomised(Branched(BRANCHES["embedded patches"]))
    assert_close(list(capture_attention(model, IMAGES)), list(capture_attention(model.vit, IMAGES)), **EXACT)


@pytest.mark.parametrize(
    ("branch", "reads_more"), [("embedded patches", True), ("class token of an early layer", False)]
)
def test_maps_of_the_first_tokens_are_refused_only_if_the_logits_read_more_than_these(branch, reads_more):
    subject = Subject(randomised(Branched(BRANCHES[branch])), IMAGES)
    for method, words in (("attnlrp", "tokens that enter its first layer"), ("token_drop", "cannot be left out")):
        if reads_more:
            with pytest.raises(ValueError, match=words):
                signed_map(method, subject)
        else:
            assert signed_map(method, subject).shape == (2, 3, 5)


def test_a_head_of_the_last_layers_is_refused_and_one_of_the_last_layer_is_not():
    def several(vit, images, layers):
        found = vit.get_intermediate_layers(images, n=layers, norm=True, return_prefix_tokens=True)
        return torch.cat([x for patches, prefix in found for x in (prefix[:, 0], patches.mean(dim=1))], dim=1)

    for layers in (1, 2):
        model = randomised(Around(ours(depth=3)(), lambda vit, images, n=layers: several(vit, images, n))).eval()
        if layers > 1:
            with pytest.raises(ValueError, match=MORE):
                explain(model, IMAGES)
        else:
            shares = examine(model, IMAGES).readout
            assert (shares > 0).all()
            assert shares[0] > 5 * shares[1]


def test_what_is_added_to_the_last_tokens_from_earlier_ones_is_refused():
    def adding(vit, images):
        tokens = early = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(vit.norm(tokens + early.mean(dim=1, keepdim=True))[:, 0])

    with pytest.raises(ValueError, match=MORE):
        explain(randomised(Around(ours()(), adding)), IMAGES)


def test_tokens_mixed_after_the_last_layer_are_read_before_they_are_mixed():
    weights = torch.rand(16, 16, dtype=torch.float64)

    def mixing(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(vit.norm(weights @ tokens)[:, 0])

    anatomy = examine(randomised(Around(ours()(), mixing)), IMAGES)
    assert_close(anatomy.readout, weights[0] / weights[0].sum(), **EXACT)


class Bare(nn.Module):
    """One layer in the forward method alone, without a module that has all tokens; ``branch(tokens)`` passes by."""

    def __init__(self, branch, sequence_first=False):
        super().__init__()
        self.branch, self.sequence_first = branch, sequence_first
        self.patches, self.head = nn.Conv2d(3, 12, 2, stride=2), nn.Parameter(torch.randn(12, 7))

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        attn = (x @ x.mT / 3).softmax(dim=-1)
        mixed = x + attn @ x
        if self.sequence_first:
            x, mixed = x.transpose(0, 1), mixed.transpose(0, 1).tanh()
            return (mixed[3] + self.branch(x.transpose(0, 1))) @ self.head
        return (mixed.tanh()[:, 3] + self.branch(x)) @ self.head


@pytest.mark.parametrize("sequence_first", [False, True])
def test_without_modules_a_result_of_a_function_shows_what_is_read(sequence_first):
    plain = randomised(Bare(lambda x: 0, sequence_first))
    anatomy = examine(plain, IMAGES)
    assert anatomy.reading.place is None
    assert anatomy.readout.nonzero().tolist() == [[3]]
    for branch in (lambda x: x.mean(dim=1), lambda x: x[:, 3].exp()):
        with pytest.raises(ValueError, match=MORE):
            explain(randomised(Bare(branch, sequence_first)), IMAGES)


@pytest.mark.parametrize("branch", [True, False])
def test_a_pooling_attention_beside_a_branch_is_refused(branch):
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = of_timm(global_pool="map", class_token=False)()

        def forward(self, images):
            tokens = self.vit.forward_features(images)
            more = tokens[:, 2] if branch else 0
            return self.vit.head(self.vit.attn_pool(tokens) + more)

    subject = Subject(randomised(Pooling()), IMAGES)
    assert subject.anatomy.pooled
    for method in FOLLOW[:4]:
        if branch:
            with pytest.raises(ValueError, match=MORE):
                signed_map(method, subject)
        else:
            assert signed_map(method, subject).shape == (2, 3, 5)


@pytest.mark.parametrize(
    "make",
    [
        ours(pool="cls+mean", num_registers=2, layer_scale=1e-5),
        ours(num_classes=0),
        of_timm(global_pool="map", class_token=False),
        of_timm(name="VisionTransformerDistilled"),
        of_timm(global_pool="avg", class_token=False),
        of_transformers("Dinov2ForImageClassification", image_size=8),
        of_vit_pytorch("SimpleViT", num_register_tokens=2),
    ],
    ids=["cls + mean", "no head", "attention pooling", "distilled", "mean", "DINOv2", "registers"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_usual_heads_read_the_last_tokens_alone(make, dtype):
    model = randomised(make()).to(dtype)
    images = IMAGES if "dino" not in str(type(model)) else IMAGES[..., :8].repeat(1, 1, 2, 1)[:, :, :8]
    assert not examine(model, images.to(dtype)).reads_more


def test_a_result_is_read_image_by_image_along_the_first_or_the_second_axis():
    tokens_first = torch.arange(30).reshape(5, 2, 3)
    assert torch.equal(by_image(tokens_first, 2), tokens_first.transpose(0, 1))
    assert torch.equal(by_image(tokens_first.transpose(0, 1), 2), tokens_first.transpose(0, 1))
    assert by_image(torch.zeros(5, 3, 2), 2) is None
    assert by_image(torch.zeros(5), 2) is None


def test_a_single_logit_near_zero_is_read_from_the_last_tokens_however_it_rounds():
    for seed in range(5):
        torch.manual_seed(seed)
        model = vit.VisionTransformer(32, 8, embed_dim=24, depth=2, num_heads=3, num_classes=1).eval()
        images = torch.randn(4, 3, 32, 32)
        with torch.no_grad():
            model.head.bias -= model(images[:1])[0]  # the logit of the first image is nearly 0
        assert explain(model, images, "relevance").shape == (4, 4, 4)
