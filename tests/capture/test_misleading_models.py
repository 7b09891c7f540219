"""Models whose attention was once shown wrongly: each is read right now, or refused with its reason."""

from copy import deepcopy

import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, of_timm, of_transformers, ours, randomised
from tests.capture.wrapped_model import Around
from vit.capture import capture_attention, examine
from vit.explain import explain
from vit.explain.evaluation.sanity import uniform_attention

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SQUARE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def of_this_timm(name, **kwargs):
    kwargs = {"img_size": 32, "num_classes": 7} | kwargs
    return randomised(timm.create_model(name, **kwargs))


# Which token is which patch.


class OneHead(nn.Module):
    """Patches whose tokens (B, 1, N, D) a function mixes; the class scores are the mean of the mixed tokens."""

    def __init__(self, mix, width=7):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.mix = mix

    def forward(self, images):
        tokens = self.patches(images).flatten(2).mT[:, None]
        return self.mix(tokens).mean(dim=2)[:, 0]


def test_overlapping_patches_form_the_grid_of_their_strides():
    vit = ours(image_size=(7, 13), patch_size=1, depth=2)()
    vit.patch_embed.proj = nn.Conv2d(3, 12, 4, stride=2)

    def overlapping(vit, images):
        patches = vit.patch_embed.proj(images).flatten(2).mT
        tokens = torch.cat([vit.cls_token.expand(len(images), -1, -1), patches], dim=1)
        return vit.head(vit.encode(tokens, grid=(7, 5))[:, 0])

    model = randomised(Around(vit, overlapping))
    model.patch_size = 4
    images = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(0)).double()
    anatomy = examine(model, images)
    assert (anatomy.grid, anatomy.num_prefix_tokens) == ((7, 5), 1)
    for method in ("rollout", "occlusion", "input_gradient", "random"):
        with pytest.warns(UserWarning, match="Around does not divide these images evenly into patches"):
            assert explain(model, images, method).shape == (2, 7, 5)


def test_a_model_that_resizes_inside_has_the_grid_of_its_own_size():
    def resizing(vit, images):
        return vit(nn.functional.interpolate(images, (6, 10), mode="bilinear"))

    model = randomised(Around(ours()(), resizing))
    anatomy = examine(model, torch.randn(1, 3, 12, 20).double())
    assert (anatomy.grid, anatomy.num_prefix_tokens) == ((3, 5), 1)


def test_a_class_token_behind_the_patches_is_no_patch():
    vit = randomised(ours()())
    turned = Around(vit, lambda vit, images: vit.head(vit.encode(vit.embed(images).roll(-1, dims=1))[:, -1])).eval()
    assert examine(turned, IMAGES).patches == slice(0, 15)
    for method in ("attention", "rollout", "gradient_rollout", "relevance", "legrad", "gradcam", "token_drop"):
        assert_close(explain(turned, IMAGES, method), explain(vit, IMAGES, method), **EXACT)


def test_the_detection_tokens_of_yolos_are_no_patches():
    yolos = of_transformers("YolosForObjectDetection", num_detection_tokens=5)()
    anatomy = examine(randomised(Around(yolos, lambda yolos, images: yolos(images).logits[:, 0])), IMAGES)
    assert (anatomy.num_tokens, anatomy.patches) == (21, slice(1, 16))
    assert anatomy.readout.nonzero().tolist() == [[16]]


def test_a_class_token_that_depends_on_the_image_is_no_patch():
    def conditioned(vit, images):
        first, patches = vit.embed(images).split([1, 15], dim=1)
        tokens = torch.cat([first + patches.mean(dim=1, keepdim=True), patches], dim=1)
        return vit.head(vit.encode(tokens)[:, 0])

    assert examine(randomised(Around(ours()(), conditioned)), IMAGES).patches == slice(1, 16)


