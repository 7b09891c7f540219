"""Contributions add up to the logit, and each term is what its head, MLP or token carries."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, IMAGES, TARGET, VERSUS, made, of_timm, of_torchvision, randomised
from tests.capture.wrapped_model import Around
from vit.explain import capture_attention, contributions

NOT_SPLIT = {
    "ours, differential": "does not enter a linear layer unchanged",
    "ours, gated": "does not enter a linear layer unchanged",
    "ours, simplified": "does not enter a linear layer unchanged",
    "timm, map": "pools its tokens by attention",
    "timm, map with class token": "pools its tokens by attention",
}


def test_terms_add_up_to_the_logit_on_every_architecture(name, architecture, model, images):
    if name in NOT_SPLIT:
        with pytest.raises(ValueError, match=NOT_SPLIT[name]):
            contributions(model, images)
        return
    found = contributions(model, images)
    assert found.heads.shape == (2, 3, 3, architecture.tokens)
    tolerance = 1e-5 if name.startswith("transformers") else 1e-10  # which computes parts in float32
    assert_close(found.total, model_logits(model, images).amax(dim=1), rtol=tolerance, atol=tolerance)


def model_logits(model, images):
    with torch.no_grad():
        output = model(images)
    return getattr(output, "logits", output)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_scale": 0.3, "num_registers": 2},
        {"pool": "mean", "layer_scale": 0.3},
        {"pool": "mean", "fc_norm": False, "class_token": False},
        {"pool": "cls+mean", "fc_norm": True},
        {"pool": "cls+dist", "num_registers": 1},
        {"mlp": "swiglu", "pre_norm": True, "pos_embed": "rope"},
        {"num_kv_heads": 1, "qkv_bias": False, "attention": ["softmax", "talking", "uniform"]},
        {"patch_stride": 1, "patch_size": 1, "depth": 1, "num_heads": 1},
    ],
    ids=str,
)
def test_terms_add_up_whatever_the_arguments_of_the_model(changes, random_vit):
    model = random_vit(**changes)
    found = contributions(model, IMAGES, TARGET)
    logits = model(IMAGES).gather(1, TARGET[:, None])[:, 0].detach()
    assert_close(found.total, logits, rtol=1e-10, atol=1e-10)
    single = contributions(model.float(), IMAGES.float(), TARGET)
    assert_close(single.total, logits.float(), rtol=1e-5, atol=1e-5)


def test_a_difference_of_two_classes_is_the_difference_of_their_terms(random_vit):
    model = random_vit()
    found, one, other = (contributions(model, IMAGES, *args) for args in ((TARGET,), (TARGET,), (VERSUS,)))
    found = contributions(model, IMAGES, TARGET, versus=VERSUS)
    assert_close(found.heads, one.heads - other.heads, **EXACT)
    assert_close(found.bias, one.bias - other.bias, **EXACT)


@pytest.fixture(scope="module")
def by_hand():
    """A model with LayerScale, and its terms by loops over heads and tokens, for class 4 and the class token."""
    model = randomised(vit.VisionTransformer(**SMALL))
    tokens, heads, mlps, biases = model.embed(IMAGES), [], [], []
    entered = tokens
    with torch.no_grad():
        for block, attn in zip(model.blocks, capture_attention(model, IMAGES), strict=True):
            values = block.attn.qkv(block.norm1(tokens))[..., 24:]
            added = torch.zeros(2, 3, 16, 12, dtype=torch.float64).repeat(2, 1, 1, 1)[:3]
            for head in range(3):
                channels = slice(4 * head, 4 * head + 4)
                for token in range(16):
                    carried = values[:, token, channels] @ block.attn.proj.weight[:, channels].T
                    added[:, head, token] = attn[:, head, 0, token, None] * carried * block.ls1.gamma
            bias = block.attn.proj.bias * block.ls1.gamma
            tokens = tokens + block.ls1(block.attn(block.norm1(tokens)))
            mlp = block.ls2(block.mlp(block.norm2(tokens)))
            tokens = tokens + mlp
            heads.append(added)
            mlps.append(mlp[:, 0])
            biases.append(bias)
        last = tokens[:, 0]
        scale = (last.var(dim=1, correction=0, keepdim=True) + 1e-6).rsqrt()
        row = model.head.weight[4] * model.norm.weight

        def read(vectors, scale):
            return ((vectors - vectors.mean(dim=-1, keepdim=True)) * row).sum(dim=-1) * scale

        return model, {
            "heads": torch.stack([read(added, scale[:, :, None]) for added in heads], dim=1),
            "mlps": torch.stack([read(mlp, scale[:, 0]) for mlp in mlps], dim=1),
            "embedding": read(entered[:, 0], scale[:, 0]),
            "bias": read(sum(biases), scale[:, 0]) + model.norm.bias @ model.head.weight[4] + model.head.bias[4],
        }


SMALL = {
    "image_size": (6, 10),
    "patch_size": 2,
    "embed_dim": 12,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 7,
    "layer_scale": 0.1,
}


def test_each_term_is_what_a_loop_over_heads_and_tokens_gives(by_hand):
    model, expected = by_hand
    found = contributions(model, IMAGES, 4)
    assert_close(found.heads, expected["heads"], **EXACT)
    assert_close(found.mlps, expected["mlps"], **EXACT)
    assert_close(found.embedding[:, 0], expected["embedding"], **EXACT)
    assert (found.embedding[:, 1:] == 0).all()  # the head reads the class token alone
    assert_close(found.bias, expected["bias"], **EXACT)


def test_the_mlp_is_not_taken_for_the_attention_if_its_bias_is_far_larger(random_vit):
    model, added, last = random_vit(), [], []
    for block in model.blocks:
        block.mlp.fc2.bias.data[3] = 3000.0
    found = contributions(model, IMAGES, 4)
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, __, output: added.append(output[:, 0].detach()))
    model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0][:, 0].detach()))
    model(IMAGES)
    scale = (last[0].var(dim=1, correction=0) + 1e-6).rsqrt()
    row = model.head.weight[4] * model.norm.weight
    read = [((mlp - mlp.mean(dim=1, keepdim=True)) * row).sum(dim=1) * scale for mlp in added]
    assert_close(found.mlps, torch.stack(read, dim=1), **EXACT)


def test_ours_and_timm_with_the_same_weights_have_the_same_terms(random_vit):
    ours, theirs = contributions(random_vit(), IMAGES, TARGET), contributions(made("timm"), IMAGES, TARGET)
    assert_close(vars(ours) | {"total": ours.total}, vars(theirs) | {"total": theirs.total}, **EXACT)


def test_the_map_and_the_list_of_terms_are_sums_of_terms(random_vit):
    found = contributions(random_vit(num_registers=2), IMAGES, TARGET)
    assert_close(found.patches, found.heads.sum(dim=(1, 2))[:, 3:].view(3, 3, 5), **EXACT)
    terms = found.terms(1)
    assert math.isclose(sum(value for _, value in terms), found.total[1].item(), rel_tol=1e-9)
    assert [abs(value) for _, value in terms] == sorted((abs(value) for _, value in terms), reverse=True)
    assert dict(terms)["layer 2, head 1"] == pytest.approx(found.heads[1, 2, 1].sum().item())
    assert len(terms) == 9 + 3 + 2


def test_images_of_a_batch_do_not_mix_and_inference_mode_changes_nothing(random_vit):
    model = random_vit()
    together, alone = contributions(model, IMAGES, TARGET), contributions(model, IMAGES[1:2], TARGET[1:2])
    assert_close(together.heads[1:2], alone.heads, **EXACT)
    with torch.inference_mode():
        assert_close(contributions(model, IMAGES + 0, TARGET).heads, together.heads, **EXACT)
    assert not together.heads.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


class Block(nn.Module):
    """A block of attention and an MLP, whose sums are made in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.proj, self.mlp = nn.Linear(12, 36), nn.Linear(12, 12), nn.Linear(12, 12)

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        if self.way == "post-norm":
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))
        if self.way == "no skip connection":
            return self.mlp(self.norm2(self.attend(self.norm1(x))))
        if self.way == "gate after the projection":
            return x + self.attend(self.norm1(x)) * x.sigmoid()
        if self.way == "mean of the tokens added":
            x = x + self.attend(self.norm1(x))
            x = x + self.mlp(self.norm2(x))
            return x + x.mean(dim=1, keepdim=True).expand_as(x)
        if self.way == "side by side":
            return x + self.attend(self.norm1(x)) + self.mlp(self.norm2(x))
        if self.way == "sum of a list":
            x = sum([x, self.attend(self.norm1(x))])
            return sum([self.mlp(self.norm2(x)), x])
        if self.way == "difference":
            x = x - self.attend(self.norm1(x))
            return x - self.mlp(self.norm2(x))
        if self.way == "twice":
            x = torch.add(x, self.attend(self.norm1(x)), alpha=2)
            return torch.add(x, self.mlp(self.norm2(x)), alpha=2)
        if self.way == "in a copy":
            x = x.clone()
            x += self.attend(self.norm1(x))
            return x.clone() + self.mlp(self.norm2(x))
        branch = self.attend(self.norm1(x))
        branch += x  # in place
        return branch + self.mlp(self.norm2(branch))


