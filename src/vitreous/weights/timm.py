"""timm's state dicts: ViTs (DeiT and DINOv2 among them), hybrids and BiT ResNets; DINOv3 is in timm_dinov3.py.

A state dict of timm's does not say how many heads it has, nor which GELU, nor how it pools: timm_settings.py finds out.
"""

from __future__ import annotations

import math
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import ModelConfig, ResNetConfig, Size, ViTConfig, replace_config
from vitreous.models.names import name_resnet
from vitreous.weights import preprocessing, timm_dinov3, timm_settings
from vitreous.weights.arrays import Arrays, axes, count_layers, count_units, subtree
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.mapping import (
    ONE_ROW,
    TORCH_CONV_AS_LINEAR,
    Recognised,
    ResNetNames,
    Rule,
    build_config,
    optional,
    pair,
    refuse_parts,
    refuse_unused,
    resnet_rules,
    rule,
)
from vitreous.weights.timm_settings import RESNET_NUMERICS, Settings


def recognise(arrays: Arrays, fields: dict[str, Any]) -> Recognised | None:
    """timm's layout under its names, or None. `fields` is the config.json beside the file, or empty."""
    found, read = subtree(arrays, "patch_embed.proj.weight"), _read_vit
    if found is None:
        found, read = subtree(arrays, "stem.conv.weight"), _read_resnet
    if found is None:
        return None
    settings = Settings.of(fields, arrays.path)
    if read is _read_vit and timm_dinov3.is_eva(found, settings):
        read = timm_dinov3.read_config
    config = read(found, settings)
    known = rules(config)
    refuse_unused(known, found, "model of timm's")
    text = preprocessing.timm(settings.pretrained, config.image_size)
    guessed = not (settings.pretrained and text)
    text = text or preprocessing.timm({**settings.pretrained, "crop_mode": "center"}, config.image_size)
    names = fields.get("label_names")
    classes = tuple(map(str, names)) if isinstance(names, list) and len(names) == config.classes else None
    notes = tuple(settings.notes)
    checkpoint = Checkpoint(config, {}, text, classes, family="timm", preprocess_guessed=guessed, notes=notes)
    return Recognised(checkpoint, found, known)


def rules(config: ModelConfig) -> list[Rule]:
    if isinstance(config, ViTConfig):
        return timm_dinov3.rules(config) if config.positions == "rope" else _vit_rules(config)
    head = [rule("head.weight", "head.fc.weight", TORCH_CONV_AS_LINEAR), rule("head.bias", "head.fc.bias")]
    return resnet_rules(config, _resnet_names("", "stem.")) + (head if config.classes else [])


