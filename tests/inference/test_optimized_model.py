"""``vit.optimize``: what is checked, whichever engine runs."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.inference.small_models import images_for, model_of
from vit.inference import OptimizedModel, optimize, optimized_model
from vit.inference.class_token_only import without_unread


@pytest.fixture
def eager(monkeypatch):
    """Let one engine "eager" run the copy of the model itself, which takes no time to make."""
    made = {"eager": lambda model, dtype, calibration: torch.no_grad()(without_unread(model).__call__)}
    monkeypatch.setattr(optimized_model, "ENGINES", made)
    monkeypatch.setattr(optimized_model, "engines_for", lambda dtype: list(made))
    return made


def test_a_program_says_what_it_is_and_how_near(eager):
    model = model_of()
    fast = vit.optimize(model)
    assert isinstance(fast, OptimizedModel)
    assert repr(fast).startswith("OptimizedModel(engine=eager, dtype=float32, image=(3, 20, 28), difference=")
    assert fast.difference < 1e-6
    assert fast.agreement is None
    assert fast.seconds > 0
    assert not list(fast.parameters())


def test_the_program_keeps_the_weights_that_the_model_had(eager):
    model = model_of()
    fast, images = optimize(model), images_for(model, 4)
    before = fast(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(fast(images), before)
    assert torch.equal(copy.deepcopy(fast)(images), before)


def test_images_of_any_number_and_layout_are_taken(eager):
    model = model_of()
    fast, images = optimize(model), images_for(model, 7)
    for part in (images, images[:1], images[2:4], images[::2], images.to(memory_format=torch.channels_last)):
        assert_close(fast(part), model(part), rtol=1e-5, atol=1e-5)
    assert fast(images[:0]).shape == (0, 5)
    assert vit.optimize(model_of(num_classes=0, pool="cls+mean"))(images[:0]).shape == (0, 48)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 3, 20, 24), r"images have shape \(2, 3, 20, 24\), but this program takes \(batch, 3, 20, 28\)"),
        (torch.zeros(2, 1, 20, 28), r"images have shape \(2, 1, 20, 28\)"),
        (torch.zeros(3, 20, 28), r"images have shape \(3, 20, 28\)"),
        ([torch.zeros(3, 20, 28)], r"a list is given: give a tensor of normalised images"),
        (torch.zeros(2, 3, 20, 28, dtype=torch.uint8), r"images are torch\.uint8 on cpu, but .*float32"),
        (torch.zeros(2, 3, 20, 28, dtype=torch.bfloat16), r"images are torch\.bfloat16 on cpu"),
        (torch.zeros(2, 3, 20, 28, device="meta"), r"images are torch\.float32 on meta"),
    ],
    ids=["size", "channels", "axes", "list", "bytes", "bfloat16", "device"],
)
def test_other_images_are_refused(eager, images, said):
    with pytest.raises(ValueError, match=said):
        optimize(model_of())(images)


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (lambda: model_of().train(), {}, r"the model is in training mode: call model\.eval\(\) first"),
        (lambda: model_of().double(), {}, r"the weights are torch\.float64 on cpu: optimize a model of torch\.float32"),
        (lambda: model_of().to("meta"), {}, r"the weights are torch\.float32 on meta"),
        (lambda: nn.Linear(2, 2), {}, r"a Linear is given: vit\.optimize takes a vit\.VisionTransformer"),
        (model_of, {"dtype": torch.float16}, r"dtype torch\.float16 must be torch\.float32, torch\.bfloat16 or"),
        (model_of, {"engine": "onnx"}, "engine 'onnx'"),
        (model_of, {"dtype": torch.int8}, "int8 needs calibration: a tensor of about 300 normalised training images"),
        (model_of, {"calibration": torch.zeros(2, 3, 20, 28)}, r"calibration is for torch\.int8, and dtype is"),
        (model_of, {"dtype": torch.int8, "calibration": torch.zeros(9, 3, 8, 8)}, r"calibration has shape \(9, 3, 8"),
        (model_of, {"dtype": torch.int8, "calibration": torch.zeros(0, 3, 20, 28)}, "about 300 images"),
        (
            model_of,
            {"dtype": torch.int8, "calibration": [1, 2]},
            r"calibration is a list: give a tensor \(N, 3, 20, 28",
        ),
        (model_of, {"dtype": torch.int8, "calibration": torch.full((2, 3, 20, 28), torch.nan)}, "must be finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_optimised_is_refused(eager, model, arguments, said):
    with pytest.raises(ValueError, match=said):
        optimize(model(), **arguments)


def test_calibration_images_that_are_not_normalised_are_refused(eager):
    model, pixels = model_of(), torch.rand(2, 3, 20, 28)
    assert optimize(model, torch.int8, pixels).agreement == 1  # the model does not tell its mean
    model.pretrained_cfg |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
    for wrong in (pixels, 255 * pixels):
        with pytest.raises(
            ValueError, match=r"no number of calibration is below 0 .* not normalised: subtract the mean"
        ):
            optimize(model, torch.int8, wrong)
    assert optimize(model, torch.int8, pixels - 0.5).agreement == 1


@pytest.mark.parametrize("wrong", [1.01, torch.nan, torch.inf])
def test_a_program_with_other_logits_is_refused(eager, wrong):
    eager["eager"] = lambda model, dtype, calibration: lambda images: wrong * model(images)
    with pytest.raises(ValueError, match=r"cannot be optimised: eager: the logits in torch\.float32 differ from the"):
        optimize(model_of())


def test_a_program_that_is_wrong_for_one_image_alone_is_refused(eager):
    eager["eager"] = lambda model, dtype, calibration: lambda images: model(images) + (len(images) == 1)
    with pytest.raises(ValueError, match="the logits in"):
        optimize(model_of())


def test_int8_is_refused_where_too_many_predictions_change(eager):
    eager["eager"] = lambda model, dtype, calibration: lambda images: model(images) * torch.tensor([1, 1, 1, 1, 0.8])
    model = model_of()
    nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 0, 0, 0.9, 1])
    with pytest.raises(ValueError, match=r"only 0\.0% of the calibration images keep their predicted class"):
        optimize(model, torch.int8, images_for(model, 10))


def test_logits_that_are_all_zero_are_equal(eager):
    model = model_of()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert optimize(model).difference == 0


def test_the_next_engine_is_taken_where_one_fails(eager):
    def fails(model, dtype, calibration):
        raise RuntimeError("no rule\nfor this")

    second = eager.pop("eager")
    eager |= {"first": fails, "second": second}
    assert optimize(model_of()).engine == "second"
    eager["second"] = fails
    with pytest.raises(ValueError, match="cannot be optimised: first: no rule for this; second: no rule for this"):
        optimize(model_of())
    with pytest.raises(ValueError, match=r"cannot be optimised: first: no rule for this$"):
        optimize(model_of(), engine="first")


def test_a_program_cannot_be_trained(eager):
    fast = optimize(model_of())
    assert fast.eval() is fast
    with pytest.raises(ValueError, match=r"an optimised model cannot be trained"):
        fast.train()


def test_the_surroundings_of_the_call_change_nothing(eager):
    model = model_of()
    images = images_for(model, 3)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        fast = optimize(model)
        assert fast.difference < 1e-6
    assert not fast(images).requires_grad