class HomeMade(nn.Module):
    """Two such blocks between an embedding and a head."""

    def __init__(self, way, head=None):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 12, 2, stride=2), nn.LayerNorm(12)
        self.blocks = nn.ModuleList([Block(way), Block(way)])
        self.head = head or nn.Linear(12, 7)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


WAYS = ["in place", "side by side", "sum of a list", "difference", "twice", "in a copy"]


@pytest.mark.parametrize("way", WAYS)
def test_sums_are_split_however_they_are_written(way):
    model = randomised(HomeMade(way))
    found = contributions(model, IMAGES, TARGET)
    assert_close(found.total, model(IMAGES).gather(1, TARGET[:, None])[:, 0].detach(), rtol=1e-10, atol=1e-10)
    assert found.mlps.abs().min() > 0


@pytest.mark.parametrize(
    "way", ["post-norm", "no skip connection", "gate after the projection", "mean of the tokens added"]
)
def test_what_is_no_sum_is_refused(way):
    seen = r"layer 0 of HomeMade does not add its attention and its MLP, and nothing|mixes tokens in a way .*blocks\.0"
    with pytest.raises(ValueError, match=seen):
        contributions(randomised(HomeMade(way)), IMAGES)


def test_an_mlp_before_the_logits_is_refused():
    head = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 7))
    with pytest.raises(ValueError, match=r"the logits of HomeMade are not linear in the tokens .* norms \(off by"):
        contributions(randomised(HomeMade("in place", head)), IMAGES)


