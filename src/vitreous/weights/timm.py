"""timm's state dicts: ViTs (DeiT and DINOv2 among them), hybrids and BiT ResNets.

A state dict of timm's does not say how many heads it has, nor which GELU, nor how it pools: timm_settings.py finds out.
"""

from __future__ import annotations

import math
import re
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import ModelConfig, ResNetConfig, Size, ViTConfig, replace_config
from vitreous.models.names import name_resnet, name_vit
from vitreous.weights.arrays import Arrays, subtree
from vitreous.weights.mapping import ONE_ROW, SAME, TORCH_CONV_AS_LINEAR, Rule, rule, unused_arrays
from vitreous.weights.timm_settings import RESNET_NUMERICS, Settings

# timm's numerics where they differ from the authors'.
_VIT = dict(norm_eps=1e-6, position_resize="bicubic-antialias")


def recognise(arrays: Arrays, settings: dict[str, Any]) -> tuple[ModelConfig, Arrays, list[str]] | None:
    """Config, arrays under timm's names, and notes. `settings` is the config.json beside the file, or empty."""
    if found := subtree(arrays, "patch_embed.proj.weight"):
        return _recognise_vit(found, settings)
    if found := subtree(arrays, "stem.conv.weight"):
        return _recognise_bit(found, settings)
    return None


def rules(config: ModelConfig) -> list[Rule]:
    return _bit_rules(config) if isinstance(config, ResNetConfig) else _vit_rules(config)


def _recognise_vit(arrays: Arrays, settings: dict[str, Any]) -> tuple[ModelConfig, Arrays, list[str]]:
    shapes = arrays.shapes
    said = Settings.of(settings, arrays.path)
    layers = {int(m[1]) for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))}
    if layers != set(range(len(layers))) or not layers:
        raise VitreousError(f"{arrays.path}: blocks {sorted(layers)} are not numbered from 0 without gaps")
    if len(shapes["patch_embed.proj.weight"]) != 4:
        raise VitreousError(
            f"{arrays.path}: patch_embed.proj.weight has shape {shapes['patch_embed.proj.weight']}; 4 axes were expected"
        )
    width, channels, *patch = shapes["patch_embed.proj.weight"]
    hidden, gated = _hidden(arrays)
    class_token, distilled = "cls_token" in shapes, "dist_token" in shapes
    registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    prefix = int(class_token) + int(distilled) + registers
    if distilled and "head_dist.weight" not in shapes:
        raise VitreousError(
            f"{arrays.path}: a distilled model without heads, whose features timm takes from two tokens at once"
        )
    norm_after_pool = "fc_norm.weight" in shapes
    fields: dict[str, Any] = dict(
        width=width,
        depth=len(layers),
        heads=said.heads(width),
        mlp=hidden,
        mlp_form="swiglu" if gated else "plain",
        patch=tuple(patch),
        channels=channels,
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
        pool=said.pool(class_token, norm_after_pool),
        activation=said.activation(),
        **_VIT,
    )
    trunk = _trunk(arrays) if any(name.startswith("patch_embed.backbone.") for name in shapes) else None
    if trunk is not None:
        fields["channels"] = trunk.channels
    if "pos_embed" in shapes:
        rows = shapes["pos_embed"][-2]
        step = (patch[0] * (trunk.stride if trunk else 1), patch[1] * (trunk.stride if trunk else 1))
        fields["position_prefix"], grid = _grid(arrays, rows, prefix, said.image_size(), step)
        fields["image_size"] = (grid[0] * step[0], grid[1] * step[1])
    else:
        fields.update(positions="none", position_prefix=0, image_size=said.image_size() or (224, 224))
    if trunk is not None:
        trunk = replace_config(trunk, image_size=fields["image_size"])
    config = ViTConfig(trunk=trunk, **fields)
    config = replace_config(config, name=name_vit(config))
    extra = unused_arrays(_vit_rules(config), arrays)
    if extra:
        raise VitreousError(
            f"{arrays.path}: tensor {extra[0]!r} belongs to no model that this program knows, so outputs would be wrong"
        )
    return config, arrays, said.notes


def _hidden(arrays: Arrays) -> tuple[int, bool]:
    """Size of the MLP's middle, and whether it is gated (timm's packed SwiGLU holds gate and value in one)."""
    for name in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"):
        if name not in arrays.shapes:
            raise VitreousError(f"{arrays.path}: tensor {name!r} is missing; the file is incomplete or of another kind")
    up, down = arrays.shapes["blocks.0.mlp.fc1.weight"][0], arrays.shapes["blocks.0.mlp.fc2.weight"][1]
    return down, up == 2 * down


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


