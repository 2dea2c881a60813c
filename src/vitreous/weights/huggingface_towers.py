"""Hugging Face's layout of the vision towers of CLIP and SigLIP, alone or in a file with their text towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.models.config import ViTConfig, parse_size
from vitreous.weights.arrays import Arrays, axes
from vitreous.weights.huggingface_settings import body_settings, read_activation, read_depth
from vitreous.weights.mapping import Codec, Rule, optional, pair, refuse_parts, rule

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
KINDS = (CLIP, SIGLIP, "clip", "siglip")
MARK = "embeddings.patch_embedding.weight"
_FLAT_TOKEN = Codec(lambda theirs: theirs[None, None], lambda ours: ours[0, 0])
# torch's MultiheadAttention stacks q, k and v; the pooling here has queries of its own. Names of parts, not in any file.
_STACKED, _QUERY, _KEY_VALUE = "head.attention.in_proj_", ".query", ".key_value"


def read_config(arrays: Arrays, settings: dict[str, Any], kind: str) -> ViTConfig:
    """What config.json leaves out is the default of transformers' class."""
    if "classifier.weight" in arrays.shapes:
        raise VitreousError(
            f"{arrays.path}: transformers' classifiers on CLIP and SigLIP pool by another way than the towers, which is not "
            "known here; delete 'classifier.weight' and 'classifier.bias' from the file to read the tower"
        )
    clip = kind.startswith("clip")
    vision = settings.get("vision_config", settings)  # of both towers, or of this one alone
    return ViTConfig(
        width=int(vision.get("hidden_size", 768)),
        depth=read_depth(arrays, vision, r"encoder\.layers\.(\d+)\.", default=12),
        heads=int(vision.get("num_attention_heads", 12)),
        mlp=axes(arrays, "encoder.layers.0.mlp.fc1.weight", 2)[0],
        patch=parse_size(vision.get("patch_size", 32 if clip else 16)),
        image_size=parse_size(vision.get("image_size", 224)),
        channels=int(vision.get("num_channels", 3)),
        classes=0,
        pool="token" if clip else "map",
        class_token=clip,
        position_prefix=int(clip),
        position_resize="bicubic",
        embedding_norm=clip,
        attention_dropout=float(vision.get("attention_dropout", 0.0)),
        norm_eps=float(vision.get("layer_norm_eps", 1e-5 if clip else 1e-6)),
        activation=read_activation(arrays, vision, "quick_gelu" if clip else "gelu_pytorch_tanh"),
    )


def split_pooling(arrays: Arrays) -> Arrays:
    """Without the numbers of positions, which old files hold; and with q of SigLIP's pooling apart from k and v."""
    parts: dict[str, tuple[str, int, int]] = {}
    for name, (rows, *_) in ((name, shape) for name, shape in arrays.shapes.items() if name.startswith(_STACKED) and shape):
        parts |= {name + _QUERY: (name, 0, rows // 3), name + _KEY_VALUE: (name, rows // 3, rows)}
    left_out = {name for name, _, _ in parts.values()} | {"embeddings.position_ids"}
    shapes = {name: shape for name, shape in arrays.shapes.items() if name not in left_out}
    shapes |= {part: (end - start, *arrays.shapes[name][1:]) for part, (name, start, end) in parts.items()}

    def read(name: str) -> Tensor:
        whole, start, end = parts.get(name, (name, 0, -1))
        return arrays[whole][start:end].clone() if name in parts else arrays[name]

    return Arrays(arrays.path, shapes, read, lambda name: arrays.in_file(parts.get(name, (name,))[0]))


def join_pooling(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `split_pooling`, under the names of a file."""
    out = {name: array for name, array in arrays.items() if not name.startswith(_STACKED)}
    for name in (name.removesuffix(_QUERY) for name in arrays if name.endswith(_QUERY)):
        out[name] = torch.cat([arrays[name + _QUERY], arrays[name + _KEY_VALUE]])
    return out


def refuse_foreign(config: ViTConfig) -> None:
    """Refuse what the vision towers of transformers cannot express."""
    clip = config.embedding_norm
    foreign = {
        "a convolutional trunk": config.trunk is not None,
        "a head": config.classes > 0,
        f"pooling by {config.pool!r}": config.pool != ("token" if clip else "map"),
        "a class token": config.class_token and not clip,
        f"{config.positions} positions": config.positions != "1d" or config.position_placement != "stem",
        "a position table that leaves out leading tokens": config.position_prefix != int(clip),
        "register, mask or distillation tokens": config.registers or config.mask_token or config.distillation_token,
        "a representation layer": config.representation,
        "axial attention": config.attention != "full",
        "layer scale": config.layer_scale is not None,
        "a gated MLP": config.mlp_form != "plain",
        "q, k or v without bias": not (config.qkv_bias and config.key_bias),
        "a norm after pooling": config.norm_after_pool,
        "dropout": config.dropout > 0 or config.stochastic_depth > 0,
        "images or patches that are not square": len({*config.image_size}) > 1 or len({*config.patch}) > 1,
    }
    refuse_parts(config, f"Hugging Face's {'CLIP' if clip else 'SigLIP'}", foreign)


def rules(config: ViTConfig) -> list[Rule]:
    clip = config.embedding_norm
    out = []
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"encoder.layers.{i}"
        qkv = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        for k in (1, 2):
            out += pair(f"{ours}.norm{k}", f"{theirs}.layer_norm{k}")
        out += [rule(f"{ours}.attention.qkv.{kind}", [f"{part}.{kind}" for part in qkv]) for kind in ("weight", "bias")]
        out += pair(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
        out += pair(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + pair(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    stacked = (f"{_STACKED}weight", f"{_STACKED}bias")
    return out + optional(
        (True, [rule("embedding.weight", MARK), rule("positions.0.table", "embeddings.position_embedding.weight")]),
        (True, pair("norm", "post_layernorm")),
        (clip, [rule("class_token", "embeddings.class_embedding", _FLAT_TOKEN)]),
        (clip, pair("embedding_norm", "pre_layrnorm")),  # so it is spelt
        (not clip, [rule("embedding.bias", "embeddings.patch_embedding.bias"), rule("pool.probe", "head.probe")]),
        (not clip, [rule(f"pool.query.{name.rsplit('_')[-1]}", name + _QUERY) for name in stacked]),
        (not clip, [rule(f"pool.key_value.{name.rsplit('_')[-1]}", name + _KEY_VALUE) for name in stacked]),
        (not clip, pair("pool.out", "head.attention.out_proj") + pair("pool.norm", "head.layernorm")),
        (not clip, pair("pool.mlp.up", "head.mlp.fc1") + pair("pool.mlp.down", "head.mlp.fc2")),
    )


def to_settings(config: ViTConfig, kind: str) -> dict[str, Any]:
    return body_settings(config, kind) | dict(
        architectures=["CLIPVisionModel" if kind == CLIP else "SiglipVisionModel"],
        intermediate_size=config.mlp,
        attention_dropout=config.attention_dropout,
    )
