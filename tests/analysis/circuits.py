"""A Vision Transformer whose only circuit is set by hand: one head copies one patch to the class token."""

import torch

import vit

LAYER, HEAD, TOKEN = 1, 2, 3  # the head, and the patch that it copies: token 3 is patch 2
TOKENS, CLASSES = 5, 2


def circuit() -> vit.VisionTransformer:
    """A model whose first logit is larger the brighter patch 2 of 4 is.

    Channel 0 of a token is the brightness of its patch, channels 2 to 6 say which token it is, and channel 1 is what
    the class token was told. Every other head attends as sharply, to another patch, and adds nothing.
    """
    model = vit.VisionTransformer(8, 4, in_channels=1, num_classes=CLASSES, embed_dim=24, depth=3, num_heads=3)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        for norm in [*(norm for block in model.blocks for norm in (block.norm1, block.norm2)), model.norm]:
            norm.weight.fill_(1)
        model.patch_embed.proj.weight[0] = 1 / 16
        for token in range(TOKENS):
            model.pos_embed[0, token, 2 + token] = 4
        for layer, block in enumerate(model.blocks):
            for head in range(3):
                read = TOKEN if (layer, head) == (LAYER, HEAD) else 1 + (layer + head) % 2
                block.attn.qkv.weight[8 * head, 2] = 6  # the query of the class token
                block.attn.qkv.weight[24 + 8 * head, 2 + read] = 1  # the key of the token that it reads
                block.attn.qkv.weight[48 + 8 * head, 0] = 1  # the value: how bright the patch is
        model.blocks[LAYER].attn.proj.weight[1, 8 * HEAD] = 1
        model.head.weight[0, 1] = 1
    return model.eval()


def bright_and_dark(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of any brightness, and the same images with patch 2 dark."""
    images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + 1
    dark = images.clone()
    dark[:, :, 4:, :4] = -2
    return images, dark