@pytest.mark.parametrize("turned", ["columns first", "backwards", "shuffled"])
def test_patches_in_another_order_than_by_rows_are_refused(turned):
    order = {
        "columns first": torch.arange(15).view(3, 5).mT.flatten(),
        "backwards": torch.arange(15).flip(0),
        "shuffled": torch.randperm(15, generator=torch.Generator().manual_seed(0)),
    }[turned]

    def shuffled(vit, images):
        return vit.forward_head(vit.encode(vit.embed(images)[:, order]))

    model = randomised(Around(ours(class_token=False, pool="mean")(), shuffled))
    with pytest.raises(ValueError, match=r"Around has 15 tokens, among which changed strips .* move no grid"):
        explain(model, IMAGES)


def test_attention_over_channels_is_refused_even_if_their_number_is_that_of_the_patches():
    class Crossed(nn.Module):
        patch_size = 2

        def __init__(self):
            super().__init__()
            self.patches, self.head = nn.Conv2d(3, 15, 2, stride=2), nn.Linear(15, 7)

        def forward(self, images):
            x = self.patches(images).flatten(2)[:, None]
            return self.head(((x @ x.mT).softmax(dim=-1) @ x).mean(dim=-1)[:, 0])

    with pytest.raises(
        ValueError, match=r"15 tokens, among which .* attention is over channels or a memory, other tokens"
    ):
        explain(randomised(Crossed()), IMAGES, grid=(3, 5))
    xcit = of_this_timm("xcit_nano_12_p8_224", depth=2, embed_dim=16, num_heads=1, cls_attn_layers=1)
    with pytest.raises(ValueError, match="move no grid of patches"):
        explain(xcit, SQUARE)


# Which tokens are read.


@pytest.mark.parametrize("pool", ["max", "avgmax"])
def test_maps_of_a_row_are_refused_if_the_head_takes_a_maximum_over_tokens(pool):
    model = randomised(of_timm(global_pool=pool, class_token=False)())
    for method in ("attention", "rollout", "relevance"):
        with pytest.raises(ValueError, match="reads other tokens for each image, as a maximum over tokens does"):
            explain(model, IMAGES, method)
    assert explain(model, IMAGES, "token_drop").shape == (2, 3, 5)


def test_maps_of_a_row_are_refused_if_each_image_chooses_its_token():
    def choosing(vit, images):
        tokens = vit.forward_features(images)
        return vit.head(tokens[range(len(images)), tokens[..., 0].argmax(dim=1)])

    model = randomised(Around(ours()(), choosing))
    with pytest.raises(ValueError, match="Around reads other tokens for each image"):
        explain(model, IMAGES)


# Which attentions are layers.


def test_attention_without_influence_on_the_logits_is_no_layer():
    class Aside(Around):
        """Computes a pooled token that nothing reads, as transformers' SigLIP classifiers do."""

        def __init__(self, vit):
            super().__init__(vit)
            self.pool = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, images):
            tokens = self.vit.forward_features(images)
            self.pool(tokens[:, :1], tokens, tokens)
            return self.vit.forward_head(tokens)

    vit = randomised(ours()())
    model = Aside(vit).double().eval()
    assert_close(list(capture_attention(model, IMAGES)), list(capture_attention(vit, IMAGES)), **EXACT)
    for method in ("rollout", "relevance", "attention", "legrad"):
        assert_close(explain(model, IMAGES, method), explain(vit, IMAGES, method), **EXACT)


def test_attention_without_influence_before_or_between_the_layers_is_no_layer():
    class Watched(nn.Module):
        """A block beside which an attention runs that nothing reads."""

        def __init__(self, block):
            super().__init__()
            self.block, self.watcher = block, nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, tokens, *inputs, **options):
            self.watcher(tokens, tokens, tokens)
            return self.block(tokens, *inputs, **options)

    for number in (0, 1):
        plain = randomised(ours()())
        vit = deepcopy(plain)
        vit.blocks[number] = Watched(vit.blocks[number])
        watched = vit.double().eval()
        for method in ("rollout", "relevance", "attention"):
            assert_close(explain(watched, IMAGES, method), explain(plain, IMAGES, method), **EXACT)
        found, expected = (uniform_attention(model, IMAGES).rows for model in (watched, plain))
        assert [row["layers"] for row in found] == [row["layers"] for row in expected]
        assert [row["divergence"] for row in found] == pytest.approx([row["divergence"] for row in expected])


