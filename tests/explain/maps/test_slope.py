"""Maps by gradients are refused if the gradient is not the slope of the score."""

import re

import pytest
import torch
from torch import nn

from tests.capture.wrapped_model import Around
from vit.explain import explain
from vit.explain.maps import METHODS, Subject
from vit.explain.maps.slope import check_slope

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0)).double()
UNMEASURED = r"whether the gradient of \w+ is the slope of its score could not be measured"
OF_GRADIENTS = (
    *("gradient_rollout", "relevance", "legrad", "gradcam", "attnlrp"),
    *("input_gradient", "integrated_gradients", "smoothgrad"),
)


class Reversed(torch.autograd.Function):
    """The identity, whose gradient has the other sign, as for a domain that is to be forgotten."""

    @staticmethod
    def forward(context, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient):
        return -gradient


class Adapted(nn.Module):
    """A frozen linear layer without gradients, and an adapter beside it that has some."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen, self.adapter = frozen, nn.Linear(frozen.in_features, frozen.out_features).double()

    def forward(self, tokens):
        with torch.no_grad():
            base = self.frozen(tokens)
        return base + 0.1 * self.adapter(tokens)


def reversing(random_vit):
    return Around(random_vit(depth=2), lambda model, images: Reversed.apply(model(images)))


def adapted(random_vit):
    model = random_vit(depth=2)
    for block in model.blocks:
        block.mlp.fc1 = Adapted(block.mlp.fc1)
    return model


def half_detached(random_vit):
    def run(model, images):
        logits = model(images)
        return logits + logits.detach()

    return Around(random_vit(depth=2), run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [reversing, adapted, half_detached])
def test_a_gradient_that_is_not_the_slope_is_refused_in_either_precision(make, dtype, random_vit):
    with pytest.raises(ValueError, match="is not the slope of its score"):
        check_slope(Subject(make(random_vit).eval().to(dtype), IMAGES.to(dtype), 1))


def test_an_edge_of_a_clamp_at_the_pixels_of_the_background_is_no_wrong_slope(random_vit):
    model = Around(random_vit(depth=1), lambda model, images: model(images.clamp(min=0)))
    images = IMAGES.clamp(min=0)
    images[:, :, 1:] = 0
    assert check_slope(Subject(model.eval(), images))


@pytest.mark.parametrize("make", [reversing, adapted, half_detached])
def test_every_method_refuses_a_gradient_that_is_not_the_slope(make, random_vit):
    model = make(random_vit).eval()
    for method in OF_GRADIENTS:
        with pytest.raises(ValueError, match=r"gradient of \w+ is not the slope of its score \(along one direct"):
            METHODS[method](Subject(model, IMAGES, 1))
    for method in {*METHODS} - {*OF_GRADIENTS} - {"rollout", "value_rollout", "attention", "value"}:
        assert METHODS[method](Subject(model, IMAGES, 1)).isfinite().all()


def test_the_error_has_the_slope_by_the_gradient_and_by_changed_images(random_vit):
    with pytest.raises(ValueError, match="is not the slope") as error:
        explain(reversing(random_vit).eval(), IMAGES, "input_gradient", target=1)
    numbers = re.search(r"direction (\S+), where the score changes by (\S+)\)", str(error.value)).groups()
    said, measured = map(float, numbers)
    assert said == pytest.approx(-measured, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_an_ordinary_model_is_its_slope(random_vit, dtype):
    assert check_slope(Subject(random_vit(depth=3).to(dtype), IMAGES.to(dtype)))


def test_edges_measure_no_slope(random_vit):
    def in_steps(model, images):  # a slope of 1 in place of 0, as for quantised training
        return model(images + ((100 * images).round() / 100 - images).detach())

    subject = Subject(Around(random_vit(depth=1), in_steps).eval(), IMAGES)
    assert not check_slope(subject)
    for method in ("relevance", "gradcam"):  # each of them says so
        with pytest.warns(UserWarning, match=UNMEASURED):
            METHODS[method](subject)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [reversing, half_detached])
def test_a_model_in_half_precision_is_checked_in_float32(make, dtype, random_vit):
    with pytest.raises(ValueError, match="is not the slope of its score"):
        check_slope(Subject(make(random_vit).eval().to(dtype), IMAGES.to(dtype), 1))
    assert check_slope(Subject(random_vit(depth=2).to(dtype), IMAGES.to(dtype), 1))


def test_a_model_with_an_autocast_of_its_own_is_checked_without_it(random_vit):
    def cast(model, images):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(images).float()

    with pytest.raises(ValueError, match="is not the slope of its score"):
        check_slope(Subject(Around(half_detached(random_vit), cast).float().eval(), IMAGES.float(), 1))
    assert check_slope(Subject(Around(random_vit(depth=2), cast).float().eval(), IMAGES.float(), 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_that_casts_its_input_to_half_precision_is_checked_without_the_cast(dtype, random_vit):
    def cast(make):
        return Around(make(random_vit), lambda model, images: model(images.to(dtype))).to(dtype).eval()

    assert explain(cast(lambda random_vit: random_vit(depth=2)), IMAGES.float(), "relevance", 1).isfinite().all()
    with pytest.raises(ValueError, match="is not the slope of its score"):
        explain(cast(half_detached), IMAGES.float(), "relevance", 1)


class Float32Norm(nn.LayerNorm):
    """A norm that computes in float32, as in CLIP."""

    def forward(self, tokens):
        return super().forward(tokens.float()).to(tokens.dtype)


class Bfloat16(nn.Module):
    """A module whose result has the precision of bfloat16."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, tokens):
        return self.module(tokens).bfloat16().float()