def _trunk(arrays: Arrays) -> ResNetConfig:
    stem = "stem." if "patch_embed.backbone.stem.conv.weight" in arrays.shapes else ""  # a bare root has no stages beside it
    if f"patch_embed.backbone.{stem}conv.weight" not in arrays.shapes:
        raise VitreousError(f"{arrays.path}: a hybrid whose trunk is no BiT ResNet; this program knows no other")
    width, channels, *_ = arrays.shapes[f"patch_embed.backbone.{stem}conv.weight"]
    units = _units(arrays, r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    trunk = ResNetConfig(form="post", units=units, width=width, channels=channels, classes=0, **RESNET_NUMERICS)
    return replace_config(trunk, name=name_resnet(trunk))


def _units(arrays: Arrays, pattern: str) -> tuple[int, ...]:
    found = {(int(m[1]), int(m[2])) for name in arrays.shapes if (m := re.match(pattern, name))}
    stages = sorted({stage for stage, _ in found})
    return tuple(sum(stage == s for s, _ in found) for stage in stages)


def _vit_rules(config: ViTConfig) -> list[Rule]:
    _refuse_foreign_parts(config)
    out = _pairs("embedding", "patch_embed.proj")
    if config.trunk is not None:
        out += _trunk_rules(config.trunk, "patch_embed.backbone.")
    for wanted, ours, theirs in (
        (config.class_token, "class_token", "cls_token"),
        (config.distillation_token, "distillation_token", "dist_token"),
        (config.registers, "registers", "reg_token"),
        (config.mask_token, "mask_token", "mask_token"),
    ):
        if wanted:
            out.append(rule(ours, theirs))
    if config.positions == "1d":
        out.append(rule("positions.0.table", "pos_embed", ONE_ROW))
    for i in range(config.depth):
        ours = theirs = f"blocks.{i}"
        out += _pairs(f"{ours}.norm1", f"{theirs}.norm1") + _pairs(f"{ours}.norm2", f"{theirs}.norm2")
        out.append(rule(f"{ours}.attention.qkv.weight", f"{theirs}.attn.qkv.weight"))
        if config.qkv_bias:
            out.append(rule(f"{ours}.attention.qkv.bias", f"{theirs}.attn.qkv.bias"))
        out += _pairs(f"{ours}.attention.out", f"{theirs}.attn.proj")
        out += _pairs(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + _pairs(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
        if config.layer_scale is not None:
            out += [rule(f"{ours}.scale{k}.gamma", f"{theirs}.ls{k}.gamma") for k in (1, 2)]
    out += _pairs("norm", "fc_norm" if config.norm_after_pool else "norm")
    if config.representation:
        out += _pairs("representation", "pre_logits.fc")
    if config.classes:
        out += _pairs("head", "head")
    if config.distillation_head:
        out += _pairs("distillation_head", "head_dist")
    return out


def _refuse_foreign_parts(config: ViTConfig) -> None:
    reasons = {
        f"{config.positions} positions": config.positions not in ("1d", "none"),
        f"positions in {config.position_placement} layers": config.position_placement != "stem",
        "axial attention": config.attention != "full",
        f"pooling by {config.pool!r}": config.pool in ("map", "token+mean"),
    }
    for part, there in reasons.items():
        if there:
            raise VitreousError(f"{config.name} has {part}, which timm's ViT does not have; keep it as a vitreous checkpoint")


def _pairs(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}.weight"), rule(f"{ours}.bias", f"{theirs}.bias")]


def _trunk_rules(trunk: ResNetConfig, root: str) -> list[Rule]:
    post = trunk.form == "post"
    stem = f"{root}stem." if trunk.units else root
    out = [rule("trunk.root.weight", f"{stem}conv.weight")]
    if post:
        out += _pairs("trunk.root_norm", f"{stem}norm")
    for stage, count in enumerate(trunk.units):
        for index in range(count):
            ours, theirs = f"trunk.stages.{stage}.{index}", f"{root}stages.{stage}.blocks.{index}"
            for k in (1, 2, 3):
                out.append(rule(f"{ours}.conv{k}.weight", f"{theirs}.conv{k}.weight"))
                out += _pairs(f"{ours}.norm{k}", f"{theirs}.norm{k}")
            if index == 0:
                out.append(rule(f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight"))
                if post:
                    out += _pairs(f"{ours}.shortcut_norm", f"{theirs}.downsample.norm")
    return out


def _recognise_bit(arrays: Arrays, settings: dict[str, Any]) -> tuple[ModelConfig, Arrays, list[str]]:
    said = Settings.of(settings, arrays.path)
    said.check_bit()
    width, channels, *_ = arrays.shapes["stem.conv.weight"]
    units = _units(arrays, r"stages\.(\d+)\.blocks\.(\d+)\.")
    classes = arrays.shapes["head.fc.weight"][0] if "head.fc.weight" in arrays.shapes else 0
    form = "pre" if "norm.weight" in arrays.shapes else "post"
    config = ResNetConfig(form=form, units=units, width=width, channels=channels, classes=classes, **RESNET_NUMERICS)  # type: ignore[arg-type]
    config = replace_config(config, name=name_resnet(config))
    extra = unused_arrays(_bit_rules(config), arrays)
    if extra:
        raise VitreousError(f"{arrays.path}: tensor {extra[0]!r} belongs to no BiT ResNet")
    return replace_config(config, image_size=said.image_size() or (224, 224)), arrays, said.notes


def _bit_rules(config: ResNetConfig) -> list[Rule]:
    out = _trunk_rules(config, "")
    if config.form == "pre":
        out += _pairs("trunk.norm", "norm")
    if config.classes:
        out += [rule("head.weight", "head.fc.weight", TORCH_CONV_AS_LINEAR), rule("head.bias", "head.fc.bias", SAME)]
    return out