def of_siglip():
    from transformers import SiglipConfig, SiglipForImageClassification

    small = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 24}
    config = SiglipConfig(text_config=small, vision_config=small | {"image_size": 8, "patch_size": 2}, num_labels=7)
    return SiglipForImageClassification(config)


def test_the_unused_pooling_of_siglip_is_no_layer():
    siglip = randomised(of_siglip())
    images = torch.randn(2, 3, 8, 8).double()
    anatomy = examine(siglip, images)
    assert (anatomy.depth, anatomy.pooled, anatomy.grid) == (3, False, (4, 4))
    assert_close(anatomy.readout, torch.full((16,), 1 / 16), check_dtype=False)


def mirrored(vit, images):
    return vit(images) + vit(images.flip(-1))


def ensemble(models, images):
    return models[0](images) + models[1](images)


@pytest.mark.parametrize(("run", "models"), [(mirrored, 1), (ensemble, 2)], ids=["mirror image", "two models"])
def test_models_that_run_side_by_side_are_refused(run, models):
    vit = ours()() if models == 1 else nn.ModuleList(ours()() for _ in range(models))
    with pytest.raises(ValueError, match=r"attentions side by side \(number 3 does not depend on number 2\)"):
        explain(randomised(Around(vit, run)), IMAGES)


# Captured weights are those that multiply the values.


def assert_layers_mix_by(model, images, layers, values_of, outputs_of):
    """The captured weights times the values of each layer give its output."""
    values, outputs, handles = [], [], []
    for layer in layers:
        handles.append(values_of(layer).register_forward_hook(lambda _, args, output: values.append(output)))
        handles.append(outputs_of(layer).register_forward_hook(lambda _, args, output: outputs.append(args[0])))
    attentions = capture_attention(model, images)
    for handle in handles:
        handle.remove()
    for attn, v, mixed in zip(attentions[: len(layers)], values, outputs, strict=False):
        v = v[..., -12:].unflatten(-1, (3, 4)).transpose(1, 2)
        assert_close((attn @ v).transpose(1, 2).flatten(2), mixed, **EXACT)
        rows = attn.sum(dim=-1)
        assert not torch.allclose(rows, torch.ones_like(rows))  # heads are mixed after the softmax


def test_weights_of_timms_cait_are_taken_after_its_heads_are_mixed():
    model = of_this_timm("cait_xxs24_224", depth=3, embed_dim=12, num_heads=3, patch_size=8)
    assert_layers_mix_by(
        model, SQUARE, [block.attn for block in model.blocks], lambda attn: attn.qkv, lambda attn: attn.proj
    )


def test_weights_of_deepvit_are_taken_after_its_heads_are_mixed():
    from vit_pytorch.deepvit import DeepViT

    model = randomised(
        DeepViT(image_size=8, patch_size=2, num_classes=7, dim=12, depth=3, heads=3, mlp_dim=24, dim_head=4)
    )
    assert_layers_mix_by(
        model,
        SQUARE[..., :8, :8],
        [layer[0] for layer in model.transformer.layers],
        lambda attn: attn.to_qkv,
        lambda attn: attn.to_out[0],
    )
    with pytest.warns(UserWarning, match="attention has negative weights"):
        assert explain(model, SQUARE[..., :8, :8]).shape == (2, 4, 4)


def test_the_two_softmaxes_of_convit_are_one_layer():
    model = of_this_timm("convit_tiny", depth=3, embed_dim=12, num_heads=3, patch_size=8, local_up_to_layer=3)
    attentions = capture_attention(model, SQUARE)
    assert [tuple(attn.shape) for attn in attentions] == 3 * [(2, 3, 16, 16)]
    for attn in attentions:
        assert_close(attn.sum(dim=-1), torch.ones_like(attn[..., 0]), **EXACT)


def test_the_differential_attention_of_timm_is_the_difference_that_mixes_values():
    model = of_this_timm("vit_dlittle_patch16_reg1_gap_256", depth=2, embed_dim=24, num_heads=2, patch_size=8)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    attentions = capture_attention(model, SQUARE)
    assert [tuple(attn.shape) for attn in attentions] == 2 * [(2, 2, 17, 17)]
    assert min(attn.min() for attn in attentions) < 0