def test_logits_that_are_divided_by_a_norm_of_their_own_are_refused(random_vit):
    model = Around(random_vit(), lambda model, images: nn.functional.normalize(model(images), dim=1)).eval()
    with pytest.raises(ValueError, match="the logits of Around are not linear"):
        contributions(model, IMAGES)


def test_soft_capped_logits_are_refused_although_they_are_nearly_linear(random_vit):
    model = Around(random_vit(), lambda model, images: 30 * (model(images) / 30).tanh()).eval()
    with pytest.raises(ValueError, match="the logits of Around are not linear"):
        contributions(model, IMAGES)


def test_a_model_in_training_a_class_that_is_not_there_and_no_images_are_refused(random_vit):
    with pytest.raises(ValueError, match="training mode"):
        contributions(random_vit().train(), IMAGES)
    with pytest.raises(ValueError, match="target"):
        contributions(random_vit(), IMAGES, 9)
    with pytest.raises(ValueError, match="there are no images"):
        contributions(random_vit(), IMAGES[:0])


@pytest.mark.parametrize("make", [of_timm(), of_torchvision], ids=["timm", "torchvision"])
def test_bfloat16_adds_up_to_its_precision(make):
    model = randomised(make()).bfloat16()
    size = (6, 10) if make is not of_torchvision else (8, 8)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = contributions(model, images)
    assert_close(found.total, found.logits, rtol=0.05, atol=0.1)


class ReadsEarlyTokens(nn.Module):
    """A model whose logits also read the tokens before the first layer, which is no bias."""

    def __init__(self):
        super().__init__()
        self.vit = vit.VisionTransformer(16, 4, embed_dim=24, depth=2, num_heads=3)
        self.early = nn.Linear(24, 10)

    def forward(self, images):
        tokens = early = self.vit.embed(images)
        for block in self.vit.blocks:
            tokens = block(tokens)
        return self.vit.head(self.vit.norm(tokens)[:, 0]) + self.early(early[:, 1:].mean(dim=1))


def test_logits_that_read_earlier_tokens_too_are_refused():
    with pytest.raises(ValueError, match="the logits of ReadsEarlyTokens read more than the tokens of its last layer"):
        contributions(ReadsEarlyTokens().eval(), torch.randn(2, 3, 16, 16))
