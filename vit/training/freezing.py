"""Freezes the first blocks of a model for fine-tuning."""

from vit.model.vision_transformer import VisionTransformer


def freeze_blocks(model: VisionTransformer, count: int) -> None:
    """Keep the embedding and the first ``count`` blocks as they are: no gradients, and evaluation mode.

    >>> model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=3, num_heads=3)
    >>> freeze_blocks(model, 3)
    >>> sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    ['head.bias', 'head.weight', 'norm.bias', 'norm.weight']

    Raises:
        ValueError: If the model has fewer blocks.
    """
    depth = len(model.blocks)
    if count > depth:
        raise ValueError(f"freeze ({count}) must be at most the depth ({depth}), which leaves final norm and head")
    frozen = [model.patch_embed, model.pos_drop, model.norm_pre, *model.blocks[:count]]
    for module in frozen:
        module.eval()
        module.requires_grad_(False)
    for token in (model.cls_token, model.reg_token, model.mask_token, model.pos_embed):
        if token is not None:
            token.requires_grad_(False)