# Models and images that once ended in a traceback.


def test_checkpoints_in_eval_mode_are_turned_off_within():
    plain, checkpointed = (randomised(of_timm(fused=False)()) for _ in range(2))
    checkpointed.set_grad_checkpointing()
    for method in ("rollout", "relevance", "legrad"):
        assert_close(explain(checkpointed, IMAGES, method), explain(plain, IMAGES, method), **EXACT)
    assert checkpointed.grad_checkpointing is True


def test_images_made_in_inference_mode_are_explained():
    model = randomised(ours()())
    with torch.inference_mode():
        images = IMAGES.clone()
        for method in ("rollout", "relevance", "integrated_gradients"):
            assert_close(explain(model, images, method), explain(model, IMAGES, method), **EXACT)
    assert_close(list(capture_attention(model, images)), list(capture_attention(model, IMAGES)), **EXACT)


def test_a_model_made_in_inference_mode_is_refused_and_its_copy_is_not():
    plain = randomised(ours()())
    with torch.inference_mode():
        model = ours()().double().eval()
        model.load_state_dict(plain.state_dict())
    for call in (capture_attention, examine, explain):
        with pytest.raises(ValueError, match=r"'.*' of VisionTransformer was made in torch.inference_mode, .*deepcopy"):
            call(model, IMAGES)
    copied = deepcopy(model)
    for method in ("rollout", "relevance", "integrated_gradients"):
        assert_close(explain(copied, IMAGES, method), explain(plain, IMAGES, method), **EXACT)


def test_a_buffer_made_in_inference_mode_is_named():
    model = randomised(ours()())
    with torch.inference_mode():
        model.register_buffer("scale", torch.ones(3))
    with pytest.raises(ValueError, match=r"'scale' of VisionTransformer was made in torch.inference_mode"):
        capture_attention(model, IMAGES)


@pytest.mark.parametrize("keep", [lambda table: table, lambda table: {64: {"sin": table}}, lambda table: [(table,)]])
def test_a_table_kept_from_a_pass_in_inference_mode_is_named_and_a_copy_has_none(keep):
    def scaled(vit, images):
        if vit.blocks[1].kept is None:
            vit.blocks[1].kept = keep(torch.linspace(1, 2, vit.embed_dim, dtype=torch.float64))
        return vit(images)

    model = randomised(ours()())
    model.blocks[1].kept = None
    around = Around(model, scaled).eval()
    with torch.inference_mode():
        around(IMAGES)
    for call in (capture_attention, examine, explain):
        with pytest.raises(ValueError, match=r"'vit.blocks.1.kept' of Around was made in torch.inference_mode"):
            call(around, IMAGES)
    assert len(capture_attention(deepcopy(around), IMAGES)) == 3


