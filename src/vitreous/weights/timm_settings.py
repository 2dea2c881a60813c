"""Read and write timm's config.json, which holds what the tensors do not show.

Many of timm's architectures share tensor names but compute differently. So an option that this program does not know is
refused rather than ignored, and what nothing says is taken as timm's default and noted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import Activation, ModelConfig, Pool, ResNetConfig, Size, ViTConfig, parse_size
from vitreous.models.names import SIZES, name_resnet
from vitreous.weights.mapping import refuse_parts

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu-erf",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
}
# timm's ResNets all run with these; nothing in a config can change them.
RESNET_NUMERICS: dict[str, Any] = dict(norm_eps=1e-5, standardise="sqrt(var+eps)", standardise_eps=1e-8)

# What `model_args` may say without our having to do anything: it shows in the tensors, or acts only in training.
_SHOWN = {
    *("patch_size", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token", "reg_tokens", "no_embed_class"),
    *("init_values", "in_chans", "num_classes", "fc_norm", "dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "pos_embed", "pre_norm"),
}
_UNDERSTOOD = {*_SHOWN, "img_size", "num_heads", "act_layer", "global_pool"}
_UNDERSTOOD_DINOV3 = {"num_reg_tokens", "swiglu_mlp", "swiglu_align_to", "use_fc_norm", "rope_temperature"}

# Architectures whose heads are not those usual for their width; checked against timm in the tests.
_HEADS = {
    r"vit_base_patch16_gap_": 16,
    r"vit_giantopt_": 16,
    r"test_vit": 2,
    r"vit_huge_plus_patch16_dinov3": 20,
    r"vit_7b_patch16_dinov3": 32,
}
# Architectures built on another GELU than timm's usual one, and such that compute in another order under the same names.
_TANH = re.compile(r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_|vit_large_patch16_siglip_(gap_)?512")
_OTHER_ORDER = re.compile(r"vit_.*_rpn_|.*parallel")

# timm's models by trunk and patch, for exports; widths and depths are given as changes to them.
_HYBRIDS: dict[tuple[tuple[int, ...], Size], str] = {
    ((), (8, 8)): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), (1, 1)): "vit_small_r26_s32_224",
    ((3, 4, 9), (1, 1)): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), (1, 1)): "vit_large_r50_s32_224",
}
_RESNETS = {f"R{d}x{w}": f"resnetv2_{d}x{w}_bit" for d, w in ((50, 1), (50, 3), (101, 1), (101, 3), (152, 2), (152, 4))}


@dataclass
class Settings:
    """What a config.json of timm's says, and notes on what it leaves open. Empty where there is none."""

    path: Path
    architecture: str
    arguments: dict[str, Any]
    fields: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, fields: dict[str, Any], path: Path) -> Settings:
        arguments = fields.get("model_args") or {}
        if not isinstance(arguments, dict):
            raise VitreousError(f"{path.parent / 'config.json'}: model_args should be an object, not {arguments!r}")
        architecture = str(fields.get("architecture", ""))
        understood = _UNDERSTOOD | _UNDERSTOOD_DINOV3 if "dinov3" in architecture else _UNDERSTOOD
        unknown = sorted(key for key, value in arguments.items() if key not in understood and value not in (None, False))
        if unknown:
            raise VitreousError(
                f"{path.parent / 'config.json'}: timm's option {unknown[0]!r} is not known here, so outputs could be wrong"
            )
        if _OTHER_ORDER.match(architecture):
            raise VitreousError(f"{path}: timm's {architecture} computes in another order than the ViT whose names it bears")
        return cls(path, architecture, arguments, fields)

    @property
    def pretrained(self) -> dict[str, Any]:
        found = self.fields.get("pretrained_cfg")
        return found if isinstance(found, dict) else {}

    def heads(self, width: int) -> int:
        special = (heads for pattern, heads in _HEADS.items() if re.match(pattern, self.architecture))
        known = self.arguments.get("num_heads", next(special, None))
        if isinstance(known, int):
            return known
        usual = {numbers[1]: numbers[3] for numbers in SIZES.values()}
        heads = usual.get(width) or (width // 64 if width % 64 == 0 else 0)
        if not heads:
            raise VitreousError(
                f"{self.path}: timm's files do not say how many heads a model has, and none is usual for width {width}; "
                f'put a config.json beside it with {{"model_args": {{"num_heads": ...}}}}'
            )
        if not self.architecture:
            self.notes.append(
                f"the file does not say how many heads there are: taken as {heads}, as is usual for width {width}"
            )
        return heads

    def activation(self) -> Activation:
        name = self.arguments.get("act_layer")
        if name is None:
            if not self.architecture:
                self.notes.append("the file does not say which GELU it was trained with: taken as timm's usual, erf")
            if "_quickgelu" in self.architecture:
                return "gelu-quick"
            return "gelu-tanh" if _TANH.match(self.architecture) else "gelu-erf"
        if name not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise VitreousError(f"{self.path}: act_layer {name!r} in config.json is not known; known are {known}")
        return _ACTIVATIONS[name]

    def pool(self, class_token: bool, norm_after_pool: bool, attention: bool = False) -> Pool:
        pool = self.arguments.get("global_pool", self.fields.get("global_pool"))
        if pool is None:
            # A norm after pooling comes with average pooling, unless that norm alone was asked for.
            asked_for = bool(self.arguments.get("fc_norm")) and "gap" not in self.architecture
            mean = (norm_after_pool and not asked_for) or not class_token or "dinov3" in self.architecture
            pool = "map" if attention else "avg" if mean else "token"
            if not self.architecture:
                self.notes.append(f"the file does not say how it pools: taken as {pool!r}, which its tensors suggest")
        pools: dict[str, Pool] = {"token": "token", "avg": "gap", "map": "map"}
        if pool not in pools:
            raise VitreousError(f"{self.path}: global_pool {pool!r} in config.json is not known; known are {', '.join(pools)}")
        return pools[pool]

    def norm_eps(self, embedding_norm: bool) -> float:
        """Fixed by the architecture. Of those that normalise their embedding only CLIP's are known: others turn queries."""
        if embedding_norm and not re.match(r"vit_\w+_clip_", self.architecture):
            raise VitreousError(
                f"{self.path}: of timm's models with pre_norm only CLIP towers are known here, and only with a config.json "
                f"that names the architecture, such as vit_base_patch32_clip_224; it says {self.architecture!r}"
            )
        return 1e-5 if embedding_norm else 1e-6

    def image_size(self) -> Size | None:
        size = self.arguments.get("img_size")
        if size is None:
            size = list(self.pretrained.get("input_size", ()))[1:]
        return None if isinstance(size, list) and len(size) != 2 else parse_size(size)

    def check_bit(self) -> None:
        """ResNets of one shape may differ in everything that has no weights: only the BiT ones are known."""
        if not self.architecture:
            self.notes.append("the file does not say which ResNet it is: taken as BiT's, with standardised kernels and ReLU")
        elif not re.fullmatch(r"resnetv2_\d+x\d+_bit", self.architecture):
            raise VitreousError(
                f"{self.path}: timm's {self.architecture} is no BiT ResNet, though its tensors have the same names"
            )
        if self.arguments.get("global_pool", self.fields.get("global_pool", "avg")) != "avg":
            raise VitreousError(f"{self.path}: a ResNet here pools by the mean; config.json asks for another way")


# Writing ------------------------------------------------------------------------------------------------------------


def to_settings(config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """timm's config.json for a ViT, hybrid or ResNet, and notes."""
    if isinstance(config, ResNetConfig):
        return _resnet_settings(config)
    norm_eps = 1e-5 if config.embedding_norm else 1e-6
    foreign = {
        "a representation layer, to be dropped by loading it with classes=...,": config.representation,
        "a distillation token, to be kept in Hugging Face's format (DeiT),": config.distillation_token,
        f"a layer-norm epsilon of {config.norm_eps:g} instead of {norm_eps:g}": config.norm_eps != norm_eps,
        "attention pooling over leading tokens": config.pool == "map" and config.prefix_tokens,
        "a norm before the first layer, behind a trunk": config.embedding_norm and config.trunk is not None,
        "a gated MLP, to be kept in Hugging Face's format,": config.mlp_form != "plain",
        "a class token and pools patches after the norm": config.pool == "gap"
        and not config.norm_after_pool
        and config.class_token,
        "positions for some of the leading tokens": config.position_prefix not in (0, config.prefix_tokens),
    }
    refuse_parts(config, "timm's ViT", foreign)
    arguments: dict[str, Any] = dict(
        img_size=list(config.image_size),
        in_chans=config.channels,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=mlp_ratio(config),
        qkv_bias=config.qkv_bias,
        class_token=config.class_token,
        reg_tokens=config.registers,
        no_embed_class=config.position_prefix == 0,
        init_values=config.layer_scale,
        act_layer={ours: theirs for theirs, ours in _ACTIVATIONS.items()}[config.activation],
        pos_embed="learn" if config.positions == "1d" else "none",
        fc_norm=config.norm_after_pool,
        pre_norm=config.embedding_norm,
    )
    architecture, notes = "vit_base_patch32_clip_224" if config.embedding_norm else "vit_base_patch16_224", []
    if config.trunk is not None:
        key = (config.trunk.units, config.patch)
        if key not in _HYBRIDS or config.trunk.form != "post" or config.trunk.width != 64:
            raise VitreousError(f"timm has no hybrid with the trunk of {config.name}; it has R, R26 and R50 of width 64")
        architecture = _HYBRIDS[key]
        notes += _numerics_note(config.trunk)
    else:
        arguments["patch_size"] = config.patch[0] if config.patch[0] == config.patch[1] else list(config.patch)
    arguments["global_pool"] = {"token": "token", "gap": "avg", "map": "map"}[config.pool]
    return dict(architecture=architecture, num_features=config.width, model_args=arguments), notes


def mlp_ratio(config: ViTConfig) -> float:
    """The number from which timm computes the size of the MLP, rounding down."""
    ratio = config.mlp / config.width
    return next(r for r in (ratio, math.nextafter(ratio, math.inf)) if int(config.width * r) == config.mlp)


def _resnet_settings(config: ResNetConfig) -> tuple[dict[str, Any], list[str]]:
    name = name_resnet(config)
    if config.root_padding != "zero":
        raise VitreousError(f"{config.name} pads its first max pool with minus infinity, timm with zeros: outputs would change")
    if config.form != "pre" or name not in _RESNETS:
        raise VitreousError(
            f"timm has no {config.form}-activation ResNet like {config.name}; it has the BiT forms of {', '.join(_RESNETS)}"
        )
    settings = dict(architecture=_RESNETS[name], num_features=config.out_channels, model_args=dict(in_chans=config.channels))
    return settings, _numerics_note(config)


def _numerics_note(config: ResNetConfig) -> list[str]:
    if (config.norm_eps, config.standardise, config.standardise_eps) == tuple(RESNET_NUMERICS.values()):
        return []
    return ["timm runs ResNets with epsilons of its own, so its outputs differ slightly from the authors'"]
