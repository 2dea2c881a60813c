"""Hugging Face's layout of DINOv3: rotary positions, register tokens, keys without a bias, and a gated MLP in some sizes."""

from __future__ import annotations

from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import ViTConfig, parse_size
from vitreous.weights.arrays import Arrays, axes
from vitreous.weights.huggingface_settings import body_settings, read_activation, read_depth, refuse_setting
from vitreous.weights.mapping import Rule, optional, pair, refuse_parts, rule

KIND = "dinov3_vit"
MARK = "embeddings.patch_embeddings.weight"
# Queries, keys, values.
_BIASES = {(True, False, True): (True, False), (True, True, True): (True, True), (False, False, False): (False, True)}


def read_config(arrays: Arrays, settings: dict[str, Any]) -> ViTConfig:
    for part in ("proj_bias", "mlp_bias"):
        if settings.get(part, True) is not True:
            raise refuse_setting(arrays, settings, part, "true")
    biases = tuple(bool(settings.get(f"{part}_bias", part != "key")) for part in ("query", "key", "value"))
    if biases not in _BIASES:
        raise VitreousError(f"{arrays.path}: a DINOv3 with biases {biases} on queries, keys and values is not known")
    qkv_bias, key_bias = _BIASES[biases]
    gated = bool(settings.get("use_gated_mlp", False))
    activation = read_activation(arrays, settings)
    if gated and activation != "silu":
        raise refuse_setting(arrays, settings, "hidden_act", "in a gated MLP only silu")
    return ViTConfig(
        width=int(settings["hidden_size"]),
        depth=read_depth(arrays, settings, r"layer\.(\d+)\."),
        heads=int(settings["num_attention_heads"]),
        mlp=axes(arrays, "layer.0.mlp.up_proj.weight", 2)[0],
        mlp_form="swiglu" if gated else "plain",
        patch=parse_size(settings.get("patch_size", 16)),
        image_size=parse_size(settings.get("image_size", 224)),
        channels=int(settings.get("num_channels", 3)),
        classes=0,
        registers=int(settings.get("num_register_tokens", 0)),
        mask_token="embeddings.mask_token" in arrays.shapes,
        positions="rope",
        position_placement="shared",
        position_prefix=0,
        rope_base=float(settings.get("rope_theta", 100.0)),
        attention_dropout=float(settings.get("attention_dropout", 0.0)),
        stochastic_depth=float(settings.get("drop_path_rate", 0.0)),
        layer_scale=float(settings.get("layerscale_value", 1.0)),
        qkv_bias=qkv_bias,
        key_bias=key_bias,
        norm_eps=float(settings.get("layer_norm_eps", 1e-5)),
        activation=activation,
    )


def refuse_foreign(config: ViTConfig) -> None:
    """Refuse what DINOv3 in transformers cannot express."""
    foreign = {
        "a convolutional trunk": config.trunk is not None,
        "a head, to be kept in timm's format,": config.classes > 0,
        f"pooling by {config.pool!r}": config.pool != "token",
        "a representation layer": config.representation,
        "a distillation token": config.distillation_token,
        "a norm before the first layer": config.embedding_norm,
        "no layer scale": config.layer_scale is None,
        "no register tokens": not config.registers,
        "a norm after pooling": config.norm_after_pool,
        "dropout": config.dropout > 0,
    }
    refuse_parts(config, "Hugging Face's DINOv3", foreign)


def rules(config: ViTConfig) -> list[Rule]:
    gated = config.mlp_form == "swiglu"
    parts = ("gate_proj", "up_proj") if gated else ("up_proj",)
    biased = ("q_proj", "k_proj", "v_proj") if config.key_bias else ("q_proj", "v_proj")
    out = []
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"layer.{i}"
        attention, up = f"{theirs}.attention", [f"{theirs}.mlp.{part}" for part in parts]
        out += optional(
            (True, pair(f"{ours}.norm1", f"{theirs}.norm1") + pair(f"{ours}.norm2", f"{theirs}.norm2")),
            (True, [rule(f"{ours}.attention.qkv.weight", [f"{attention}.{part}_proj.weight" for part in "qkv"])]),
            (config.qkv_bias, [rule(f"{ours}.attention.qkv.bias", [f"{attention}.{part}.bias" for part in biased])]),
            (True, pair(f"{ours}.attention.out", f"{attention}.o_proj")),
            (True, [rule(f"{ours}.mlp.up.{kind}", [f"{part}.{kind}" for part in up]) for kind in ("weight", "bias")]),
            (True, pair(f"{ours}.mlp.down", f"{theirs}.mlp.down_proj")),
            (True, [rule(f"{ours}.scale{k}.gamma", f"{theirs}.layer_scale{k}.lambda1") for k in (1, 2)]),
        )
    return out + optional(
        (True, pair("embedding", "embeddings.patch_embeddings")),
        (True, [rule("class_token", "embeddings.cls_token")]),
        (config.registers, [rule("registers", "embeddings.register_tokens")]),
        (config.mask_token, [rule("mask_token", "embeddings.mask_token")]),
        (True, pair("norm", "norm")),
    )


def to_settings(config: ViTConfig) -> dict[str, Any]:
    gated = config.mlp_form == "swiglu"
    biased = config.qkv_bias
    return body_settings(config, KIND) | dict(
        architectures=["DINOv3ViTModel"],
        intermediate_size=config.mlp,
        use_gated_mlp=gated,
        **({"hidden_act": "silu"} if gated else {}),
        num_register_tokens=config.registers,
        rope_theta=config.rope_base,
        pos_embed_rescale=None,  # a random augmentation of coordinates in training, which is not done here
        query_bias=biased,
        key_bias=biased and config.key_bias,
        value_bias=biased,
        layerscale_value=config.layer_scale,
        attention_dropout=config.attention_dropout,
        drop_path_rate=config.stochastic_depth,
    )
