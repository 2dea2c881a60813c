"""The model card of an exported checkpoint: architecture, origin, preprocessing and licence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.models.config import ResNetConfig
from vitreous.weights.checkpoint import CARD_MARK, Checkpoint


def format_card(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    height, width = config.image_size
    rows = [
        ("architecture", config.name),
        ("parameters", f"{parameters:,}"),
        ("input", f"{config.channels} x {height} x {width}"),
        ("classes", f"{config.classes:,}" if config.classes else "none: gives features"),
        ("preprocessing", f"`{checkpoint.preprocess}`".replace("|", "\\|")),  # a bar would end the table's cell
        ("outputs", f"{checkpoint.outputs} of the logits"),
        *([("head", _head(checkpoint.head))] if checkpoint.head else []),
        ("numerics", _numerics(checkpoint)),
        ("origin", _origin(checkpoint.parent)),
        ("licence", checkpoint.licence or "not stated by the source: ask its owner before sharing"),
    ]
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    metrics = "".join(f"\n- {name}: {value}" for name, value in checkpoint.metrics.items())
    licence = f"---\nlicense: {checkpoint.licence.lower()}\n---\n" if checkpoint.licence else ""
    measured = f"\n## Measured\n{metrics}\n" if metrics else ""
    return f"{licence}# {config.name}\n\n| | |\n| --- | --- |\n{table}\n{measured}\n{CARD_MARK}.\n"


def _head(head: Mapping[str, Any]) -> str:
    return f"{head.get('fit')} in closed form, l2 {head.get('l2')}; probabilities calibrated by {head.get('calibration')}"


def _numerics(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    if isinstance(config, ResNetConfig):
        return f"group-norm epsilon {config.norm_eps:g}, kernels over {config.standardise} with {config.standardise_eps:g}"
    return f"layer-norm epsilon {config.norm_eps:g}, {config.activation}, positions resized {config.position_resize}"


def _origin(parent: Any) -> str:
    names = []
    while parent:
        names.append(f"`{parent.get('source', '?')}` (sha256 {str(parent.get('sha256', '?'))[:12]})")
        parent = parent.get("parent")
    return ", from ".join(names) or "made from scratch"