def to_settings(config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """timm's config.json for a model, so that `timm.create_model("local-dir:FOLDER")` builds it; and notes."""
    if isinstance(config, ViTConfig) and config.positions == "rope":
        return timm_dinov3.to_settings(config), []
    return timm_settings.to_settings(config)


def _read_vit(arrays: Arrays, settings: Settings) -> ModelConfig:
    shapes = arrays.shapes
    depth = count_layers(arrays, r"blocks\.(\d+)\.")
    width, channels, *patch = axes(arrays, "patch_embed.proj.weight", 4)
    # timm's packed SwiGLU holds gate and value in one.
    up, hidden = axes(arrays, "blocks.0.mlp.fc1.weight", 2)[0], axes(arrays, "blocks.0.mlp.fc2.weight", 2)[1]
    class_token, distilled = "cls_token" in shapes, "dist_token" in shapes
    registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    prefix = int(class_token) + int(distilled) + registers
    if distilled and "head_dist.weight" not in shapes:
        raise VitreousError(
            f"{arrays.path}: a distilled model without heads, whose features timm takes from two tokens at once"
        )
    norm_after_pool, embedding_norm = "fc_norm.weight" in shapes, "norm_pre.weight" in shapes
    if settings.arguments.get("pre_norm") and not embedding_norm:
        raise VitreousError(f"{arrays.path}: config.json asks for pre_norm, but the file has no 'norm_pre.weight'")
    if "attn_pool.latent" in shapes and prefix:
        raise VitreousError(
            f"{arrays.path}: attention pooling over leading tokens, or without them, is not known of timm's models"
        )
    trunk = _read_trunk(arrays) if any(name.startswith("patch_embed.backbone.") for name in shapes) else None
    fields: dict[str, Any] = dict(
        width=width,
        depth=depth,
        heads=settings.heads(width),
        mlp=hidden,
        mlp_form="swiglu" if up == 2 * hidden else "plain",
        patch=tuple(patch),
        channels=trunk.channels if trunk else channels,
        classes=shapes["head.weight"][0] if "head.weight" in shapes else 0,
        representation=shapes["pre_logits.fc.weight"][0] if "pre_logits.fc.weight" in shapes else None,
        class_token=class_token,
        distillation_token=distilled,
        distillation_head="head_dist.weight" in shapes,
        registers=registers,
        mask_token="mask_token" in shapes,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        qkv_bias="blocks.0.attn.qkv.bias" in shapes,
        norm_after_pool=norm_after_pool,
        pool=settings.pool(class_token, norm_after_pool, "attn_pool.latent" in shapes),
        activation=settings.activation(),
        embedding_norm=embedding_norm,
        norm_eps=settings.norm_eps(embedding_norm),
        position_resize="bicubic-antialias",
    )
    if "pos_embed" in shapes:
        stride = trunk.stride if trunk else 1
        step = (patch[0] * stride, patch[1] * stride)
        fields["position_prefix"], grid = _grid(arrays, shapes["pos_embed"][-2], prefix, settings.image_size(), step)
        image_size = (grid[0] * step[0], grid[1] * step[1])
    else:
        fields.update(positions="none", position_prefix=0)
        image_size = settings.image_size() or (224, 224)
    return build_config(trunk, image_size, fields)


def _grid(arrays: Arrays, rows: int, prefix: int, size: Size | None, step: Size) -> tuple[int, Size]:
    """How many leading tokens own a position, and the grid; from the configured image size, or else a square."""
    if size:
        grid = (size[0] // step[0], size[1] // step[1])
        for owned in (prefix, 0):
            if rows - owned == grid[0] * grid[1]:
                return owned, grid
    for owned in (prefix, 0):
        side = math.isqrt(max(0, rows - owned))
        if side and side * side == rows - owned:
            return owned, (side, side)
    raise VitreousError(
        f"{arrays.path}: {rows} positions form no square grid; put a config.json beside the file with "
        f'{{"model_args": {{"img_size": [height, width]}}}}'
    )


def _read_trunk(arrays: Arrays) -> ResNetConfig:
    # A bare root has no stages beside it.
    stem = "patch_embed.backbone." + ("stem." if "patch_embed.backbone.stem.conv.weight" in arrays.shapes else "")
    if f"{stem}conv.weight" not in arrays.shapes:
        raise VitreousError(f"{arrays.path}: a hybrid whose trunk is no BiT ResNet; this program knows no other")
    return _read_units(arrays, stem, r"patch_embed\.backbone\.stages", form="post")


def _read_units(arrays: Arrays, stem: str, stages: str, **fields: Any) -> ResNetConfig:
    width, channels, *_ = arrays.shapes[f"{stem}conv.weight"]
    units = count_units(arrays, rf"^{stages}\.(\d+)\.blocks\.(\d+)\.", first=0)
    config = ResNetConfig(units=units, width=width, channels=channels, **{"classes": 0, **RESNET_NUMERICS, **fields})
    named: ResNetConfig = replace_config(config, name=name_resnet(config))
    return named


def _vit_rules(config: ViTConfig) -> list[Rule]:
    foreign = {
        f"{config.positions} positions": config.positions not in ("1d", "none"),
        f"positions in {config.position_placement} layers": config.position_placement != "stem",
        "axial attention": config.attention != "full",
        "keys without a bias": not config.key_bias,
        f"pooling by {config.pool!r}": config.pool == "token+mean",
    }
    refuse_parts(config, "timm's ViT", foreign)
    out = [each for each in pair("embedding", "patch_embed.proj") if each.ours.endswith("weight") or not config.embedding_norm]
    if config.trunk is not None:
        out += resnet_rules(config.trunk, _resnet_names("patch_embed.backbone.", "stem." if config.trunk.units else ""))
    for i in range(config.depth):
        ours = theirs = f"blocks.{i}"
        out += optional(
            (True, pair(f"{ours}.norm1", f"{theirs}.norm1") + pair(f"{ours}.norm2", f"{theirs}.norm2")),
            (True, [rule(f"{ours}.attention.qkv.weight", f"{theirs}.attn.qkv.weight")]),
            (config.qkv_bias, [rule(f"{ours}.attention.qkv.bias", f"{theirs}.attn.qkv.bias")]),
            (True, pair(f"{ours}.attention.out", f"{theirs}.attn.proj")),
            (True, pair(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + pair(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")),
            (config.layer_scale is not None, [rule(f"{ours}.scale{k}.gamma", f"{theirs}.ls{k}.gamma") for k in (1, 2)]),
        )
    return out + optional(
        (config.class_token, [rule("class_token", "cls_token")]),
        (config.distillation_token, [rule("distillation_token", "dist_token")]),
        (config.registers, [rule("registers", "reg_token")]),
        (config.mask_token, [rule("mask_token", "mask_token")]),
        (config.positions == "1d", [rule("positions.0.table", "pos_embed", ONE_ROW)]),
        (config.embedding_norm, pair("embedding_norm", "norm_pre")),
        (True, pair("norm", "fc_norm" if config.norm_after_pool else "norm")),
        (config.pool == "map", _pool_rules()),
        (config.representation, pair("representation", "pre_logits.fc")),
        (config.classes, pair("head", "head")),
        (config.distillation_head, pair("distillation_head", "head_dist")),
    )


def _pool_rules() -> list[Rule]:
    names = {"query": "q", "key_value": "kv", "out": "proj", "norm": "norm", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    layers = [each for ours, theirs in names.items() for each in pair(f"pool.{ours}", f"attn_pool.{theirs}")]
    return [rule("pool.probe", "attn_pool.latent"), *layers]


def _resnet_names(root: str, stem: str) -> ResNetNames:
    return ResNetNames(
        root=f"{root}{stem}conv.weight",
        root_norm=f"{root}{stem}norm",
        unit=root + "stages.{stage}.blocks.{unit}.",
        convolutions=("conv1.weight", "conv2.weight", "conv3.weight"),
        norms=("norm1", "norm2", "norm3"),
        shortcut="downsample.conv.weight",
        shortcut_norm="downsample.norm",
        last_norm="norm",
        first=0,
    )


def _read_resnet(arrays: Arrays, settings: Settings) -> ModelConfig:
    settings.check_bit()
    classes = arrays.shapes["head.fc.weight"][0] if "head.fc.weight" in arrays.shapes else 0
    form, size = "pre" if "norm.weight" in arrays.shapes else "post", settings.image_size() or (224, 224)
    return _read_units(arrays, "stem.", "stages", classes=classes, form=form, image_size=size)
