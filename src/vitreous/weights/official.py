"""The authors' .npz checkpoints: ViTs, hybrids and both forms of BiT ResNets.

The released ViT files come from an old flax that numbered all parts of a block with one counter
(LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3); big_vision's number each kind by itself
(LayerNorm_0, MultiHeadDotProductAttention_0, LayerNorm_1, MlpBlock_0), may hold all layers in one array, and keep
the position table at the top, without a row for the class token. All are read; the released names are written.
"""

from __future__ import annotations

import math
import re
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import ModelConfig, ResNetConfig, Size, ViTConfig, replace_config
from vitreous.models.names import name_resnet, resnet_config
from vitreous.weights import preprocessing
from vitreous.weights.arrays import Arrays, axes, count_layers, count_units, rename_arrays, subtree, view_arrays
from vitreous.weights.checkpoint import Checkpoint, Outputs
from vitreous.weights.mapping import (
    CONV,
    LINEAR,
    ONE_ROW,
    Codec,
    Recognised,
    ResNetNames,
    Rule,
    build_config,
    heads_bias,
    heads_in,
    heads_out,
    optional,
    pair,
    refuse_parts,
    refuse_unused,
    resnet_rules,
    rule,
)

# Names of the parts of a block: attention, second norm, MLP; "released" as in the bucket, "linen" as in big_vision.
_RELEASED = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_LINEN = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_TABLE = "Transformer/posembed_input/pos_embedding"

# Group norm parameters are stored flat or as (1, 1, 1, C).
_NORM_VECTOR = Codec(lambda theirs: theirs.flatten(), lambda ours: ours, ignore_ones=True)


# One array of each layout, by which it is known; the part of its name before this is common to all and dropped.
_BIT_MARK = "resnet/root_block/standardized_conv2d/kernel"
_BIT_PAPER_MARK = "root_block/conv_root/kernel"
_VIT_MARK = "embedding/kernel"
_POST_MARK = "conv_root/kernel"


def recognise(arrays: Arrays) -> Recognised | None:
    """The authors' layout under the released names, or None."""
    inside = released_names(arrays)
    if inside is None:
        return None
    names = arrays.shapes
    notes: list[str] = []
    config: ModelConfig
    if _BIT_MARK in inside.shapes:
        config = _read_bit(inside, big_vision=any(name.endswith(_BIT_PAPER_MARK) for name in names))
    elif _VIT_MARK in inside.shapes:
        linen = any("/MlpBlock_0/" in name and "MAPHead_0" not in name for name in names)
        config, notes = _read_vit(inside, linen, class_row=any("posembed_input" in name for name in names))
    else:
        config = _read_trunk(inside, classes=axes(inside, "head/kernel", 2)[1] if "head/kernel" in inside.shapes else 0)
    # 21,843 and 18,291 classes are ImageNet-21k and JFT: their heads were trained as independent yes-or-no questions.
    outputs: Outputs = "sigmoid" if config.classes in (21_843, 18_291) else "softmax"
    text = preprocessing.official(config.image_size)
    return Recognised(Checkpoint(config, {}, text, None, outputs, "official", notes=tuple(notes)), inside, rules(config))


def released_names(arrays: Arrays) -> Arrays | None:
    """The same arrays under the names of the released files, whichever of the authors' code bases wrote them."""
    if found := subtree(arrays, _BIT_MARK, lambda name: re.sub(r"_\d+/", "/", name)):
        return found
    if found := subtree(arrays, _BIT_PAPER_MARK):
        return rename_arrays(found, {_released_bit(name): name for name in found.shapes})
    for mark in (_VIT_MARK, _POST_MARK):
        if found := subtree(arrays, mark):
            found = _unstack_layers(found)
            return rename_arrays(found, {_released_vit(name): name for name in found.shapes})
    return None


