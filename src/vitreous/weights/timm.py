"""timm's state dicts: ViTs (DeiT and DINOv2 among them), hybrids and BiT ResNets.

A state dict of timm's does not say how many heads it has, nor which GELU. Where a `config.json` of timm's lies
beside it, that is asked; otherwise timm's defaults are taken, and that is noted.
"""

from __future__ import annotations

import math
import re
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.config import Activation, ModelConfig, ResNetConfig, Size, ViTConfig, pair, replace
from vitreous.models.names import SIZES, describe, describe_trunk
from vitreous.weights.arrays import Arrays, Renamed
from vitreous.weights.mapping import ONE_ROW, SAME, TORCH_CONV_AS_LINEAR, Rule, rule, unused

# timm's numerics where they differ from the authors'.
_RESNET = dict(norm_eps=1e-5, standardise="sqrt(var+eps)", standardise_eps=1e-8)
_VIT = dict(norm_eps=1e-6, position_resize="bicubic-antialias")
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu-erf",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
}
_SIZE_WORDS = dict(tiny="Ti", small="S", medium="M", base="B", large="L", so400m="So400m", huge="H", giant="g", gigantic="G")

# timm's models by trunk and patch, for exports; widths and depths are given as changes to them.
_HYBRIDS: dict[tuple[tuple[int, ...], Size], str] = {
    ((), (8, 8)): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), (1, 1)): "vit_small_r26_s32_224",
    ((3, 4, 9), (1, 1)): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), (1, 1)): "vit_large_r50_s32_224",
}
_RESNETS = {f"R{d}x{w}": f"resnetv2_{d}x{w}_bit" for d, w in ((50, 1), (50, 3), (101, 1), (101, 3), (152, 2), (152, 4))}


def recognise(arrays: Arrays, settings: dict[str, Any]) -> tuple[ModelConfig, Arrays, list[str]] | None:
    """Config, arrays under timm's names, and notes. `settings` is the config.json beside the file, or empty."""
    for mark in ("patch_embed.proj.weight", "stem.conv.weight"):
        roots = [name.removesuffix(mark) for name in arrays.shapes if name.endswith(mark)]
        if roots:
            root = min(roots, key=len)
            arrays = Renamed(arrays, {name.removeprefix(root): name for name in arrays.shapes if name.startswith(root)})
            if mark == "stem.conv.weight":
                return _recognise_bit(arrays)
            return _recognise_vit(arrays, settings)
    return None


def rules(config: ModelConfig) -> list[Rule]:
    return _bit_rules(config) if isinstance(config, ResNetConfig) else _vit_rules(config)


def _recognise_vit(arrays: Arrays, settings: dict[str, Any]) -> tuple[ModelConfig, Arrays, list[str]]:
    shapes = arrays.shapes
    notes: list[str] = []
    given = settings.get("model_args") or {}
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
    norm_after_pool = "fc_norm.weight" in shapes
    fields: dict[str, Any] = dict(
        width=width,
        depth=len(layers),
        heads=_heads(width, settings, notes),
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
        pool="gap"
        if norm_after_pool or not class_token or "avg" in (settings.get("global_pool"), given.get("global_pool"))
        else "token",
        activation=_activation(arrays, given.get("act_layer")),
        **_VIT,
    )
    trunk = _trunk(arrays) if any(name.startswith("patch_embed.backbone.") for name in shapes) else None
    if trunk is not None:
        fields["channels"] = trunk.channels
    if "pos_embed" in shapes:
        rows = shapes["pos_embed"][-2]
        size = given.get("img_size") or _pretrained(settings).get("input_size", [0, 0, 0])[1:]
        step = (patch[0] * (trunk.stride if trunk else 1), patch[1] * (trunk.stride if trunk else 1))
        fields["position_prefix"], grid = _grid(arrays, rows, prefix, size, step)
        fields["image_size"] = (grid[0] * step[0], grid[1] * step[1])
    else:
        fields.update(positions="none", position_prefix=0)
    if trunk is not None:
        trunk = replace(trunk, image_size=fields.get("image_size", (224, 224)))
    config = ViTConfig(trunk=trunk, **fields)
    config = replace(config, name=describe(config))
    extra = unused(_vit_rules(config), arrays)
    if extra:
        raise VitreousError(
            f"{arrays.path}: tensor {extra[0]!r} belongs to no model that this program knows, so outputs would be wrong"
        )
    return config, arrays, notes


