"""Hugging Face checkpoints: ViT, DeiT, DINOv2 (with registers or without) and MAE, and which other layout a file has.

The names on disk are those of the hub (`encoder.layer.0.attention.attention.query`). The newest transformers
use shorter ones in memory, which are understood too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.models.config import ModelConfig, ResNetConfig, ViTConfig, parse_size, replace_config
from vitreous.models.names import name_vit
from vitreous.weights import huggingface_dinov3 as dinov3
from vitreous.weights import huggingface_towers as towers
from vitreous.weights import preprocessing
from vitreous.weights.arrays import Arrays, axes, rename_arrays, roots_of
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.huggingface_settings import (
    body_settings,
    class_names,
    label_settings,
    read_activation,
    read_depth,
    refuse_setting,
)
from vitreous.weights.mapping import (
    ADD_ROW,
    ONE_ROW,
    SAME,
    Recognised,
    Rule,
    optional,
    pair,
    refuse_parts,
    refuse_unused,
    rule,
    write_arrays,
)

_MARK = "embeddings.patch_embeddings.projection.weight"
# The patch embedding, by which each layout is known, and the model types that have it.
_LAYOUTS = {
    _MARK: ("vit", "deit", "vit_mae", "dinov2", "dinov2_with_registers"),
    dinov3.MARK: (dinov3.KIND,),
    towers.MARK: towers.KINDS,
}
# Names in the memory of transformers 5, and the same on disk.
_IN_MEMORY = (
    (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"^layers\.(\d+)\.", r"encoder.layer.\1."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
_HEADS = ("classifier", "cls_classifier", "distillation_classifier")


def recognise(arrays: Arrays, settings: dict[str, Any], preprocessor: dict[str, Any]) -> Recognised | None:
    """The names on disk without their first word, or None. The others are the .json files beside it, or empty."""
    found = [(root, kinds) for mark, kinds in _LAYOUTS.items() for root in roots_of(arrays, mark)]
    if not found:
        return None
    root, kinds = found[0]
    if not settings:
        raise VitreousError(
            f"{arrays.path}: a Hugging Face model needs its config.json beside it, for the number of heads and more"
        )
    kind = str(settings.get("model_type"))
    if kind not in kinds:
        raise VitreousError(
            f"{arrays.path}: model_type {kind!r} in config.json is not known for such arrays; known are {', '.join(kinds)}"
        )
    clean = {}
    for name, shape in arrays.shapes.items():
        inside = name.removeprefix(root)
        # An array without numbers, such as no registers, says nothing.
        if (name.startswith(root) or name.split(".")[0] in _HEADS) and 0 not in shape:
            for pattern, replacement in _IN_MEMORY if kind in _LAYOUTS[_MARK] else ():
                inside = re.sub(pattern, replacement, inside)
            clean[inside] = name
    arrays = rename_arrays(arrays, clean)
    try:
        if kind in towers.KINDS:
            arrays = towers.split_pooling(arrays)
            kind = kind if kind in (towers.CLIP, towers.SIGLIP) else f"{kind}_vision_model"
            config = towers.read_config(arrays, settings, kind)
        else:
            config = dinov3.read_config(arrays, settings) if kind == dinov3.KIND else _config(arrays, settings, kind)
    except (KeyError, TypeError, ValueError) as error:
        raise VitreousError(f"{arrays.path.parent / 'config.json'}: field {error} is missing or has the wrong form") from error
    config = replace_config(config, name=name_vit(config))
    refuse_unused(rules(config, kind), arrays, f"{kind} model")
    known = preprocessing.huggingface(preprocessor)
    checkpoint = Checkpoint(
        config,
        {},
        known or preprocessing.huggingface_guess(kind, config.image_size),
        class_names(settings, config.classes),
        "sigmoid" if settings.get("problem_type") == "multi_label_classification" else "softmax",
        "huggingface",
        preprocess_guessed=not known,
    )
    return Recognised(checkpoint, arrays, rules(config, kind))


def _config(arrays: Arrays, settings: dict[str, Any], kind: str) -> ViTConfig:
    shapes = arrays.shapes
    dino = kind.startswith("dinov2")
    gated = bool(settings.get("use_swiglu_ffn", False))
    width = int(settings["hidden_size"])
    middle = "encoder.layer.0.mlp.weights_out.weight" if gated else "encoder.layer.0.mlp.fc1.weight"
    if not dino:
        middle = "encoder.layer.0.intermediate.dense.weight"
    hidden = axes(arrays, middle, 2)[1 if gated else 0]
    heads = [name for name in _HEADS if f"{name}.weight" in shapes]
    pooler = "pooler.dense.weight"
    if pooler in shapes and settings.get("pooler_act", "tanh") != "tanh":
        raise refuse_setting(arrays, settings, "pooler_act", "tanh")
    if heads and pooler in shapes:
        raise VitreousError(f"{arrays.path}: has both a pooler and a classifier, which no class of transformers combines")
    return ViTConfig(
        width=width,
        depth=read_depth(arrays, settings, r"encoder\.layer\.(\d+)\."),
        heads=int(settings["num_attention_heads"]),
        mlp=hidden,
        mlp_form="swiglu" if gated else "plain",
        patch=parse_size(settings["patch_size"]),
        image_size=parse_size(settings["image_size"]),
        channels=int(settings.get("num_channels", 3)),
        classes=shapes[f"{heads[0]}.weight"][0] if heads else 0,
        representation=shapes[pooler][0] if pooler in shapes else None,
        pool="token+mean" if dino and heads else "token",
        distillation_token=kind == "deit",
        distillation_head="distillation_classifier.weight" in shapes,
        registers=int(settings.get("num_register_tokens", 0)) if kind == "dinov2_with_registers" else 0,
        mask_token="embeddings.mask_token" in shapes,
        position_prefix=2 if kind == "deit" else 1,
        position_resize="bicubic-antialias" if kind == "dinov2_with_registers" else "bicubic",  # as each class does
        dropout=float(settings.get("hidden_dropout_prob", 0.0)),
        attention_dropout=float(settings.get("attention_probs_dropout_prob", 0.0)),
        stochastic_depth=float(settings.get("drop_path_rate", 0.0)),
        layer_scale=float(settings.get("layerscale_value", 1.0)) if dino else None,
        qkv_bias=bool(settings.get("qkv_bias", True)),
        norm_eps=float(settings.get("layer_norm_eps", 1e-6 if dino else 1e-12)),
        activation=read_activation(arrays, settings),
    )


def find_kind(config: ModelConfig) -> str:
    """Which of the Hugging Face models a config is; refuses what none of them can express."""
    if isinstance(config, ResNetConfig):
        raise VitreousError(
            f"{config.name}: Hugging Face's format is written for ViT, DeiT and DINOv2; write ResNets as official .npz or timm"
        )
    if config.positions == "rope":
        dinov3.refuse_foreign(config)
        return dinov3.KIND
    if config.embedding_norm or config.pool == "map":
        towers.refuse_foreign(config)
        return towers.CLIP if config.embedding_norm else towers.SIGLIP
    if config.distillation_token:
        kind = "deit"
    elif config.layer_scale is not None:
        kind = "dinov2_with_registers" if config.registers else "dinov2"
    else:
        kind = "vit"
    dino = kind.startswith("dinov2")
    owned = 2 if kind == "deit" else 1
    foreign = {
        "a convolutional trunk": config.trunk is not None,
        f"pooling by {config.pool!r}": config.pool != ("token+mean" if dino and config.classes else "token"),
        "a representation layer": bool(config.representation) and (dino or config.classes > 0),
        f"{config.positions} positions": config.positions != "1d" or config.position_placement != "stem",
        "a position table that leaves out leading tokens": config.position_prefix != owned,
        "axial attention": config.attention != "full",
        "register tokens without layer scale": config.registers > 0 and not kind.endswith("registers"),
        "a gated MLP without layer scale": config.mlp_form != "plain" and not dino,
        "a norm after pooling": config.norm_after_pool,
        "keys without a bias": not config.key_bias,
        f"an MLP of {config.mlp}": dino and config.mlp_form == "plain" and config.mlp % config.width != 0,
        f"a gated MLP of {config.mlp}": dino and config.mlp_form == "swiglu" and _gated_ratio(config) is None,
    }
    refuse_parts(config, f"Hugging Face's {kind} model", foreign)
    return kind


def _gated_ratio(config: ViTConfig) -> int | None:
    """The mlp_ratio from which transformers computes the gated size: two thirds, rounded up to a multiple of 8."""
    for ratio in range(1, 33):
        if (int(int(config.width * ratio) * 2 / 3) + 7) // 8 * 8 == config.mlp:
            return ratio
    return None


def to_arrays(config: ViTConfig, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a file: a tower, or a model with a classifier, keeps its body under a word of its own."""
    arrays = write_arrays(rules(config, kind), tensors)
    root = f"{kind}." if config.classes else ""
    if kind in towers.KINDS:
        arrays, root = towers.join_pooling(arrays), "vision_model."
    return {name if name.split(".")[0] in _HEADS else root + name: array for name, array in arrays.items()}


