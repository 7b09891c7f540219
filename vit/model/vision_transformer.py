"""The Vision Transformer (Dosovitskiy et al. 2021), with timm's names of weights and methods.

Letters in the einops patterns: b batch, n patches, h w rows and columns of the patch grid, r class tokens or registers,
d channels of a token.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.attention import AttentionName
from vit.attention.mechanisms.initial_weights import draw_weights, set_values
from vit.attention.mechanisms.mechanism import undecayed_parameters
from vit.attention.multihead_checks import check_takes_angles
from vit.model.attention_pool import AttentionPool
from vit.model.config import ModelConfig
from vit.model.embedding import PatchEmbed, Size, resize_patches
from vit.model.encoder_block import EncoderBlock
from vit.model.mixed_sizes import encode_mixed
from vit.model.model_checks import (
    check_arguments,
    check_new_pool,
    check_numbers_of_patches,
    check_output_format,
    check_patch_drop,
    check_resizable,
    check_takes_some_patches,
    chosen_blocks,
    count_features,
    mechanisms_of_blocks,
)
from vit.model.patch_drop import PatchDrop, hide_patches, keep_patches, number_tokens
from vit.model.positions import ROTARY, Interpolation, check_axial, resize_positions, sinusoidal_positions_2d
from vit.model.rewired_block import Norm, RewiredBlock, check_rewiring
from vit.support.checks import check_choice, check_natural

Pool = Literal["cls", "mean", "cls+mean", "cls+dist", "map"]
Positions = Literal["learned", "sincos", "none", "rope", "rope_eva"]
PositionInit = Literal["sincos", "normal"]
for function in ("rearrange", "reduce", "repeat", "resize_positions", "keep_patches", "hide_patches"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know
# Arguments that all blocks share.
OF_BLOCKS = (
    *("embed_dim", "num_heads", "mlp_ratio", "mlp", "qkv_bias", "num_kv_heads", "tie_qkv", "tie_kv", "qk_norm"),
    *("key_dim", "value_dim", "dropout", "layer_scale", "norm_eps"),
)
CONFIG_KEY = "vit_config"  # in the metadata of a state dict, which torch.save keeps with the tensors


class Embedded(NamedTuple):
    """What enters the first block."""

    tokens: Tensor  # (B, prefix + N, D)
    grid: tuple[int, int] | None  # rows and columns of patches; None if some were left out
    angles: Tensor | None  # rotary, (prefix + N, d / 2) of d channels per head, or (B, prefix + N, d / 2)


class VisionTransformer(nn.Module):
    """Maps images to class logits: patches, positions, a stack of encoder blocks, one pooled feature, a linear head.

    >>> model = VisionTransformer(image_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        image_size: Rows and columns of the images in pixels, or one number for both; a multiple of ``patch_stride``,
            unless ``pad_images``.
        patch_size: Rows and columns of a patch in pixels, or one number for both. Half the size gives four times
            as many tokens: slower, and usually more accurate.
        in_channels: Channels of an image: 3 for colour, 1 for grey.
        num_classes: Number of classes; with 0 there is no head, and the model returns the pooled feature.
        embed_dim: Channels of a token.
        depth: Number of encoder blocks.
        num_heads: Attention heads of a block; must divide ``key_dim`` and ``value_dim``, which are ``embed_dim`` unless
            given.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        mlp: Activation of the MLP: "gelu", its approximations "gelu_tanh" and "quick_gelu", or "swiglu", whose hidden
            layer is gated by a third weight matrix.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        num_kv_heads: Heads of keys and values, each shared by equally many query heads (Ainslie et al. 2023); None
            means ``num_heads``.
        tie_qkv: Whether queries, keys and values share one projection.
        tie_kv: Whether keys and values share one projection.
        class_token: Whether to prepend a learned class token.
        num_registers: Learned tokens between class token and patches, whose output the head ignores (Darcet et al.
            2024).
        mask_token: Whether there is a learned token that takes the place of hidden patches (``token_mask``), as in BEiT
            and DINOv2.
        no_embed_class: Whether the class token and the registers get no positions, as in DINOv2 with registers.
        pool: Input of the head: the class token ("cls"), the mean of the patch tokens ("mean"), both concatenated
            ("cls+mean"), the class token and the first register ("cls+dist", for the distillation token of DeiT), or
            attention of a learned query to all tokens ("map", as in SigLIP).
        fc_norm: Whether the final norm comes after pooling instead of before; None means True for pool "mean", as in
            timm.
        attention: Name of the attention mechanism, a key of ``vit.attention.MECHANISMS``; docs/attention.md compares
            them. A list names the mechanism of each block, such as ["window", "window", "softmax"] for 3 blocks.
        attention_kwargs: Arguments of the mechanism by name, such as {"window": 7} for "window". For a list of
            mechanisms, the arguments of each by its name: {"window": {"window": 7}}.
        dropout: Probability of zeroing a channel after the embedding and after each projection, in [0, 1).
        patch_drop: Share of the patches dropped from each training image, in [0, 1): with 0.5 a step takes little more
            than half the time.
        drop_path: Probability that an image skips a residual branch of the last block, in [0, 1); it grows linearly
            from 0 at the first block.
        layer_scale: Initial factor of LayerScale at the end of each branch, such as 1e-4; None means no LayerScale.
        qk_norm: Whether to layer-normalise queries and keys per head, which keeps attention logits bounded.
        pos_embed: Positions of the patches. "learned" vectors or fixed two-dimensional sine-cosine codes ("sincos") are
            added to the tokens. Rotary positions turn queries and keys by row and column: "rope" as in DINOv3,
            "rope_eva" as in EVA-02. The mechanisms "linear", "additive", "general" and "recurrent" refuse them, because
            they need more than the dot product. With "none" the model sees a set of patches without an order.
        pos_embed_init: Initial values of the learned positions: two-dimensional sine-cosine codes ("sincos"), or a
            truncated normal of standard deviation 0.02 ("normal").
        pos_embed_interpolation: How learned positions are resized for other image sizes: antialiased as in timm
            ("bicubic", "bilinear"), or as in "transformers", "torchvision", "google" or "dinov2".
        pre_norm: Whether a norm precedes the first block, as in CLIP.
        norm_eps: Number that the norms add to the variance.
        grad_checkpointing: Whether blocks recompute their activations in the backward pass. This takes memory for one
            block instead of all, and a third more time.
        patch_stride: Rows and columns of pixels from one patch to the next; None means ``patch_size``. With half the
            size, patches overlap, and a trained model sees a grid twice as fine with the same weights (Amir et al.
            2021).
        pad_images: Whether images whose sides are no multiple of ``patch_stride`` are padded with zeros, at the right
            and at the bottom; otherwise they are refused.
        key_dim: Channels of the queries, and of the keys, of all heads of a block together; None means ``embed_dim``.
        value_dim: Channels of the values of all heads of a block together; None means ``embed_dim``.
        residual: Whether attention and MLP add their output to their input; otherwise the output replaces the input.
        norm: Where the norms of a block are: before attention and MLP ("pre"), after the sums as in the first
            transformers ("post"), or nowhere ("none"). The norm before the head stays.

    Attributes:
        config: These arguments with their values: ``VisionTransformer(**model.config)`` is a model of the same shape.

    Raises:
        ValueError: If sizes do not divide, or a choice is unknown.
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
        num_kv_heads: int | None = None,
        tie_qkv: bool = False,
        tie_kv: bool = False,
        class_token: bool = True,
        num_registers: int = 0,
        no_embed_class: bool = False,
        pool: Pool = "cls",
        fc_norm: bool | None = None,
        attention: AttentionName | list[AttentionName] = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        dropout: float = 0.0,
        patch_drop: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        qk_norm: bool = False,
        pos_embed: Positions = "learned",
        pos_embed_init: PositionInit = "sincos",
        pos_embed_interpolation: Interpolation = "bicubic",
        grad_checkpointing: bool = False,
        mlp: str = "gelu",
        pre_norm: bool = False,
        norm_eps: float = 1e-6,
        patch_stride: Size | None = None,
        pad_images: bool = False,
        mask_token: bool = False,
        key_dim: int | None = None,
        value_dim: int | None = None,
        residual: bool = True,
        norm: Norm = "pre",
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.config = ModelConfig(copy.deepcopy(given))  # the caller may change its dicts and lists afterwards
        check_choice("pool", pool, get_args(Pool))
        check_choice("pos_embed", pos_embed, get_args(Positions))
        check_choice("pos_embed_init", pos_embed_init, get_args(PositionInit))
        check_choice("pos_embed_interpolation", pos_embed_interpolation, get_args(Interpolation))
        check_arguments(self.config)
        self.register_state_dict_post_hook(_note_config)
        self.embed_dim = embed_dim
        self.pool = pool
        self.num_features = count_features(pool, embed_dim)
        self.num_prefix_tokens = int(class_token) + num_registers
        self.no_embed_class = no_embed_class
        self.pos_embed_interpolation = pos_embed_interpolation
        self.grad_checkpointing = grad_checkpointing

        self.patch_embed = PatchEmbed(image_size, patch_size, in_channels, embed_dim, patch_stride, pad_images)
        self.pretrained_cfg: dict[str, Any] = {"input_size": [in_channels, *self.patch_embed.image_size]}
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, num_registers, embed_dim)) if num_registers else None
        self.mask_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if mask_token else None
        num_positions = self.patch_embed.num_patches + (0 if no_embed_class else self.num_prefix_tokens)
        # Fixed positions, or zeros if none are added, are parameters, too: the names of the weights stay the same.
        self.pos_embed = nn.Parameter(torch.empty(1, num_positions, embed_dim), requires_grad=pos_embed == "learned")
        self.pos_drop = nn.Dropout(dropout)
        self.patch_drop = PatchDrop(patch_drop)
        self.norm_pre = nn.LayerNorm(embed_dim, eps=norm_eps) if pre_norm else nn.Identity()
        mechanisms = mechanisms_of_blocks(attention, attention_kwargs, depth)
        check_rewiring(residual, norm, drop_path)
        is_usual = residual and norm == "pre"
        make_block = EncoderBlock if is_usual else partial(RewiredBlock, residual=residual, norm=norm)
        self.blocks: nn.ModuleList = nn.ModuleList(
            make_block(
                attention=mechanism,
                attention_kwargs=mechanism_kwargs,
                block_index=i,
                grid_size=self.patch_embed.grid_size,
                drop_path=drop_path * i / max(depth - 1, 1),
                **{name: self.config[name] for name in OF_BLOCKS},
            )
            for i, (mechanism, mechanism_kwargs) in enumerate(mechanisms)
        )
        for block, (mechanism, _) in zip(self.blocks, mechanisms, strict=True):
            attn: Any = block.attn
            attn.is_rotary = pos_embed in ROTARY
            if attn.is_rotary:
                check_takes_angles(attn)
                name = "embed_dim" if key_dim is None else "key_dim"
                check_axial(self.config[name], num_heads, name, attn.mechanism.rotated_parts)
            check_patch_drop(patch_drop, attn.mechanism, mechanism)
        norm_after_pool = pool == "mean" if fc_norm is None else fc_norm
        self.norm = nn.Identity() if norm_after_pool else nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn_pool = AttentionPool(embed_dim, num_heads, mlp_ratio, mlp, norm_eps) if pool == "map" else None
        self.fc_norm = nn.LayerNorm(self.num_features, eps=norm_eps) if norm_after_pool else nn.Identity()
        self.reset_classifier(num_classes)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the initial weights.

        Linear layers are uniform (Glorot and Bengio 2010), with ``qkv`` counted as one layer. The patch embedding keeps
        the variance of the pixels (LeCun et al. 1998). The head starts small, so that all classes are about equally
        likely.
        """
        draw_weights(self)
        patch_projection = self.patch_embed.proj
        nn.init.trunc_normal_(patch_projection.weight, std=patch_projection.weight[0].numel() ** -0.5)
        nn.init.zeros_(self.get_parameter("patch_embed.proj.bias"))
        if isinstance(self.head, nn.Linear):
            nn.init.trunc_normal_(self.head.weight, std=0.02)
        for token in (self.cls_token, self.reg_token, self.mask_token, getattr(self.attn_pool, "latent", None)):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        scheme = self.config["pos_embed_init"] if self.config["pos_embed"] == "learned" else self.config["pos_embed"]
        if scheme == "normal":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            positions = torch.zeros(self.pos_embed.shape)
            if scheme == "sincos":
                codes = sinusoidal_positions_2d(self.patch_embed.grid_size, self.embed_dim)
                positions[0, -len(codes) :] = codes
            set_values(self.pos_embed, positions)

    def forward(self, images: Tensor, mask: Tensor | None = None, token_mask: Tensor | None = None) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes).

        Args:
            images: Images, normalised as the model was trained.
            mask: Mask of attention in all blocks, broadcastable to (B, H, N, N) with the prefix tokens counted, as in
                ``MultiHeadAttention.forward``. It hides nothing from the pooling: for images with padding, take pool
                "cls".
            token_mask: Which patches are hidden, boolean (B, N) without the prefix tokens. The mask token replaces
                them.
        """
        # A user's replacement of a method may take no masks.
        hidden = {} if token_mask is None else {"token_mask": token_mask}
        masks = () if mask is None else (mask,)
        return self.forward_head(self.forward_features(images, *masks, **hidden))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def forward_features(
        self,
        images: Tensor,
        mask: Tensor | None = None,
        keep: Tensor | None = None,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Encode images, final norm included: (B, C, H, W) -> (B, prefix + N, D).

        >>> model = VisionTransformer(image_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3)
        >>> visible = torch.rand(2, 64).argsort(dim=1)[:, :16]  # a quarter of the patches, as for masked autoencoders
        >>> model.forward_features(torch.randn(2, 3, 32, 32), keep=visible).shape
        torch.Size([2, 17, 48])

        Args:
            images: Images, as ``forward`` takes them.
            mask: Mask of attention, as ``forward`` takes it.
            keep: Numbers of the patches that are encoded, row by row from 0, (B, K). None encodes all patches.
            token_mask: Hidden patches, as ``forward`` takes them.

        Raises:
            ValueError: If ``keep`` holds no numbers of patches, or attention of a block needs all patches.
        """
        tokens, grid, angles = self.embed_images(images, keep, token_mask)
        for block in self.blocks:
            tokens = self.run_block(block, tokens, grid, mask, angles)
        return self.norm(tokens)

    def encode(
        self,
        tokens: Tensor,
        *,
        grid: tuple[int, int] | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Pass tokens of ``embed`` through the blocks and the final norm: (B, prefix + N, D) -> (B, prefix + N, D).

        Tokens may be changed, left out or merged between ``embed`` and this call. It passes the rotary angles and the
        grid to the blocks, which a loop over the blocks would leave out.

        Args:
            tokens: The prefix tokens, and those of patches.
            grid: Rows and columns of the patches; None means those of ``image_size``.
            positions: Number of the patch that each token stands for, row by row from 0, (B, N). None means that all
                patches of the grid are there, in order.
            mask: Mask of attention, as ``forward`` takes it.

        Raises:
            ValueError: If the tokens are not those of the grid, the positions do not fit, or attention of a block needs
                all patches.
        """
        rows, columns = grid or self.patch_embed.grid_size
        angles = self._angles((rows, columns), tokens)
        if positions is not None:
            check_numbers_of_patches("positions", positions, len(tokens), rows * columns)
            check_takes_some_patches(self.blocks, "positions")
            if tokens.shape[1] != self.num_prefix_tokens + positions.shape[1]:
                raise ValueError(
                    f"{tokens.shape[1]} tokens are not {self.num_prefix_tokens} and the {positions.shape[1]} that have "
                    "positions: give the position of each token of a patch"
                )
            angles = None if angles is None else angles[number_tokens(positions, self.num_prefix_tokens)]
        elif tokens.shape[1] != self.num_prefix_tokens + rows * columns:
            raise ValueError(
                f"{tokens.shape[1]} tokens are not {self.num_prefix_tokens} and the patches of a grid of {rows} x "
                f"{columns}: give the grid, or the positions of the patches"
            )
        for block in self.blocks:
            tokens = self.run_block(block, tokens, (rows, columns) if positions is None else None, mask, angles)
        return self.norm(tokens)

    def forward_mixed(self, images: Sequence[Tensor]) -> Tensor:
        """Classify images of several sizes in one batch: B times (C, H, W) -> (B, num_classes).

        The logits are the same as for each image alone.

        >>> model = VisionTransformer(image_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3)
        >>> model.forward_mixed([torch.randn(3, 32, 32), torch.randn(3, 48, 20)]).shape
        torch.Size([2, 10])
        """
        return torch.cat([self.forward_head(tokens[None]) for tokens in self.forward_mixed_features(images)])

    def forward_mixed_features(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Encode images of several sizes in one batch: B times (C, H, W) -> B times (prefix + N, D), after the norm.

        All tokens form one sequence without padding, as in NaViT (Dehghani et al. 2023): projections, norms and MLPs
        are computed once for all of them, and attention once for all images of a size. Each size is encoded by itself
        in three cases: the model is in training mode (branches are dropped per image), a block or
        ``forward_features`` was replaced, or a block has hooks.
        """
        return encode_mixed(self, images)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify: (B, prefix + N, D) -> (B, num_classes), or (B, num_features) if ``pre_logits``."""
        pooled = []
        if "cls" in self.pool:
            pooled.append(tokens[:, 0])
        if "dist" in self.pool:
            pooled.append(tokens[:, 1])
        if "mean" in self.pool:
            pooled.append(reduce(tokens[:, self.num_prefix_tokens :], "b n d -> b d", "mean"))
        if self.attn_pool is not None:
            pooled.append(self.attn_pool(tokens))
        feature = self.fc_norm(torch.cat(pooled, dim=1))
        return feature if pre_logits else self.head(feature)

    def embed(self, images: Tensor) -> Tensor:
        """Compute the tokens that enter the first block: (B, C, H, W) -> (B, prefix + N, D)."""
        return self.embed_images(images).tokens

    def embed_images(self, images: Tensor, keep: Tensor | None = None, token_mask: Tensor | None = None) -> Embedded:
        """Compute what enters the first block. For the arguments, see ``forward_features``."""
        patches = hide_patches(self.patch_embed(images), token_mask, self.mask_token)
        prefix = [
            repeat(token, "1 r d -> b r d", b=patches.shape[0])
            for token in (self.cls_token, self.reg_token)
            if token is not None
        ]
        rows, columns = images.shape[-2:]
        grid = self.patch_embed.grid_of(rows, columns)
        positions = resize_positions(self.pos_embed, self.patch_embed.grid_size, grid, self.pos_embed_interpolation)
        # Not einops.pack, which cannot infer the number of patches of an empty batch.
        if self.no_embed_class:
            tokens = torch.cat([*prefix, patches + positions], dim=1)
        else:
            tokens = torch.cat([*prefix, patches], dim=1) + positions
        tokens, angles = self.pos_drop(tokens), self._angles(grid, tokens)
        if keep is None:
            tokens, angles = self.patch_drop(tokens, self.num_prefix_tokens, angles)
        else:
            check_numbers_of_patches("keep", keep, len(images), patches.shape[1])
            check_takes_some_patches(self.blocks, "keep")
            tokens, angles = keep_patches(tokens, keep, self.num_prefix_tokens, angles)
        return Embedded(self.norm_pre(tokens), grid if keep is None else None, angles)

    def _angles(self, grid: tuple[int, int], like: Tensor) -> Tensor | None:
        """Return the angles of the prefix tokens (0) and of the patches of a grid; None without rotary positions."""
        if self.config["pos_embed"] not in ROTARY:
            return None
        head_dim = (self.config["key_dim"] or self.embed_dim) // self.config["num_heads"]
        angles = ROTARY[self.config["pos_embed"]](grid, self.patch_embed.grid_size, head_dim, like)
        return nn.functional.pad(angles, (0, 0, self.num_prefix_tokens, 0))

    def run_block(self, block: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Run a block, or recompute it in the backward pass (``grad_checkpointing``); None at the end is left out."""
        # A user's replacement of a block may take neither mask nor angles.
        while inputs[-1] is None:
            inputs = inputs[:-1]
        if self.grad_checkpointing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
        mask: Tensor | None = None,
    ) -> Any:
        """Compute the features after chosen blocks, with timm's signature.

        Args:
            images: Images, (B, C, H, W).
            indices: Blocks to choose: the last n for an int, by number for a sequence (negative numbers count from the
                end), all for None.
            return_prefix_tokens: Whether to pair each feature with its prefix tokens (class token, registers).
            norm: Whether to apply the final norm to each feature.
            stop_early: Whether to skip the blocks after the last chosen one.
            output_fmt: Shape of a feature: "NCHW" for (B, D, rows, columns), "NLC" for (B, N, D).
            intermediates_only: Whether to return the features alone.
            mask: Mask of attention in all blocks, as in ``forward``.

        Returns:
            ``(tokens after the final norm, features)``, or ``features``; with ``return_prefix_tokens`` each feature is
            a pair (feature, prefix tokens).

        Raises:
            ValueError: If an index or format is unknown, or "NCHW" is asked for while patches are dropped.
        """
        check_output_format(self, output_fmt)
        chosen = chosen_blocks(indices, len(self.blocks))
        blocks = self.blocks[: max(chosen) + 1] if stop_early else self.blocks
        tokens, grid, angles = self.embed_images(images)
        features = []
        for i, block in enumerate(blocks):
            tokens = self.run_block(block, tokens, grid, mask, angles)
            if i not in chosen:
                continue
            feature = self.norm(tokens) if norm else tokens
            prefix, patches = feature[:, : self.num_prefix_tokens], feature[:, self.num_prefix_tokens :]
            if output_fmt == "NCHW":
                rows, _ = self.patch_embed.grid_of(images.shape[-2], images.shape[-1])
                patches = rearrange(patches, "b (h w) d -> b d h w", h=rows).contiguous()
            features.append((patches, prefix) if return_prefix_tokens else patches)
        return features if intermediates_only else (self.norm(tokens), features)

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        mask: Tensor | None = None,
    ) -> list[Any]:
        """Compute the features after the last ``n`` blocks, or after the blocks numbered in ``n``, as in timm.

        Each is (B, N, D), or (B, D, rows, columns) with ``reshape``; with ``return_prefix_tokens`` it is a pair
        (feature, prefix tokens).
        """
        output_fmt: Literal["NCHW", "NLC"] = "NCHW" if reshape else "NLC"
        return self.forward_intermediates(
            images, n, return_prefix_tokens, norm, output_fmt=output_fmt, intermediates_only=True, mask=mask
        )

    @property
    def head_hidden_size(self) -> int:
        """Channels of the pooled feature that the head takes."""
        return self.num_features

    def get_classifier(self) -> nn.Module:
        """Return the head: a linear layer, or the identity if there are no classes."""
        return self.head

    def reset_classifier(self, num_classes: int, pool: Pool | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` classes; with 0 the model returns the pooled feature.

        Args:
            num_classes: Number of classes of the new head.
            pool: The new pooling; None keeps it. The final norm stays where it is, before or after pooling, whereas
                ``vit.load(model, pool=...)`` moves it to its usual place.

        Raises:
            ValueError: If the model lacks what the new pooling needs.
        """
        check_natural("num_classes", num_classes, "0 is no head")
        check_choice("pool", self.pool if pool is None else pool, get_args(Pool))
        if pool is not None and pool != self.pool:
            check_new_pool(self, pool)
            self._set_pool(pool)
        self.num_classes = self.config["num_classes"] = num_classes
        _tell_hub(self)
        of_old_head = {*self.pretrained_cfg} & {"class_names", "thresholds"}
        self.pretrained_cfg = self.pretrained_cfg | dict.fromkeys(of_old_head)  # None: nothing is known of the new
        self._make_head()

    def _set_pool(self, pool: Pool) -> None:
        self.config |= {"pool": pool, "fc_norm": isinstance(self.fc_norm, nn.LayerNorm)}
        self.pool, self.attn_pool = pool, None
        self.num_features = count_features(pool, self.embed_dim)

    def _make_head(self) -> None:
        self.head: nn.Module = nn.Identity()
        if self.num_classes:
            self.head = head = nn.Linear(self.num_features, self.num_classes).to(self.pos_embed)
            nn.init.trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.head.train(self.training)

    @torch.no_grad()
    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        """Change the size of images or patches for good, with timm's signature: positions and patches are resized.

        Images of another size do not need this call: positions are resized for each batch. Here the resized positions
        become the parameters.

        Args:
            img_size: Rows and columns of the images in pixels; None keeps them.
            patch_size: Rows and columns of a patch in pixels; None keeps them.

        Raises:
            ValueError: If sizes do not divide, or the grid changes, and positions are "rope_eva" or a mechanism has a
                weight for each patch.
        """
        changes = {"image_size": img_size, "patch_size": patch_size}
        config = ModelConfig(self.config | {name: size for name, size in changes.items() if size is not None})
        with torch.device("meta"):
            resized = VisionTransformer(**config)
        check_resizable(self, resized)
        weights = {
            "patch_embed.proj.weight": resize_patches(self.patch_embed.proj.weight, resized.patch_embed.patch_size),
            "patch_embed.proj.bias": self.get_parameter("patch_embed.proj.bias"),
            "pos_embed": resize_positions(
                self.pos_embed, self.patch_embed.grid_size, resized.patch_embed.grid_size, self.pos_embed_interpolation
            ),
        }
        trained = {name: self.get_parameter(name).requires_grad for name in weights}
        self.patch_embed, self.config = resized.patch_embed.train(self.training), config
        _tell_hub(self)
        for name, values in weights.items():
            module = self.get_submodule(name.rpartition(".")[0])
            setattr(module, name.rpartition(".")[2], nn.Parameter(values.detach().clone(), requires_grad=trained[name]))
        self.pretrained_cfg = self.pretrained_cfg | {
            "input_size": [self.patch_embed.in_channels, *self.patch_embed.image_size]
        }

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what features after chosen blocks do not need, with timm's signature.

        Args:
            indices: Blocks to choose, as ``forward_intermediates`` takes them.
            prune_norm: Whether the final norm becomes the identity.
            prune_head: Whether the head, and a norm after pooling, become the identity.

        Returns:
            The numbers of the chosen blocks, from 0.
        """
        chosen = sorted(chosen_blocks(indices, len(self.blocks)))
        self.blocks = self.blocks[: chosen[-1] + 1]
        last_block: Any = self.blocks[-1]
        self.config |= {"depth": len(self.blocks), "drop_path": last_block.drop_path.probability}
        if not isinstance(self.config["attention"], str):
            names = list(self.config["attention"])[: len(self.blocks)]
            options = self.config["attention_kwargs"] or {}
            kept = {name: options[name] for name in options if name in names}
            self.config |= {"attention": names, "attention_kwargs": kept or None}
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.fc_norm = nn.Identity()
            # The weights of pool "map" go as well. Not self.reset_classifier: timm's class has other names of poolings.
            VisionTransformer.reset_classifier(self, 0, "mean" if self.pool == "map" else None)
        return chosen

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in the backward pass if ``enable``, else keep them."""
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return the layers of the parameters as timm's optimisers read them, for ``layer_decay``.

        The final norm belongs to the last block. No pattern matches the head, which is the last layer. ``coarse`` makes
        all blocks one layer.
        """
        blocks = r"^blocks" if coarse else [(r"^blocks\.(\d+)", None), (r"^norm\.", (99999,))]
        return {"stem": r"^(?:cls_token|reg_token|mask_token|pos_embed|patch_embed|norm_pre)", "blocks": blocks}

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay: tokens, positions, and those that mechanisms name."""
        tokens = ("cls_token", "reg_token", "mask_token", "pos_embed")
        names = {name for name in tokens if getattr(self, name) is not None}
        return names | undecayed_parameters(self) | (set() if self.attn_pool is None else {"attn_pool.latent"})


def _tell_hub(model: VisionTransformer) -> None:
    """Give the mixin of huggingface_hub the present arguments: it would save those that the model was built with."""
    if (saved := getattr(model, "_hub_mixin_config", None)) is not None:
        saved |= model.config


def _note_config(model: VisionTransformer, state: dict[str, Tensor], prefix: str, metadata: dict[str, Any]) -> None:
    # The names and shapes of the weights do not tell the number of heads.
    metadata[CONFIG_KEY] = copy.deepcopy(dict(model.config))
