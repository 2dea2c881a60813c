"""The Vision Transformer: section 3.1 and appendix A of the paper, equation by equation.

    z_0  = [x_class; x_1 E; ...; x_N E] + E_pos        (1)   ViT.embed
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                  (2)   Block
    z_l  = MLP(LN(z'_l)) + z'_l                        (3)   Block
    y    = LN(z_L^0)                                   (4)   ViT.features

    [q, k, v] = z U_qkv                                (5)   Attention
    A  = softmax(q k^T / sqrt(D_h))                    (6)
    SA = A v                                           (7)
    MSA = [SA_1; ...; SA_k] U_msa                      (8)

Where the equations are silent this follows the authors' code: every projection has a bias, dropout follows
every dense layer but q, k, v, and the final norm is applied to all tokens. Equation (6) is never written to
memory: `attend` is torch's fused attention, (6) and (7) in one, and `Attention.probabilities` recomputes A for
inspection (attention_maps.py).

Shapes: B images, C channels, N tokens, D width, H heads, K = D / H.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.models.attend import attend
from vitreous.models.axial import AxialBlock
from vitreous.models.config import Size, ViTConfig
from vitreous.models.initialise import initialise_vit
from vitreous.models.layers import MLP, LayerScale, QueryValueBias, StochasticDepth
from vitreous.models.pooling import AttentionPool
from vitreous.models.positions import InnerPositions, RelativePositions, build_inner_positions, build_positions
from vitreous.models.resnet import Trunk
from vitreous.models.rotary import RotaryPositions
from vitreous.models.stem import ConvStem
from vitreous.models.token_merging import encode_merging


class Attention(nn.Module):
    """Multi-head self-attention, appendix A."""

    def __init__(self, config: ViTConfig, positions: InnerPositions = None) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = QueryValueBias.of(config)  # U_qkv
        self.out = nn.Linear(config.width, config.width)  # U_msa
        self.relative = positions if isinstance(positions, RelativePositions) else None
        self.rotary = positions if isinstance(positions, RotaryPositions) else None
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.dropout)

    def project(self, z_BND: Tensor, grid: Size | None = None) -> tuple[Tensor, Tensor, Tensor]:
        # Split first, so that the three gradients are put together where they stand: one copy less than from (3, ...).
        q_BND, k_BND, v_BND = self.qkv(z_BND).split(z_BND.shape[-1], dim=-1)  # (5)
        q, k, v = self._heads(q_BND), self._heads(k_BND), self._heads(v_BND)
        if self.rotary is not None:
            q, k = self.rotary(q, k, grid)
        return q, k, v

    def _heads(self, x_BND: Tensor) -> Tensor:
        b, n, d = x_BND.shape
        return x_BND.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, z_BND: Tensor, leading: int | None = None, grid: Size | None = None) -> Tensor:
        """With `leading`, only the first so many tokens look around, at all of them; (B, leading, D) comes out.

        `grid` is that of the patches, for relative and rotary positions; without it, the one that the model was built for.
        """
        q, k, v = self.project(z_BND, grid)
        bias = self.relative(q, grid) if self.relative is not None else None
        if leading is not None:
            q, bias = q[:, :, :leading], None if bias is None else bias[:, :, :leading]
        drop = self.attention_dropout if self.training else 0.0
        heads_BHNK = attend(q, k, v, bias, drop)  # (6), (7)
        joined_BND = heads_BHNK.transpose(1, 2).flatten(2)
        return self.dropout(self.out(joined_BND))  # (8)

    def probabilities(self, z_BND: Tensor, grid: Size | None = None) -> Tensor:
        """A of equation (6), (B, H, N, N): row i tells where token i looks."""
        q, k, _ = self.project(z_BND, grid)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.relative is not None:
            logits = logits + self.relative(q, grid)
        return logits.softmax(dim=-1)


class Block(nn.Module):
    """One layer of the encoder, equations (2) and (3)."""

    def __init__(self, config: ViTConfig, layer: int, positions: InnerPositions = None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config, positions)
        self.scale1 = LayerScale.of(config)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)
        self.scale2 = LayerScale.of(config)
        self.skip = StochasticDepth(config.stochastic_depth * layer / max(1, config.depth - 1))

    def forward(self, z: Tensor, images: int | None = None, leading: int | None = None, grid: Size | None = None) -> Tensor:
        images = images or z.shape[0]  # axial attention has more rows than images
        z = z[:, :leading] + self.skip(self.scale1(self.attention(self.norm1(z), leading, grid)), images)  # (2)
        return z + self.skip(self.scale2(self.mlp(self.norm2(z))), images)  # (3)


class ViT(nn.Module):
    """Images (B, C, H, W) in, logits (B, classes) out; with no classes, features.

    Built for `config.image_size`. An image of another size that divides into patches is taken too:
    its positions are interpolated on the fly, in the config's mode.

    Set `lean` to compute, in the last layer, only the tokens that the head reads: `features` and the model itself give the
    same numbers and gradients for less work. A class token alone spares three quarters of that layer. It is off at first,
    because the whole network is what the paper's table 6 counts (cost.py) and what `tokens` returns.

    With `merge_tokens`, so many of the most similar tokens are merged in each layer outside of training (token_merging.py).
    """

    lean: bool = False
    merge_tokens: int = 0

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        # A hybrid cuts patches from a feature map.
        self.trunk = Trunk(config.trunk) if config.trunk else ConvStem(config) if config.stem else nn.Identity()
        channels = config.trunk.out_channels if config.trunk else (config.channels, *config.stem)[-1]
        # A convolution whose stride is its kernel is the linear map E applied to each flattened patch.
        self.embedding = nn.Conv2d(channels, config.width, config.patch, config.patch, bias=not config.embedding_norm)  # E

        def token(count: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(1, count, config.width)) if count else None

        self.class_token = token(config.class_token)  # x_class
        self.distillation_token = token(config.distillation_token)
        self.registers = token(config.registers)
        self.mask_token = token(config.mask_token)

        self.positions = build_positions(config)  # E_pos
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.embedding_norm else nn.Identity()
        if config.attention == "axial":
            self.blocks = nn.ModuleList(AxialBlock(Block(config, i), Block(config, i)) for i in range(config.depth))
        else:
            self.blocks = nn.ModuleList(Block(config, i, inner) for i, inner in enumerate(build_inner_positions(config)))
        self.norm = nn.LayerNorm(config.pooled_width if config.norm_after_pool else config.width, eps=config.norm_eps)
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.representation = nn.Linear(config.pooled_width, config.representation) if config.representation else nn.Identity()
        self.head = nn.Linear(config.feature_width, config.classes) if config.classes else nn.Identity()
        self.distillation_head = nn.Linear(config.width, config.classes) if config.distillation_head else None
        self.initialise()

    def initialise(self) -> None:
        """Draw every weight as the authors do (initialise.py); a model laid out without memory has nothing to draw."""
        if not self.embedding.weight.is_meta:
            initialise_vit(self)

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: class, distillation and register tokens. Never assume it is one."""
        return self.config.prefix_tokens

    def add_positions(self, z_BND: Tensor, grid: Size, layer: int) -> Tensor:
        """E_pos of (1); in layers after the first only where the config says so (appendix D.4)."""
        if not self.positions or (layer > 0 and self.config.position_placement == "stem"):
            return z_BND
        table_ND = self.positions[layer if len(self.positions) > 1 else 0](grid)
        # The table has rows for the first `owned` leading tokens and for the patches; tokens between get nothing.
        owned = self.config.position_prefix
        bare = table_ND.new_zeros(self.prefix_tokens - owned, table_ND.shape[1])
        return z_BND + (torch.cat([table_ND[:owned], bare, table_ND[owned:]]) if len(bare) else table_ND)

    def patches(self, images: Tensor) -> tuple[Tensor, Size]:
        """x_1 E ... x_N E of (1), in raster order, and their grid."""
        if images.ndim != 4:
            raise VitreousError(f"images must have 4 axes (batch, channels, height, width), not shape {tuple(images.shape)}")
        if images.shape[1] != self.config.channels:
            raise VitreousError(f"{self.config.name} takes {self.config.channels} channels, not {images.shape[1]}")
        self.config.grid_of((images.shape[2], images.shape[3]))  # refuses sizes that would lose pixels
        patches_BDG = self.embedding(self.trunk(images))
        return patches_BDG.flatten(2).transpose(1, 2), (patches_BDG.shape[2], patches_BDG.shape[3])

    def sequence(self, patches_BND: Tensor, grid: Size) -> Tensor:
        """z_0 of (1): leading tokens, then patches, and positions added to both."""
        leading = [self.class_token, self.distillation_token, self.registers]
        z_BND = torch.cat([t.expand(patches_BND.shape[0], -1, -1) for t in leading if t is not None] + [patches_BND], dim=1)
        z_BND = self.dropout(self.add_positions(z_BND, grid, layer=0))
        normed: Tensor = self.embedding_norm(z_BND)
        return normed

    def embed(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Size]:
        """Equation (1), and the grid of patches. Patches where `mask` (B, patches) is true become the mask token."""
        patches_BND, grid = self.patches(images)
        if mask is not None:
            if self.mask_token is None:
                raise VitreousError(f"{self.config.name} has no mask token; create it with mask_token=True")
            patches_BND = torch.where(mask[..., None], self.mask_token.to(patches_BND.dtype), patches_BND)
        return self.sequence(patches_BND, grid), grid

    def encode(self, z_BND: Tensor, grid: Size, leading: int | None = None) -> Tensor:
        """z_L from z_0: equations (2) and (3), layer after layer; of the last only the first `leading` tokens, if given."""
        if self.merge_tokens and not self.training:
            return encode_merging(self, z_BND, leading)
        for layer, block in enumerate(self.blocks):
            if layer > 0:
                z_BND = self.add_positions(z_BND, grid, layer)
            if isinstance(block, AxialBlock):
                z_BND = block(z_BND, grid)
            else:
                z_BND = block(z_BND, None, leading if layer == self.config.depth - 1 else None, grid)
        return z_BND

    @property
    def _read(self) -> int | None:
        """How many tokens of the last layer enter the head, if it does not take all of them."""
        if not self.lean or self.config.pool != "token" or self.config.attention == "axial":
            return None
        return 2 if self.distillation_head is not None else 1

    def tokens(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """z_L of equation (3), (B, N, D): leading tokens, then patches in raster order; before the final norm."""
        return self.encode(*self.embed(images, mask))

    def pooled(self, z_BND: Tensor) -> Tensor:
        """One vector per image: the class token, the mean over patches, both, or attention pooling."""
        if self.config.pool == "token":
            return z_BND[:, 0]
        if self.pool is not None:
            return self.pool(z_BND)
        mean_BD = z_BND[:, self.prefix_tokens :].mean(dim=1)
        return torch.cat([z_BND[:, 0], mean_BD], dim=1) if self.config.pool == "token+mean" else mean_BD

    def features_of(self, z_BND: Tensor) -> Tensor:
        """Equation (4) from the encoder's output: norm, pool, and the tanh layer that pre-training adds."""
        late = self.config.norm_after_pool
        y_BD = self.norm(self.pooled(z_BND)) if late else self.pooled(self.norm(z_BND))
        return torch.tanh(self.representation(y_BD)) if self.config.representation else y_BD

    def features(self, images: Tensor) -> Tensor:
        """What enters the head, (B, feature_width)."""
        return self.features_of(self.encode(*self.embed(images), self._read))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits_and_features(images)[0]

    def logits_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The head's output and its input, in one pass."""
        return self._apply_head(self.encode(*self.embed(images), self._read))

    def logits_of(self, z_BND: Tensor) -> Tensor:
        """The head on the encoder's output."""
        return self._apply_head(z_BND)[0]

    def _apply_head(self, z_BND: Tensor) -> tuple[Tensor, Tensor]:
        features_BD = self.features_of(z_BND)
        logits: Tensor = self.head(features_BD)
        if self.distillation_head is not None:  # DeiT: the mean of both heads
            logits = (logits + self.distillation_head(self.norm(z_BND)[:, 1])) / 2
        return logits, features_BD
