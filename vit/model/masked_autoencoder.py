"""The network of a masked autoencoder: an encoder of visible patches, and a light decoder of all patches.

Letters in the einops patterns: b images, n patches, k visible patches, h w rows and columns of the patch grid, p q rows
and columns of pixels in a patch, c image channels, d channels of a token.
"""

import torch
from einops import pack, rearrange, reduce, repeat
from torch import Tensor, nn

from vit.attention.mechanisms.initial_weights import draw_weights
from vit.attention.mechanisms.mechanism import undecayed_parameters
from vit.model.encoder_block import EncoderBlock
from vit.model.positions import sinusoidal_positions_2d
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_positive_int

EPS = 1e-6  # added to the variance of a patch


def cut_into_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return the pixels of each patch, row by row, the channels of a pixel side by side: (B, C, H, W) -> (B, N, P).

    >>> cut_into_patches(torch.arange(8.0).reshape(1, 1, 2, 4), (2, 2))
    tensor([[[0., 1., 4., 5.],
             [2., 3., 6., 7.]]])
    """
    return rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=patch_size[0], q=patch_size[1])


def join_patches(patches: Tensor, patch_size: tuple[int, int], grid_size: tuple[int, int]) -> Tensor:
    """Return the images of patches, the inverse of ``cut_into_patches``: (B, N, P) -> (B, C, H, W)."""
    sizes = {"p": patch_size[0], "q": patch_size[1], "h": grid_size[0]}
    return rearrange(patches, "b (h w) (p q c) -> b c (h p) (w q)", **sizes)


def patch_statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the numbers of each patch: (B, N, P) -> twice (B, N, 1)."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return mean, (variance + EPS).sqrt()


def hidden_patches(keep: Tensor, count: int) -> Tensor:
    """Return which of ``count`` patches are hidden if the numbered ones are visible: (B, K) -> boolean (B, count).

    >>> hidden_patches(torch.tensor([[0, 2]]), 4)
    tensor([[False,  True, False,  True]])
    """
    # In 64 bits, as scatter takes no narrower numbers; the encoder does.
    return torch.ones(len(keep), count, dtype=torch.bool, device=keep.device).scatter(1, keep.long(), False)


def reconstruction_losses(predicted: Tensor, images: Tensor, keep: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return the mean squared error of each image over the pixels of its hidden patches: -> (B,).

    The target is each patch, normalised by its own mean and standard deviation (He et al. 2022, sec. 3).

    Args:
        predicted: Normalised pixels of all patches, (B, N, P).
        images: The images, (B, C, H, W).
        keep: Numbers of the visible patches, (B, K), which are left out of the error.
        patch_size: Rows and columns of a patch.

    Raises:
        ValueError: If no patch of an image is hidden.
    """
    patches = cut_into_patches(images, patch_size).to(predicted.dtype)
    mean, deviation = patch_statistics(patches)
    errors = reduce((predicted - (patches - mean) / deviation).square(), "b n p -> b n", "mean")
    hidden = hidden_patches(keep, patches.shape[1])
    # Fewer numbers than patches always hide one; reading the booleans would wait for a GPU.
    if keep.shape[1] >= patches.shape[1] and not hidden.any(dim=1).all():
        raise ValueError(
            f"keep has {keep.shape[1]} of {patches.shape[1]} patches, so that none is hidden and there is no error: "
            "leave some out"
        )
    return (errors * hidden).sum(dim=1) / hidden.sum(dim=1)


