"""Starts a model from trained weights of another size, other tokens or other classes."""

from collections.abc import Sequence

from vit.model.vision_transformer import VisionTransformer
from vit.weights.load_report import LoadReport
from vit.weights.loading import DEFAULTS, TOLD_BY_CALLER, WeightsSource, read_model
from vit.weights.matching import check_same_tensors
from vit.weights.surgery import fitted


def start_from(
    model: VisionTransformer,
    source: WeightsSource,
    class_names: Sequence[str] | None = None,
) -> LoadReport:
    """Copy trained weights into a model; return what was changed and what stays the model's own.

    Patch embedding and positions are resized where patches or images have another size. The head stays the model's own
    where the classes differ in number or, if both are known, in name. So do positions that are not learned, and tokens
    that the trained model lacks.

    >>> model = VisionTransformer(image_size=96, patch_size=8, embed_dim=128, depth=6, num_heads=4, mlp_ratio=2)
    >>> print(start_from(model, "cifar10"))
    weights of cifar10 (vit): 78 as they are, resized: patch_embed.proj.weight, pos_embed

    Args:
        model: The model whose weights are replaced.
        source: What ``vit.load`` takes: a name, a file, a folder, a state dict or a module.
        class_names: Names of the model's classes, in the order of the logits; None if they have none.

    Raises:
        ValueError: If the source holds no model, or one of another architecture.
    """
    told = {name: model.config[name] for name in ("num_heads", "image_size")}
    # An argument of the model that is no default says what the tensors leave open.
    told |= {name: model.config[name] for name in TOLD_BY_CALLER if model.config[name] != DEFAULTS[name]}
    trained = read_model(source, told)
    theirs = trained.data.get("class_names")
    same_classes = not theirs or not class_names or list(theirs) == list(class_names)
    state = fitted(trained.state, trained.arguments, model, trained.report, same_classes)
    check_same_tensors(model, state, trained.report.origin, "make the arguments equal, and the grid as well")
    model.load_state_dict(state)
    return trained.report