def rules(config: ViTConfig, kind: str) -> list[Rule]:
    if kind in towers.KINDS:
        return towers.rules(config)
    if kind == dinov3.KIND:
        return dinov3.rules(config)
    dino = kind.startswith("dinov2")
    plain = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
    up, down = ("mlp.weights_in", "mlp.weights_out") if config.mlp_form == "swiglu" else plain
    out = []
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"encoder.layer.{i}"
        qkv = [f"{theirs}.attention.attention.{part}" for part in ("query", "key", "value")]
        out += optional(
            (True, pair(f"{ours}.norm1", f"{theirs}.{'norm1' if dino else 'layernorm_before'}")),
            (True, pair(f"{ours}.norm2", f"{theirs}.{'norm2' if dino else 'layernorm_after'}")),
            (True, [rule(f"{ours}.attention.qkv.weight", [f"{part}.weight" for part in qkv])]),
            (config.qkv_bias, [rule(f"{ours}.attention.qkv.bias", [f"{part}.bias" for part in qkv])]),
            (True, pair(f"{ours}.attention.out", f"{theirs}.attention.output.dense")),
            (True, pair(f"{ours}.mlp.up", f"{theirs}.{up}") + pair(f"{ours}.mlp.down", f"{theirs}.{down}")),
            (dino, [rule(f"{ours}.scale{k}.gamma", f"{theirs}.layer_scale{k}.lambda1") for k in (1, 2)]),
        )
    return out + optional(
        (True, pair("embedding", "embeddings.patch_embeddings.projection")),
        (True, [rule("class_token", "embeddings.cls_token")]),
        (config.distillation_token, [rule("distillation_token", "embeddings.distillation_token")]),
        (config.registers, [rule("registers", "embeddings.register_tokens")]),
        (config.mask_token, [rule("mask_token", "embeddings.mask_token", ADD_ROW if dino else SAME)]),
        (True, [rule("positions.0.table", "embeddings.position_embeddings", ONE_ROW)]),
        (True, pair("norm", "layernorm")),
        (config.representation, pair("representation", "pooler.dense")),
        (config.classes, pair("head", "cls_classifier" if config.distillation_head else "classifier")),
        (config.distillation_head, pair("distillation_head", "distillation_classifier")),
    )


def to_settings(config: ViTConfig, classes: tuple[str, ...] | None) -> dict[str, Any]:
    """The config.json from which transformers rebuilds this model."""
    kind = find_kind(config)
    if kind in towers.KINDS:
        return towers.to_settings(config, kind)
    if kind == dinov3.KIND:
        return dinov3.to_settings(config)
    dino = kind.startswith("dinov2")
    body = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    task = "ForImageClassificationWithTeacher" if config.distillation_head else "ForImageClassification"
    out = body_settings(config, kind) | dict(
        architectures=[body + (task if config.classes else "Model")],
        qkv_bias=config.qkv_bias,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
    )
    if dino:
        gated = config.mlp_form == "swiglu"
        out.update(
            mlp_ratio=_gated_ratio(config) if gated else config.mlp // config.width,
            use_swiglu_ffn=gated,
            layerscale_value=config.layer_scale,
            drop_path_rate=config.stochastic_depth,
            use_mask_token=config.mask_token,
        )
        out |= {"num_register_tokens": config.registers} if config.registers else {}
    else:
        out["intermediate_size"] = config.mlp
        out |= {"pooler_output_size": config.representation, "pooler_act": "tanh"} if config.representation else {}
    return out | label_settings(config, classes)