def _hidden(arrays: Arrays) -> tuple[int, bool]:
    """Size of the MLP's middle, and whether it is gated (timm's packed SwiGLU holds gate and value in one)."""
    for name in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"):
        if name not in arrays.shapes:
            raise VitreousError(f"{arrays.path}: tensor {name!r} is missing; the file is incomplete or of another kind")
    up, down = arrays.shapes["blocks.0.mlp.fc1.weight"][0], arrays.shapes["blocks.0.mlp.fc2.weight"][1]
    return down, up == 2 * down


def _heads(width: int, settings: dict[str, Any], notes: list[str]) -> int:
    given = settings.get("model_args") or {}
    if isinstance(given.get("num_heads"), int):
        return int(given["num_heads"])
    match = re.match(r"(?:vit|deit|deit3|flexivit)_([a-z0-9]+?)_", str(settings.get("architecture", "")))
    if match and match[1] in _SIZE_WORDS:
        return SIZES[_SIZE_WORDS[match[1]]][3]
    known = {numbers[1]: numbers[3] for numbers in SIZES.values()}
    heads = known.get(width) or (width // 64 if width % 64 == 0 else 0)
    if not heads:
        raise VitreousError(
            f"timm's files do not say how many heads a model has, and none is usual for width {width}; "
            f'put a config.json beside the file with {{"model_args": {{"num_heads": ...}}}}'
        )
    notes.append(f"the file does not say how many heads there are: taken as {heads}, as is usual for width {width}")
    return heads


def _activation(arrays: Arrays, name: Any) -> Activation:
    if name is None:
        return "gelu-erf"
    if name not in _ACTIVATIONS:
        raise VitreousError(
            f"{arrays.path}: act_layer {name!r} in config.json is not known; known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _pretrained(settings: dict[str, Any]) -> dict[str, Any]:
    found = settings.get("pretrained_cfg")
    return found if isinstance(found, dict) else {}


def _grid(arrays: Arrays, rows: int, prefix: int, size: Any, step: Size) -> tuple[int, Size]:
    """How many leading tokens own a position, and the grid; from the configured image size, or else a square."""
    if size and min(pair(size)):
        height, width = pair(size)
        grid = (height // step[0], width // step[1])
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
    width, channels, *_ = arrays.shapes[f"patch_embed.backbone.{stem}conv.weight"]
    units = _units(arrays, r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    trunk = ResNetConfig(form="post", units=units, width=width, channels=channels, classes=0, **_RESNET)  # type: ignore[arg-type]
    return replace(trunk, name=describe_trunk(trunk))


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


def _recognise_bit(arrays: Arrays) -> tuple[ModelConfig, Arrays, list[str]]:
    width, channels, *_ = arrays.shapes["stem.conv.weight"]
    units = _units(arrays, r"stages\.(\d+)\.blocks\.(\d+)\.")
    classes = arrays.shapes["head.fc.weight"][0] if "head.fc.weight" in arrays.shapes else 0
    form = "pre" if "norm.weight" in arrays.shapes else "post"
    config = ResNetConfig(form=form, units=units, width=width, channels=channels, classes=classes, **_RESNET)  # type: ignore[arg-type]
    config = replace(config, name=describe_trunk(config))
    extra = unused(_bit_rules(config), arrays)
    if extra:
        raise VitreousError(f"{arrays.path}: tensor {extra[0]!r} belongs to no BiT ResNet")
    return config, arrays, []


def _bit_rules(config: ResNetConfig) -> list[Rule]:
    out = _trunk_rules(config, "")
    if config.form == "pre":
        out += _pairs("trunk.norm", "norm")
    if config.classes:
        out += [rule("head.weight", "head.fc.weight", TORCH_CONV_AS_LINEAR), rule("head.bias", "head.fc.bias", SAME)]
    return out


# Writing ------------------------------------------------------------------------------------------------------------


def settings_of(config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """timm's config.json for a model, so that `timm.create_model("local-dir:FOLDER")` builds it; and notes."""
    if isinstance(config, ResNetConfig):
        return _resnet_settings(config)
    if config.representation:
        raise VitreousError(
            f"{config.name} has a representation layer, which today's timm has not; load it with classes=... to drop the layer"
        )
    if config.distillation_head or config.distillation_token:
        raise VitreousError("distilled models go to Hugging Face's format (DeiT); timm keeps them in another class")
    if config.mask_token:
        raise VitreousError(f"{config.name} has a mask token, which timm's ViT has not; keep it as a vitreous checkpoint")
    if config.activation not in _ACTIVATIONS.values() or config.norm_eps != 1e-6:
        raise VitreousError(
            f"timm's ViT has a layer-norm epsilon of 1e-6; {config.name} has {config.norm_eps:g}, so its outputs would change"
        )
    if config.mlp_form != "plain":
        raise VitreousError("gated MLPs go to Hugging Face's format; timm needs another class for them")
    if config.pool == "gap" and not config.norm_after_pool and config.class_token:
        raise VitreousError(f"{config.name} pools patches after the norm but has a class token, which timm cannot express")
    ratio = config.mlp / config.width
    ratio = next(r for r in (ratio, math.nextafter(ratio, math.inf)) if int(config.width * r) == config.mlp)
    arguments: dict[str, Any] = dict(
        img_size=list(config.image_size),
        in_chans=config.channels,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=ratio,
        qkv_bias=config.qkv_bias,
        class_token=config.class_token,
        reg_tokens=config.registers,
        no_embed_class=config.position_prefix == 0,
        init_values=config.layer_scale,
        act_layer={ours: theirs for theirs, ours in _ACTIVATIONS.items()}[config.activation],
        pos_embed="learn" if config.positions == "1d" else "none",
        fc_norm=config.norm_after_pool,
    )
    if config.position_prefix not in (0, config.prefix_tokens):
        raise VitreousError("timm gives a position to all leading tokens or to none; this model does so for some")
    architecture, notes = "vit_base_patch16_224", []
    if config.trunk is not None:
        key = (config.trunk.units, config.patch)
        if key not in _HYBRIDS or config.trunk.form != "post" or config.trunk.width != 64:
            raise VitreousError(f"timm has no hybrid with the trunk of {config.name}; it has R, R26 and R50 of width 64")
        architecture = _HYBRIDS[key]
        notes += _numerics_note(config.trunk)
    else:
        arguments["patch_size"] = config.patch[0] if config.patch[0] == config.patch[1] else list(config.patch)
    arguments["global_pool"] = {"token": "token", "gap": "avg"}[config.pool]
    return dict(architecture=architecture, num_features=config.width, model_args=arguments), notes


def _resnet_settings(config: ResNetConfig) -> tuple[dict[str, Any], list[str]]:
    name = describe_trunk(config)
    if config.form != "pre" or name not in _RESNETS:
        raise VitreousError(
            f"timm has no {config.form}-activation ResNet like {config.name}; it has the BiT forms of {', '.join(_RESNETS)}"
        )
    settings = dict(architecture=_RESNETS[name], num_features=config.out_channels, model_args=dict(in_chans=config.channels))
    return settings, _numerics_note(config)


def _numerics_note(config: ResNetConfig) -> list[str]:
    if (config.norm_eps, config.standardise, config.standardise_eps) == tuple(_RESNET.values()):
        return []
    return ["timm runs ResNets with epsilons of its own, so its outputs differ slightly from the authors'"]