class PatchDecoder(nn.Module):
    """Predicts the pixels of all patches from the tokens of visible patches, by encoder blocks and a linear layer.

    Mask tokens take the places of the hidden patches, and fixed positions are added. These are computed for each batch:
    a buffer that is not in the state dict would be lost on the meta device.

    Args:
        context_dim: Channels of the given tokens.
        patch_pixels: Number of predicted values of each patch.
        embed_dim: Channels of a token inside the decoder.
        depth: Number of blocks.
        num_heads: Attention heads of a block.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.

    Raises:
        ValueError: If ``embed_dim`` is not a multiple of 4 and of ``num_heads``.
    """

    def __init__(
        self,
        context_dim: int,
        patch_pixels: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        check_positive_int("decoder_depth", depth, "1 or 2 is usual for small images")
        check_positive_int("decoder_dim", embed_dim, "64 is usual for small images")
        check_positive_int("decoder_heads", num_heads, "4 is usual")
        if embed_dim % 4 or embed_dim % num_heads:
            raise ValueError(
                f"decoder_dim ({embed_dim}) must be a multiple of 4 and of decoder_heads ({num_heads}): take "
                f"{4 * num_heads * max(1, round(embed_dim / (4 * num_heads)))}"
            )
        self.embed = nn.Linear(context_dim, embed_dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.blocks = nn.ModuleList(EncoderBlock(embed_dim, num_heads, mlp_ratio=mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.pred = nn.Linear(embed_dim, patch_pixels)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the initial weights as ``VisionTransformer`` does."""
        draw_weights(self)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, keep: Tensor, grid_size: tuple[int, int]) -> Tensor:
        """Predict all patches: prefix and visible tokens (B, prefix + K, C), patch numbers (B, K) -> (B, N, P).

        ``grid_size`` is the rows and columns of patches.
        """
        embedded = self.embed(tokens)
        prefix, visible = embedded.tensor_split([tokens.shape[1] - keep.shape[1]], dim=1)
        positions = sinusoidal_positions_2d(grid_size, embedded.shape[2]).to(embedded)
        whole = repeat(self.mask_token.to(visible.dtype), "1 1 d -> b n d", b=len(keep), n=len(positions))
        whole = whole.scatter(1, repeat(keep.long(), "b k -> b k d", d=whole.shape[2]), visible)
        decoded = pack([prefix, whole + positions], "b * d")[0]
        for block in self.blocks:
            decoded = block(decoded)
        return self.pred(self.norm(decoded[:, prefix.shape[1] :]))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return {"mask_token"} | undecayed_parameters(self)


class PatchAutoencoder(nn.Module):
    """Predicts the pixels of hidden patches from visible ones (He et al. 2022): a large encoder, a light decoder.

    The encoder sees only the visible patches, so a step takes a fraction of the time of a step over all patches.

    >>> encoder = VisionTransformer(image_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=3, num_classes=0)
    >>> network = PatchAutoencoder(encoder, embed_dim=16, depth=1, num_heads=2)
    >>> network(torch.randn(2, 3, 8, 8), keep=torch.tensor([[0], [3]])).shape
    torch.Size([2, 4, 48])

    Args:
        encoder: Encodes the visible patches.
        embed_dim: Channels of a token of the decoder.
        depth: Number of blocks of the decoder.
        num_heads: Attention heads of a block of the decoder.

    Raises:
        ValueError: If the patches of the encoder do not tile its images, or a patch is a single number.
    """

    def __init__(self, encoder: VisionTransformer, embed_dim: int, depth: int, num_heads: int) -> None:
        super().__init__()
        embedding = encoder.patch_embed
        rows, columns = (count * side for count, side in zip(embedding.grid_size, embedding.patch_size, strict=True))
        if embedding.patch_stride != embedding.patch_size or (rows, columns) != embedding.image_size:
            raise ValueError(
                f"patches of {embedding.patch_size} pixels at a stride of {embedding.patch_stride} do not tile images "
                f"of {embedding.image_size}, so that a pixel is in no patch or in two: take patches that divide the "
                "image, side by side"
            )
        pixels = embedding.in_channels * embedding.patch_size[0] * embedding.patch_size[1]
        if pixels == 1:
            raise ValueError(
                f"patch_size {embedding.patch_size} and in_channels 1 make patches of one number, which is 0 after its "
                "mean is subtracted: take patches of 2 pixels or more"
            )
        self.encoder = encoder
        sizes = (embed_dim, depth, num_heads, encoder.config["mlp_ratio"])
        self.decoder = PatchDecoder(encoder.embed_dim, pixels, *sizes)

    def forward(self, images: Tensor, keep: Tensor) -> Tensor:
        """Predict the pixels of all patches: (B, C, H, W), numbers of visible patches (B, K) -> (B, N, P).

        Raises:
            ValueError: If the images do not have the ``image_size`` of the encoder.
        """
        expected = self.encoder.patch_embed.image_size
        if tuple(images.shape[-2:]) != expected:
            raise ValueError(
                f"images have {tuple(images.shape[-2:])} pixels, and the decoder has positions for {expected}: resize "
                "the images, or build the encoder with their image_size"
            )
        tokens = self.encoder.forward_features(images, keep=keep)
        return self.decoder(tokens, keep, self.encoder.patch_embed.grid_size)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay, of encoder and decoder."""
        return {f"{part}.{name}" for part, module in self.named_children() for name in module.no_weight_decay()}
