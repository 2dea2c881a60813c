"""What the config.json files of all Hugging Face models have in common: sizes, activations, class names."""

from __future__ import annotations

import re
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.models.config import Activation, Size, ViTConfig
from vitreous.weights.arrays import Arrays, count_layers

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu-erf",
    "gelu_python": "gelu-erf",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def refuse_setting(arrays: Arrays, settings: dict[str, Any], field: str, known: str) -> VitreousError:
    """The error for a field of config.json that asks for what this program does not have."""
    return VitreousError(f"{arrays.path.parent / 'config.json'}: {field} {settings.get(field)!r} is not known; {known} is")


def read_activation(arrays: Arrays, settings: dict[str, Any], default: str = "gelu") -> Activation:
    name = str(settings.get("hidden_act", default))
    if name not in _ACTIVATIONS:
        raise VitreousError(f"{arrays.path.parent / 'config.json'}: hidden_act {name!r} is not known")
    return _ACTIVATIONS[name]


def read_depth(arrays: Arrays, settings: dict[str, Any], pattern: str, default: int | None = None) -> int:
    """The number of layers, which the file and its config.json have to agree on."""
    depth = count_layers(arrays, pattern)
    said = settings["num_hidden_layers"] if default is None else settings.get("num_hidden_layers", default)
    if depth != said:
        raise VitreousError(f"{arrays.path}: holds {depth} layers, but config.json speaks of {said}")
    return depth


def body_settings(config: ViTConfig, kind: str) -> dict[str, Any]:
    """The fields that every model of transformers calls alike."""
    names = {value: key for key, value in reversed(_ACTIVATIONS.items())}
    return dict(
        model_type=kind,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        image_size=_one_or_two(config.image_size),
        patch_size=_one_or_two(config.patch),
        num_channels=config.channels,
        hidden_act=names[config.activation],
        layer_norm_eps=config.norm_eps,
    )


def _one_or_two(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def label_settings(config: ViTConfig, classes: tuple[str, ...] | None) -> dict[str, Any]:
    if not config.classes:
        return {}
    labels = classes or tuple(f"LABEL_{i}" for i in range(config.classes))
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }


def class_names(settings: dict[str, Any], classes: int) -> tuple[str, ...] | None:
    """Names from id2label, unless they are only numbered."""
    labels = settings.get("id2label")
    if not isinstance(labels, dict) or len(labels) != classes:
        return None
    names = tuple(str(labels.get(str(i), labels.get(i))) for i in range(classes))
    return None if all(re.fullmatch(r"LABEL_\d+|None", name) for name in names) else names
