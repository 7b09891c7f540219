"""The Vision Transformer (Dosovitskiy et al. 2021), under timm's names for weights and methods.

Letters in the einops patterns: b batch, n patches, r tokens of a kind before them, d channels of a token.
"""

from typing import Any, Literal, get_args

import torch
from einops import pack, reduce, repeat
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.attention import sinusoidal_positions_2d
from vit.blocks import DropPath, EncoderBlock
from vit.embedding import Interpolation, PatchDrop, PatchEmbed, Size, resize_positions
from vit.features import IntermediateFeatures
from vit.hooks import is_watched

Pool = Literal["cls", "mean", "cls+mean"]


class VisionTransformer(IntermediateFeatures, nn.Module):
    """Images to class logits: patches, positions, a stack of encoder blocks, one pooled token, a linear head.

    >>> model = VisionTransformer(image_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        image_size: Rows and columns of the images in pixels, or one number for both; a multiple of the patch.
        patch_size: Rows and columns of a patch in pixels, or one number for both. Half the patch is four times
            the tokens: slower, and usually more accurate.
        in_channels: Channels of an image: 3 for colour, 1 for grey.
        num_classes: Classes to tell apart; 0 leaves out the head, and the model returns the pooled feature.
        embed_dim: Channels of a token.
        depth: Number of encoder blocks.
        num_heads: Attention heads of a block; must divide ``embed_dim``.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        class_token: Whether a learned token is prepended that gathers what the classifier needs.
        num_registers: Learned tokens that only give attention a place to put things (Darcet et al. 2024).
        no_embed_class: Whether positions are added to the patches alone, as in the models with registers of DINOv2,
            and not to the class token and the registers.
        pool: What the head reads: the class token ("cls"), the mean of the patch tokens ("mean"), or both
            side by side ("cls+mean").
        fc_norm: Whether the final norm comes after pooling instead of before; None means yes for "mean", as timm.
        attention: Name of the attention mechanism: softmax, chunked, window, neighborhood, sparse, topk, linear,
            performer, lowrank, linformer, simplified, talking, differential or gated.
        attention_kwargs: Arguments of the mechanism by name: chunked (chunk), window (window), neighborhood (kernel),
            sparse (block, stride), topk (k), performer (num_features), lowrank (landmarks, iterations), linformer
            (landmarks), simplified (similarity).
        dropout: Probability that a channel is zeroed after the embedding and after each projection, in [0, 1).
        patch_drop: Share of the patches that are left out of each image while training, in [0, 1): with 0.5 a step
            takes little more than half the time.
        drop_path: Probability that an image skips the last block's branches, in [0, 1); it grows linearly
            from 0 at the first block.
        layer_scale: Initial factor of LayerScale at the end of each branch, such as 1e-4; None leaves it out.
        qk_norm: Whether queries and keys are layer-normalised per head, which keeps attention logits bounded.
        pos_embed_init: Start of the learned positions: two-dimensional sine-cosine codes ("sincos"), or a
            truncated normal of deviation 0.02 ("normal").
        pos_embed_interpolation: How positions are resized for images of another size than ``image_size``.
        grad_checkpointing: Whether blocks recompute their activations in the backward pass: memory for one block
            instead of all, for a third more time.

    Raises:
        ValueError: If sizes do not divide, or a choice does not exist.
    """

    def __init__(
        self,
        image_size: Size = 32,
        patch_size: Size = 4,
        in_channels: int = 3,
        num_classes: int = 10,
        embed_dim: int = 192,
        depth: int = 9,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        class_token: bool = True,
        num_registers: int = 0,
        no_embed_class: bool = False,
        pool: Pool = "cls",
        fc_norm: bool | None = None,
        attention: str = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        dropout: float = 0.0,
        patch_drop: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        qk_norm: bool = False,
        pos_embed_init: Literal["sincos", "normal"] = "sincos",
        pos_embed_interpolation: Interpolation = "bicubic",
        grad_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if pool not in ("cls", "mean", "cls+mean"):
            raise ValueError(f"unknown pool {pool!r}: choose 'cls', 'mean' or 'cls+mean'")
        if "cls" in pool and not class_token:
            raise ValueError(f"pool {pool!r} reads the class token, but class_token is False: use pool 'mean'")
        if depth < 1:
            raise ValueError(f"depth ({depth}) must be at least 1")
        if pos_embed_init not in ("sincos", "normal"):
            raise ValueError(f"unknown pos_embed_init {pos_embed_init!r}: choose 'sincos' or 'normal'")
        if pos_embed_interpolation not in get_args(Interpolation):
            raise ValueError(
                f"unknown pos_embed_interpolation {pos_embed_interpolation!r}: choose 'bicubic', 'bilinear' or "
                "'nearest'"
            )
        self.embed_dim = embed_dim
        self.pool = pool
        self.num_features = 2 * embed_dim if pool == "cls+mean" else embed_dim
        self.num_prefix_tokens = int(class_token) + num_registers
        self.no_embed_class = no_embed_class
        self.pos_embed_init = pos_embed_init
        self.pos_embed_interpolation = pos_embed_interpolation
        self.grad_checkpointing = grad_checkpointing

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, num_registers, embed_dim)) if num_registers else None
        num_positions = self.patch_embed.num_patches + (0 if no_embed_class else self.num_prefix_tokens)
        self.pos_embed = nn.Parameter(torch.empty(1, num_positions, embed_dim))
        self.pos_drop = nn.Dropout(dropout)
        self.patch_drop = PatchDrop(patch_drop)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                embed_dim,
                num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
                attention=attention,
                attention_kwargs=attention_kwargs,
                block_index=i,
                grid_size=self.patch_embed.grid_size,
                dropout=dropout,
                drop_path=probability,
                layer_scale=layer_scale,
            )
            for i, probability in enumerate(drop_path * block / max(depth - 1, 1) for block in range(depth))
        )
        if patch_drop and "grid" in self.blocks[0].attn.mechanism.takes:
            raise ValueError(
                f"attention {attention!r} needs the whole grid of patches: set patch_drop ({patch_drop}) to 0"
            )
        norm_after_pool = pool == "mean" if fc_norm is None else fc_norm
        self.norm = nn.Identity() if norm_after_pool else nn.LayerNorm(embed_dim, eps=1e-6)
        self.fc_norm = nn.LayerNorm(self.num_features, eps=1e-6) if norm_after_pool else nn.Identity()
        self.reset_classifier(num_classes)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the initial weights, much as the original code does, with variances that suit any width.

        Linear maps are uniform after Glorot and Bengio (2010), queries, keys and values as the one map they are here;
        the patch embedding keeps the variance of the pixels (LeCun et al. 1998), and the head starts small, so that
        all classes are about equally likely.
        """
        for module in self.modules():
            if isinstance(module, DropPath):
                # No weight, and so lost where the model was built without memory.
                module.keep.fill_(1.0 - module.probability)
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        patch_projection = self.patch_embed.proj
        nn.init.trunc_normal_(patch_projection.weight, std=patch_projection.weight[0].numel() ** -0.5)
        nn.init.zeros_(patch_projection.bias)
        if self.num_classes:
            nn.init.trunc_normal_(self.head.weight, std=0.02)
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        if self.pos_embed_init == "normal":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            self.pos_embed.zero_()
            self.pos_embed[0, -self.patch_embed.num_patches :] = sinusoidal_positions_2d(
                self.patch_embed.grid_size, self.embed_dim
            )

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes).

        Where only the class token is read, the last block computes no other: the same logits for about 1/7 less work at
        depth 6. Whoever hooks a module of that block, or calls ``forward_features``, gets all tokens.
        """
        if self._may_leave_out_tokens():
            return self.forward_head(self._encode(images, 1))
        return self.forward_head(self.forward_features(images))

    def _may_leave_out_tokens(self) -> bool:
        """Whether nobody would notice: neither what someone put in the last block's place, nor who looks at it."""
        last = self.blocks[-1]
        return (
            self.pool == "cls"
            and type(last).forward is EncoderBlock.forward
            and last.can_leave_out_tokens()
            and not is_watched(self.norm)
            and type(self).forward_features is VisionTransformer.forward_features
            and "forward_features" not in self.__dict__
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """Encode images, final norm included: (B, C, H, W) -> (B, prefix + N, D)."""
        return self._encode(images)

    def _encode(self, images: Tensor, *wanted: int) -> Tensor:
        tokens, grid = self.embed(images), self.patch_embed.grid_of(*images.shape[-2:])
        for block in self.blocks[:-1]:
            tokens = self._run(block, tokens, grid)
        return self.norm(self._run(self.blocks[-1], tokens, grid, *wanted))

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify: (B, prefix + N, D) -> (B, num_classes), or (B, num_features) if ``pre_logits``."""
        pooled = []
        if "cls" in self.pool:
            pooled.append(tokens[:, 0])
        if "mean" in self.pool:
            pooled.append(reduce(tokens[:, self.num_prefix_tokens :], "b n d -> b d", "mean"))
        feature = self.fc_norm(pack(pooled, "b *")[0])
        return feature if pre_logits else self.head(feature)

    def embed(self, images: Tensor) -> Tensor:
        """Images to the tokens that enter the first block: (B, C, H, W) -> (B, prefix + N, D)."""
        patches = self.patch_embed(images)
        prefix = [
            repeat(token, "1 r d -> b r d", b=patches.shape[0])
            for token in (self.cls_token, self.reg_token)
            if token is not None
        ]
        grid = self.patch_embed.grid_of(*images.shape[-2:])
        positions = resize_positions(self.pos_embed, self.patch_embed.grid_size, grid, self.pos_embed_interpolation)
        if self.no_embed_class:
            tokens = pack([*prefix, patches + positions], "b * d")[0]
        else:
            tokens = pack([*prefix, patches], "b * d")[0] + positions
        return self.patch_drop(self.pos_drop(tokens), self.num_prefix_tokens)

    def _run(self, block: EncoderBlock, tokens: Tensor, *around: Any) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(block, tokens, *around, use_reentrant=False)
        return block(tokens, *around)

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a new one for ``num_classes`` classes; 0 leaves the pooled feature."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        if num_classes:
            self.head.to(self.pos_embed)
            nn.init.trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in the backward pass, or keep them."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are positions or tokens, which weight decay should leave alone."""
        return {name for name in ("cls_token", "reg_token", "pos_embed") if getattr(self, name) is not None}