def test_a_model_that_asserts_its_number_of_tokens_cannot_drop_some():
    def asserting(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
            assert tokens.shape[1] == 16
        return vit.forward_head(vit.norm(tokens))

    with pytest.raises(ValueError, match="tokens of Around cannot be left out"):
        explain(randomised(Around(ours()(), asserting)), IMAGES, "token_drop")


def test_flex_attention_is_refused():
    from torch.nn.attention.flex_attention import flex_attention

    model = OneHead(lambda x: flex_attention(x, x, x), width=16)
    with pytest.raises(ValueError, match=r"attention that cannot be intercepted \(flex_attention, which compiles"):
        capture_attention(model.eval(), torch.randn(2, 3, 6, 10))


def test_whole_numbers_as_pixels_are_refused():
    pixels = torch.randint(0, 256, (2, 3, 6, 10), dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"images are torch.uint8, .*: give floats as the model takes them"):
        explain(randomised(ours()()), pixels, "random")


def test_legrad_is_refused_where_layers_have_other_widths():
    class Narrowing(Around):
        def __init__(self, vit):
            super().__init__(vit)
            self.narrow, self.norm, self.head = nn.Linear(12, 6), nn.LayerNorm(6), nn.Linear(6, 7)
            self.last = ours(embed_dim=6, num_heads=3, depth=1, pos_embed_init="normal")().blocks[0]
            self.layers = nn.ModuleList([*vit.blocks, nn.Sequential(self.narrow, self.last)])
            vit.head = nn.Identity()

        def forward(self, images):
            tokens = self.vit.embed(images)
            for layer in self.layers:
                tokens = layer(tokens)
            return self.head(self.norm(tokens)[:, 0])

    model = randomised(Narrowing(ours()()))
    with pytest.raises(ValueError, match=r"tokens of the layers of Narrowing have different shapes"):
        explain(model, IMAGES, "legrad")
    assert explain(model, IMAGES, "rollout").shape == (2, 3, 5)


def test_attention_of_three_axes_is_split_into_heads():
    class Flat(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.patches, self.fused = nn.Conv2d(3, 12, 2, stride=2), fused

        def forward(self, images):
            x = self.patches(images).flatten(2).mT.unflatten(-1, (3, 4)).transpose(1, 2).flatten(0, 1)
            if self.fused:
                x = nn.functional.scaled_dot_product_attention(x, x, x)
            else:
                x = torch.bmm((x @ x.mT / 2).softmax(dim=-1), x)
            return x.unflatten(0, (-1, 3)).mean(dim=2).flatten(1)

    explicit, fused = (randomised(Flat(fused)) for fused in (False, True))
    fused.load_state_dict(explicit.state_dict())
    (attn,), (expected,) = capture_attention(fused, IMAGES), capture_attention(explicit, IMAGES)
    assert attn.shape == (2, 3, 15, 15)
    assert_close(attn, expected, **EXACT)


@pytest.mark.parametrize("window_size", [0, 2])
def test_samvit_is_read_where_it_attends_to_the_whole_image_and_else_refused(window_size):
    model = of_this_timm(
        "samvit_base_patch16",
        embed_dim=12,
        depth=2,
        num_heads=3,
        patch_size=8,
        window_size=window_size,
        global_attn_indexes=(),
    )
    if window_size:
        with pytest.raises(ValueError, match=r"attends within windows|move no grid of patches"):
            explain(model, SQUARE)
    else:
        assert examine(model, SQUARE).grid == (4, 4)


def test_a_softmax_that_multiplies_no_values_in_a_matrix_product_is_refused():
    model = OneHead(lambda x: ((x @ x.mT).softmax(dim=-1)[..., None] * x[:, :, None]).sum(dim=3))
    with pytest.raises(ValueError, match=r"a softmax of shape \(2, 1, 15, 15\): neither a matrix product nor"):
        capture_attention(model.eval(), torch.randn(2, 3, 6, 10))


def test_einsum_with_lists_of_axes_is_seen_too():
    def mix(x):
        return torch.einsum((x @ x.mT).softmax(dim=-1), [0, 1, 2, 3], x, [0, 1, 3, 4], [0, 1, 2, 4])

    model = randomised(OneHead(mix))
    (attn,) = capture_attention(model, IMAGES)
    tokens = model.patches(IMAGES).flatten(2).mT[:, None]
    assert_close(attn, (tokens @ tokens.mT).softmax(dim=-1), **EXACT)


def test_values_in_another_layout_are_mixed_by_the_same_weights():
    class Written(nn.Module):
        def __init__(self, equation):
            super().__init__()
            self.patches, self.equation = nn.Conv2d(3, 12, 2, stride=2), equation

        def forward(self, images):
            x = self.patches(images).flatten(2).mT.unflatten(-1, (3, 4))
            q = x.transpose(1, 2)
            values = x if self.equation.startswith("bhij,bj") else q
            return torch.einsum(self.equation, (q @ q.mT).softmax(dim=-1), values).mean(dim=1).flatten(1)

    one, other = (randomised(Written(equation)) for equation in ("bhij,bjhd->bihd", "bhij,bhjd->bihd"))
    assert_close(list(capture_attention(one, IMAGES)), list(capture_attention(other, IMAGES)), **EXACT)
    assert examine(one, IMAGES).grid == examine(other, IMAGES).grid == (3, 5)
