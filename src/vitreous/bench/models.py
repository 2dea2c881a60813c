"""The same weights for every library: written once by the parent, loaded by each contender in its own way."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import VitreousError

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.weights.checkpoint import Checkpoint

PEERS = ("timm", "transformers", "torchvision", "onnxruntime", "openvino")
IMAGES, LABELS, CHECKPOINT, PHOTOGRAPHS = "images.pt", "labels.pt", "vitreous", "photographs"
_TORCHVISION = "torchvision.pt"
_HUB = {"timm": "timm", "transformers": "huggingface"}


def check_peers(names: tuple[str, ...]) -> None:
    """Refuse a peer that is not known or not installed, with the line to type."""
    for name in names:
        if name not in PEERS:
            raise VitreousError(f"--against {name}: must be one of {', '.join(PEERS)}")
        if not is_installed(name):
            raise VitreousError(f"--against {name}: it is not installed; pip install {name}")


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# Writing ------------------------------------------------------------------------------------------------------------------


def write_weights(checkpoint: Checkpoint, libraries: tuple[str, ...], folder: Path) -> dict[str, str]:
    """The checkpoint in the form of each library, and why some have none."""
    import torch

    from vitreous.weights.write import save_checkpoint

    save_checkpoint(checkpoint, folder / CHECKPOINT, "vitreous")
    faults = {}
    for library in libraries:
        try:
            if library in _HUB:
                save_checkpoint(checkpoint, folder / library, _HUB[library])  # type: ignore[arg-type]
            elif library == "torchvision":
                torch.save(_to_torchvision(checkpoint), folder / _TORCHVISION)
        except VitreousError as error:
            faults[library] = str(error)
    return faults


_RENAMED = {  # ours: torchvision's
    r"embedding\.": "conv_proj.",
    r"positions\.0\.table": "encoder.pos_embedding",
    r"blocks\.(\d+)\.norm1\.": r"encoder.layers.encoder_layer_\1.ln_1.",
    r"blocks\.(\d+)\.attention\.qkv\.": r"encoder.layers.encoder_layer_\1.self_attention.in_proj_",
    r"blocks\.(\d+)\.attention\.out\.": r"encoder.layers.encoder_layer_\1.self_attention.out_proj.",
    r"blocks\.(\d+)\.norm2\.": r"encoder.layers.encoder_layer_\1.ln_2.",
    r"blocks\.(\d+)\.mlp\.up\.": r"encoder.layers.encoder_layer_\1.mlp.0.",
    r"blocks\.(\d+)\.mlp\.down\.": r"encoder.layers.encoder_layer_\1.mlp.3.",
    r"norm\.": "encoder.ln.",
    r"head\.": "heads.head.",
    r"class_token": "class_token",
}


def _to_torchvision(checkpoint: Checkpoint) -> dict[str, Any]:
    """Arguments and state of torchvision's VisionTransformer; refuses parts that it does not have."""
    from vitreous.models.config import ViTConfig

    config, state = checkpoint.config, {}
    if not isinstance(config, ViTConfig) or config.pool != "token":
        raise VitreousError("torchvision's VisionTransformer reads the class token only")
    for name, tensor in checkpoint.tensors.items():
        ours = next((pattern for pattern in _RENAMED if re.match(pattern, name)), None)
        if ours is None:
            raise VitreousError(f"torchvision's VisionTransformer has no {name}")
        state[re.sub(f"^{ours}", _RENAMED[ours], name)] = tensor[None] if name == "positions.0.table" else tensor
    shape = dict(
        image_size=config.image_size[0], patch_size=config.patch[0], num_layers=config.depth, num_heads=config.heads,
        hidden_dim=config.width, mlp_dim=config.mlp, num_classes=config.classes,
    )  # fmt: skip
    return dict(shape=shape, norm_eps=config.norm_eps, activation=config.activation, state=state)


# Loading ------------------------------------------------------------------------------------------------------------------


def load_peer(library: str, folder: Path) -> tuple[Any, Callable[[Any], Tensor]]:
    """A module with the weights, and how logits are read from what it returns."""
    from vitreous.bench.torchvision_import import declare_torchvision

    declare_torchvision()
    if library == "timm":
        import timm

        return timm.create_model(f"local-dir:{folder / library}", pretrained=True), lambda out: out
    if library == "transformers":
        import transformers

        return transformers.AutoModelForImageClassification.from_pretrained(folder / library), lambda out: out.logits
    return _load_torchvision(folder / _TORCHVISION), lambda out: out


def _load_torchvision(path: Path) -> Any:
    from functools import partial

    import torch
    from torchvision.models import VisionTransformer

    about = torch.load(path, weights_only=True)
    model = VisionTransformer(**about["shape"], norm_layer=partial(torch.nn.LayerNorm, eps=about["norm_eps"]))
    model.load_state_dict(about["state"])
    if about["activation"] == "gelu-tanh":
        for layer in model.encoder.layers:
            layer.mlp[1] = torch.nn.GELU(approximate="tanh")
    return model
