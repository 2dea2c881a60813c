"""timm's layout of DINOv3, which is that of its Eva models: split biases and gates, scales without a module of their own."""

from __future__ import annotations

import re
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import ViTConfig
from vitreous.weights.arrays import Arrays, axes, count_layers
from vitreous.weights.mapping import Rule, build_config, optional, pair, refuse_parts, rule
from vitreous.weights.timm_settings import Settings, mlp_ratio

_NORM_EPS = 1e-5  # fixed by the architecture


def is_eva(arrays: Arrays, settings: Settings) -> bool:
    """Whether the names are those of timm's Eva: DINOv3, or something else that is then refused by name."""
    marks = ("blocks.0.gamma_1", "blocks.0.attn.q_bias")
    return "dinov3" in settings.architecture or any(mark in arrays.shapes for mark in marks)


def read_config(arrays: Arrays, settings: Settings) -> ViTConfig:
    if not re.fullmatch(r"vit_\w+_patch16_dinov3(_qkvb)?", settings.architecture):
        raise VitreousError(
            f"{arrays.path}: of timm's Eva models only DINOv3 is known here, and only with a config.json that names its "
            f"architecture, such as vit_small_patch16_dinov3; it says {settings.architecture!r}"
        )
    for option in ("rope_rotate_half", "use_rot_pos_emb", "class_token"):
        if settings.arguments.get(option, True) is not True:
            raise VitreousError(f"{arrays.path.parent / 'config.json'}: a DINOv3 with {option}=false is not known")
    shapes = arrays.shapes
    width, channels, *patch = axes(arrays, "patch_embed.proj.weight", 4)
    norm_after_pool = "fc_norm.weight" in shapes
    fields: dict[str, Any] = dict(
        width=width,
        depth=count_layers(arrays, r"blocks\.(\d+)\."),
        heads=settings.heads(width),
        mlp=axes(arrays, "blocks.0.mlp.fc2.weight", 2)[1],
        mlp_form="swiglu" if "blocks.0.mlp.fc1_g.weight" in shapes else "plain",
        patch=tuple(patch),
        channels=channels,
        classes=shapes["head.weight"][0] if "head.weight" in shapes else 0,
        registers=shapes["reg_token"][1] if "reg_token" in shapes else 0,
        positions="rope",
        position_placement="shared",
        position_prefix=0,
        rope_base=float(settings.arguments.get("rope_temperature", 100.0)),
        layer_scale=1e-5 if "blocks.0.gamma_1" in shapes else None,
        qkv_bias="blocks.0.attn.q_bias" in shapes,
        key_bias="blocks.0.attn.q_bias" not in shapes,
        norm_after_pool=norm_after_pool,
        pool=settings.pool(True, norm_after_pool),
        activation="gelu-erf",
        norm_eps=_NORM_EPS,
    )
    return build_config(None, settings.image_size() or (256, 256), fields)


def rules(config: ViTConfig) -> list[Rule]:
    gated = config.mlp_form == "swiglu"
    out = pair("embedding", "patch_embed.proj")
    for i in range(config.depth):
        name = f"blocks.{i}"
        up = [f"{name}.mlp.fc1_g", f"{name}.mlp.fc1_x"] if gated else [f"{name}.mlp.fc1"]
        out += optional(
            (True, pair(f"{name}.norm1", f"{name}.norm1") + pair(f"{name}.norm2", f"{name}.norm2")),
            (True, [rule(f"{name}.attention.qkv.weight", f"{name}.attn.qkv.weight")]),
            (config.qkv_bias, [rule(f"{name}.attention.qkv.bias", [f"{name}.attn.{part}_bias" for part in "qv"])]),
            (True, pair(f"{name}.attention.out", f"{name}.attn.proj")),
            (True, [rule(f"{name}.mlp.up.{kind}", [f"{part}.{kind}" for part in up]) for kind in ("weight", "bias")]),
            (True, pair(f"{name}.mlp.down", f"{name}.mlp.fc2")),
            (config.layer_scale is not None, [rule(f"{name}.scale{k}.gamma", f"{name}.gamma_{k}") for k in (1, 2)]),
        )
    return out + optional(
        (True, [rule("class_token", "cls_token")]),
        (config.registers, [rule("registers", "reg_token")]),
        (True, pair("norm", "fc_norm" if config.norm_after_pool else "norm")),
        (config.classes, pair("head", "head")),
    )


def to_settings(config: ViTConfig) -> dict[str, Any]:
    """timm's config.json for a model with rotary positions."""
    gated = config.mlp_form == "swiglu"
    foreign = {
        "a convolutional trunk": config.trunk is not None,
        "a representation layer, to be dropped by loading it with classes=...,": config.representation,
        "a distillation token": config.distillation_token,
        "a norm before the first layer": config.embedding_norm,
        "no class token": not config.class_token,
        f"pooling by {config.pool!r}": config.pool not in ("token", "gap"),
        "a bias on keys": config.qkv_bias and config.key_bias,
        f"a layer-norm epsilon of {config.norm_eps:g} instead of {_NORM_EPS:g}": config.norm_eps != _NORM_EPS,
        f"{config.activation} instead of gelu-erf": not gated and config.activation != "gelu-erf",
    }
    refuse_parts(config, "timm's DINOv3", foreign)
    arguments = dict(
        img_size=list(config.image_size),
        patch_size=list(config.patch),
        in_chans=config.channels,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=mlp_ratio(config),
        swiglu_mlp=gated,
        swiglu_align_to=1,  # other than 0: gate and value in layers of their own
        qkv_bias=config.qkv_bias,
        num_reg_tokens=config.registers,
        init_values=config.layer_scale,
        rope_temperature=config.rope_base,
        use_fc_norm=config.norm_after_pool,
        global_pool={"token": "token", "gap": "avg"}[config.pool],
    )
    return dict(architecture="vit_small_patch16_dinov3", num_features=config.width, model_args=arguments)