def rules(config: ModelConfig, linen: bool = False) -> list[Rule]:
    """The released names for a config (or big_vision's); refuses what the authors' code has no place for."""
    if isinstance(config, ViTConfig):
        return _vit_rules(config, linen)
    if config.form == "pre":
        return resnet_rules(config, _BIT_NAMES) + (_BIT_HEAD if config.classes else [])
    return resnet_rules(config, _POST_NAMES) + (_dense("head", "head") if config.classes else [])


# ViT and hybrid -----------------------------------------------------------------------------------------------------


def _unstack_layers(arrays: Arrays) -> Arrays:
    """big_vision's scanned models keep all layers in one array, `Transformer/encoderblock/...`, first axis the layer."""
    stacked = "Transformer/encoderblock/"
    if not any(name.startswith(stacked) for name in arrays.shapes):
        return arrays
    make: dict[str, tuple[str, int | None]] = {}
    for name, shape in arrays.shapes.items():
        if name.startswith(stacked):
            for layer in range(shape[0] if shape else 0):
                make[f"Transformer/encoderblock_{layer}/{name.removeprefix(stacked)}"] = (name, layer)
        else:
            make[name] = (name, None)
    return view_arrays(arrays, make)


def _read_vit(arrays: Arrays, linen: bool, class_row: bool) -> tuple[ViTConfig, list[str]]:
    shapes, notes = arrays.shapes, []
    depth = count_layers(arrays, r"Transformer/encoderblock_(\d+)/")
    attention, _, mlp = _RELEASED
    block = "Transformer/encoderblock_0"
    patch_height, patch_width, channels, width = axes(arrays, "embedding/kernel", 4)
    _, heads, _ = axes(arrays, f"{block}/{attention}/query/kernel", 3)
    _, hidden = axes(arrays, f"{block}/{mlp}/Dense_0/kernel", 2)
    class_token = "cls" in shapes
    trunk = _read_trunk(arrays) if "conv_root/kernel" in shapes else None
    fields: dict[str, Any] = dict(
        width=width,
        depth=depth,
        heads=heads,
        mlp=hidden,
        patch=(patch_height, patch_width),
        channels=trunk.channels if trunk else channels,
        classes=axes(arrays, "head/kernel", 2)[1] if "head/kernel" in shapes else 0,
        representation=axes(arrays, "pre_logits/kernel", 2)[1] if "pre_logits/kernel" in shapes else None,
        class_token=class_token,
        pool="map" if "MAPHead_0/probe" in shapes else "token" if class_token else "gap",
    )
    if _TABLE in shapes:
        rows = axes(arrays, _TABLE, 3)[1]
        # In the released files the class token owns the first row; big_vision's table, at the top, is for patches only.
        fields["position_prefix"] = int(class_token and class_row)
        grid = _square(arrays, rows - fields["position_prefix"])
    else:
        fields.update(positions="sincos" if linen else "none", position_prefix=0)
        grid = (224 // patch_height, 224 // patch_width) if trunk is None else (7, 7)
        kind = "fixed sine-cosine positions" if linen else "no positions"
        notes.append(f"no position table in the file: taken as {kind}, for an image of {grid[0]}x{grid[1]} patches")
    stride = trunk.stride if trunk else 1
    config = build_config(trunk, (grid[0] * patch_height * stride, grid[1] * patch_width * stride), fields)
    body = [name for name in shapes if name.split("/")[0] in ("Transformer", "MAPHead_0") or re.match(r"block\d", name)]
    refuse_unused(_vit_rules(config), arrays, "model of the paper", body)
    return config, notes


def _released_vit(name: str) -> str:
    if name == "pos_embedding":
        return _TABLE
    if name.startswith("Transformer/encoderblock_"):
        for new, old in zip(_LINEN, _RELEASED, strict=True):
            name = name.replace(f"/{new}/", f"/{old}/")
    return name


def _vit_rules(config: ViTConfig, linen: bool = False) -> list[Rule]:
    refuse_parts(config, "the official format", _foreign_parts(config))
    attention, norm2, mlp = _LINEN if linen else _RELEASED
    h = config.heads
    out = [rule("embedding.weight", "embedding/kernel", CONV), rule("embedding.bias", "embedding/bias")]
    if config.trunk is not None:
        out += resnet_rules(config.trunk, _POST_NAMES)
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        out += _norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        qkv = [f"{theirs}/{attention}/{part}" for part in ("query", "key", "value")]
        out += [
            rule(f"{ours}.attention.qkv.weight", [f"{part}/kernel" for part in qkv], heads_in(h)),
            rule(f"{ours}.attention.qkv.bias", [f"{part}/bias" for part in qkv], heads_bias(h)),
            rule(f"{ours}.attention.out.weight", f"{theirs}/{attention}/out/kernel", heads_out(h)),
            rule(f"{ours}.attention.out.bias", f"{theirs}/{attention}/out/bias"),
        ]
        out += _norm(f"{ours}.norm2", f"{theirs}/{norm2}")
        out += _dense(f"{ours}.mlp.up", f"{theirs}/{mlp}/Dense_0") + _dense(f"{ours}.mlp.down", f"{theirs}/{mlp}/Dense_1")
    return out + optional(
        (config.class_token, [rule("class_token", "cls")]),
        (config.positions == "1d", [rule("positions.0.table", _TABLE, ONE_ROW)]),
        (True, _norm("norm", "Transformer/encoder_norm")),
        (config.pool == "map", _map_rules(h)),
        (config.representation, _dense("representation", "pre_logits")),
        (config.classes, _dense("head", "head")),
    )


def _map_rules(heads: int) -> list[Rule]:
    theirs = "MAPHead_0"
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    key_value = [f"{attention}/key", f"{attention}/value"]
    return [
        rule("pool.probe", f"{theirs}/probe"),
        rule("pool.query.weight", f"{attention}/query/kernel", heads_in(heads)),
        rule("pool.query.bias", f"{attention}/query/bias", heads_bias(heads)),
        rule("pool.key_value.weight", [f"{part}/kernel" for part in key_value], heads_in(heads)),
        rule("pool.key_value.bias", [f"{part}/bias" for part in key_value], heads_bias(heads)),
        rule("pool.out.weight", f"{attention}/out/kernel", heads_out(heads)),
        rule("pool.out.bias", f"{attention}/out/bias"),
        *_norm("pool.norm", f"{theirs}/LayerNorm_0"),
        *_dense("pool.mlp.up", f"{theirs}/MlpBlock_0/Dense_0"),
        *_dense("pool.mlp.down", f"{theirs}/MlpBlock_0/Dense_1"),
    ]


def _foreign_parts(config: ViTConfig) -> dict[str, bool]:
    return {
        "layer scale": config.layer_scale is not None,
        "register tokens": config.registers > 0,
        "a distillation token": config.distillation_token,
        "a mask token": config.mask_token,
        "a gated MLP": config.mlp_form != "plain",
        "a norm after pooling": config.norm_after_pool,
        "axial attention": config.attention != "full",
        f"{config.positions} positions": config.positions not in ("1d", "none", "sincos"),
        f"positions in {config.position_placement} layers": config.position_placement != "stem",
        "q, k and v without bias": not config.qkv_bias,
        "keys without a bias": not config.key_bias,
        "a norm before the first layer": config.embedding_norm,
        f"pooling by {config.pool!r} with a class token": config.pool == "gap" and config.class_token,
        f"pooling by {config.pool!r}": config.pool == "token+mean",
    }


def _norm(ours: str, theirs: str) -> list[Rule]:
    return pair(ours, theirs, names=("/scale", "/bias"))


def _dense(ours: str, theirs: str) -> list[Rule]:
    return pair(ours, theirs, LINEAR, ("/kernel", "/bias"))


def _square(arrays: Arrays, patches: int) -> Size:
    side = math.isqrt(max(0, patches))
    if side * side != patches or side == 0:
        raise VitreousError(
            f"{arrays.path}: {patches} positions do not form a square; for another shape put the .json that "
            f"`vitreous convert` writes beside the file"
        )
    return side, side


# ResNets ------------------------------------------------------------------------------------------------------------


_UNIT = r"block(\d+)/unit(\d+)/"


def _read_trunk(arrays: Arrays, classes: int = 0) -> ResNetConfig:
    """The trunk of a hybrid, or a whole post-activation ResNet, from its arrays."""
    _, _, channels, width = axes(arrays, "conv_root/kernel", 4)
    units = count_units(arrays, _UNIT, first=1)
    return _named(resnet_config("R", "post", units=units, width=width, channels=channels, classes=classes))


def _read_bit(arrays: Arrays, big_vision: bool) -> ResNetConfig:
    _, _, channels, width = axes(arrays, _BIT_MARK, 4)
    units = count_units(arrays, _UNIT, first=1)
    head = f"{_BIT}head/conv2d/kernel"
    classes = axes(arrays, head, 2 if big_vision else 4)[-1] if head in arrays.shapes else 0
    padding = "-inf" if big_vision else "zero"
    return _named(resnet_config("R", "pre", units=units, width=width, channels=channels, classes=classes, root_padding=padding))


def _named(config: ResNetConfig) -> ResNetConfig:
    named: ResNetConfig = replace_config(config, name=name_resnet(config))
    return named


def _group_norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/{scale}", _NORM_VECTOR), rule(f"{ours}.bias", f"{theirs}/{bias}", _NORM_VECTOR)]


_POST_NAMES = ResNetNames(
    root="conv_root/kernel",
    root_norm="gn_root",
    unit="block{stage}/unit{unit}/",
    convolutions=("conv1/kernel", "conv2/kernel", "conv3/kernel"),
    norms=("gn1", "gn2", "gn3"),
    shortcut="conv_proj/kernel",
    shortcut_norm="gn_proj",
    first=1,
    codec=CONV,
    norm=_group_norm,
)

_BIT = "resnet/"
_BIT_NAMES = ResNetNames(
    root=_BIT_MARK,
    unit=_BIT + "block{stage}/unit{unit:02d}/",
    convolutions=("a/standardized_conv2d/kernel", "b/standardized_conv2d/kernel", "c/standardized_conv2d/kernel"),
    norms=("a/group_norm", "b/group_norm", "c/group_norm"),
    shortcut="a/proj/standardized_conv2d/kernel",
    last_norm=f"{_BIT}group_norm",
    first=1,
    codec=CONV,
    norm=lambda ours, theirs: _group_norm(ours, theirs, "gamma", "beta"),
)
_BIT_HEAD = pair(
    "head",
    f"{_BIT}head/conv2d",
    Codec(lambda theirs: theirs.reshape(theirs.shape[-2:]).T, lambda ours: ours.T[None, None], ignore_ones=True),
    ("/kernel", "/bias"),
)


def _released_bit(name: str) -> str:
    """A name of big_vision's copy of the BiT paper's model (bit_paper.py), as in the released files."""
    if match := re.fullmatch(r"(block\d+/unit\d+)/(conv|gn)(_proj|\d)/(kernel|scale|bias)", name):
        part = "a/proj" if match[3] == "_proj" else "abc"[int(match[3]) - 1]
        array = {"kernel": "standardized_conv2d/kernel", "scale": "group_norm/gamma", "bias": "group_norm/beta"}[match[4]]
        return f"{_BIT}{match[1]}/{part}/{array}"
    return {
        _BIT_PAPER_MARK: _BIT_MARK,
        "norm-pre-head/scale": f"{_BIT}group_norm/gamma",
        "norm-pre-head/bias": f"{_BIT}group_norm/beta",
        "head/kernel": f"{_BIT}head/conv2d/kernel",
        "head/bias": f"{_BIT}head/conv2d/bias",
    }.get(name, name)