def with_norms_in_float32(model):
    for block in model.blocks:
        weights = block.norm2.state_dict()
        block.norm2 = Float32Norm(12)
        block.norm2.load_state_dict(weights)


def with_mlps_in_bfloat16(model):
    for block in model.blocks:
        block.mlp = Bfloat16(block.mlp)


def cut(model, share):
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, __, output: (1 - share) * output + share * output.detach())


@pytest.mark.parametrize("cast", [with_norms_in_float32, with_mlps_in_bfloat16])
def test_a_small_part_of_the_gradient_is_missed_in_a_model_that_casts(cast, random_vit):
    model = random_vit(depth=2).float()
    cast(model)
    assert check_slope(Subject(model, IMAGES.float(), 1))
    cut(model, 0.2)
    with pytest.raises(ValueError, match="is not the slope of its score"):
        check_slope(Subject(model, IMAGES.float(), 1))


def test_a_gradient_that_may_be_too_small_is_not_measured_without_a_copy(random_vit):
    model = random_vit(depth=2).float()
    cut(model, 0.04)
    model.kept = torch.ones(1, requires_grad=True) * 2  # such a tensor cannot be copied
    assert not check_slope(Subject(model, IMAGES.float(), 1))


@pytest.mark.parametrize("cut", [torch.detach, lambda patches: (8 * patches).round() / 8], ids=["detached", "rounded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_of_the_gradient_is_missed_behind_patches_that_have_none(dtype, cut, random_vit):
    model = random_vit(depth=2).to(dtype)
    model.patch_embed.register_forward_hook(lambda _, __, output: cut(output))
    assert check_slope(Subject(model, IMAGES.to(dtype), 1))
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, __, output: output.detach())
    for method in ("relevance", "gradient_rollout", "gradcam", "legrad"):
        with pytest.raises(ValueError, match="is not the slope of its score"):
            explain(model, IMAGES.to(dtype), method, 1)


def test_a_small_part_that_is_missed_behind_detached_patches_is_measured_in_float64_alone(random_vit):
    model = random_vit(depth=2)
    model.patch_embed.register_forward_hook(lambda _, __, output: output.detach())
    cut(model, 0.04)
    with pytest.raises(ValueError, match="is not the slope of its score"):
        check_slope(Subject(model, IMAGES, 1))
    assert not check_slope(Subject(model.float(), IMAGES.float(), 1))


def test_a_model_in_half_precision_that_cannot_be_copied_is_not_measured(random_vit):
    model = random_vit(depth=2).bfloat16()
    model.kept = torch.ones(1, requires_grad=True) * 2
    assert not check_slope(Subject(model, IMAGES.bfloat16(), 1))


def test_within_an_autocast_of_the_caller_a_model_is_checked_without_it(random_vit):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ValueError, match="is not the slope of its score"):
            check_slope(Subject(half_detached(random_vit).float().eval(), IMAGES.float(), 1))
        assert torch.is_autocast_enabled("cpu")


def test_a_subject_is_checked_once(random_vit, monkeypatch):
    calls = []
    monkeypatch.setattr("vit.explain.maps.slope.check_slope", lambda subject: calls.append(subject) or True)
    subject = Subject(random_vit(depth=1), IMAGES)
    for method in ("relevance", "gradcam"):
        METHODS[method](subject)
    assert calls == [subject]


def test_a_gradient_that_is_a_tenth_too_small_is_refused(random_vit):
    """The gradient of the MLPs is shrunk, as some trainings do."""

    def shrink(_, __, output):
        return 0.8 * output + 0.2 * output.detach()

    for dtype in (torch.float32, torch.float64):
        model = random_vit(depth=2).to(dtype)
        check_slope(Subject(model, IMAGES.to(dtype), 1))
        for block in model.blocks:
            block.mlp.register_forward_hook(shrink)
        with pytest.raises(ValueError, match="is not the slope of its score"):
            check_slope(Subject(model, IMAGES.to(dtype), 1))


def low_contrast(strength):
    return torch.cat([0.5 + strength * IMAGES[:1], IMAGES])


@pytest.mark.parametrize("images", [low_contrast(0), low_contrast(1e-3), low_contrast(1e-2)], ids=["0", "1e-3", "1e-2"])
def test_a_blank_image_before_the_others_does_not_hide_a_wrong_gradient(images, random_vit):
    with pytest.raises(ValueError, match="is not the slope of its score"):
        explain(half_detached(random_vit).eval().float(), images.float(), "input_gradient")


def test_a_score_that_rounds_by_more_than_steps_change_it_is_checked_in_float64(random_vit):
    model = half_detached(random_vit).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.shape == (7,):  # the bias of the head
                parameter += 3e4
    with pytest.raises(ValueError, match="is not the slope of its score"):
        explain(model, IMAGES.float(), "relevance", target=1)


def test_a_gradient_that_is_cut_for_one_image_of_the_batch_is_refused(random_vit):
    def run(model, images):
        logits = model(images)
        is_bright = images.mean(dim=(1, 2, 3)) > 1
        return torch.where(is_bright[:, None], (logits + logits.detach()) / 2, logits)

    model, images = Around(random_vit(depth=2), run).eval(), torch.cat([IMAGES, IMAGES.flip(-1)])
    assert explain(model, images, "input_gradient").shape == (4, 3, 5)
    images[2] += 2
    with pytest.raises(ValueError, match="is not the slope of its score"):
        explain(model, images, "input_gradient")
    with pytest.raises(ValueError, match="is not the slope of its score"), torch.no_grad():
        check_slope(Subject(model, images))
