"""What travels with the weights, inside an exported file: the fields of model.json as text, one entry each.

In an .onnx file they are `metadata_props`, in an .xml file `rt_info` under `vitreous`. Words stand as they are (so that other
programs find `preprocess` and `outputs` at once), everything else as JSON.

| key | what |
| --- | --- |
| `format`, `version` | whose file it is |
| `preprocess` | how images become the input: `resize(256)|central_crop(224)|range(-1,1)` |
| `evaluation_size` | height and width of the input; `dynamic_size`: whether others are taken |
| `classes` | names in the order of the logits, or null |
| `outputs` | softmax or sigmoid: how logits become probabilities |
| `precision` | float32 or int8 |
| `metrics` | the accuracy to expect, as the checkpoint was measured; of int8, measured after quantisation |
| `architecture`, `numerics`, `parent`, `licence` ... | as in model.json |
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitreous.core.errors import VitreousError
from vitreous.core.untrusted_json import parse_json
from vitreous.models.config import Size
from vitreous.weights.checkpoint import FORMAT as CHECKPOINT_FORMAT
from vitreous.weights.checkpoint import Checkpoint, describe_checkpoint, from_document

FORMAT = "vitreous-export"
GraphPrecision = Literal["float32", "int8"]
_WORDS = ("format", "preprocess", "outputs", "family", "licence", "precision")


class ExportInfo(NamedTuple):
    """What an exported file says of itself."""

    checkpoint: Checkpoint  # without tensors
    size: Size
    dynamic_size: bool
    precision: GraphPrecision


def encode_metadata(info: ExportInfo) -> dict[str, str]:
    fields = {
        **describe_checkpoint(info.checkpoint),
        "format": FORMAT,
        "evaluation_size": list(info.size),
        "dynamic_size": info.dynamic_size,
        "precision": info.precision,
    }
    return {
        name: value if name in _WORDS else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
        if value is not None
    }


def decode_metadata(entries: Mapping[str, str], path: Path) -> ExportInfo:
    """An error where the file is not one of ours, or its metadata is damaged."""
    if entries.get("format") != FORMAT:
        raise VitreousError(
            f"{path}: says neither how images are prepared nor what its classes are; "
            f"it is not a file that `vitreous convert` has written"
        )
    try:
        fields: dict[str, Any] = {"classes": None, "licence": None, "grid": None}
        fields |= {name: text if name in _WORDS else parse_json(text) for name, text in entries.items()}
        size = tuple(map(int, fields["evaluation_size"]))
        height, width = size
        precision: GraphPrecision = "int8" if fields["precision"] == "int8" else "float32"
        checkpoint = from_document({**fields, "format": CHECKPOINT_FORMAT}, {}, path)
        return ExportInfo(checkpoint, (height, width), bool(fields["dynamic_size"]), precision)
    except (KeyError, TypeError, ValueError) as error:
        raise VitreousError(f"{path}: its metadata is damaged ({error}); export it again") from error


def with_metrics(info: ExportInfo, metrics: Mapping[str, Any]) -> ExportInfo:
    """The same with further results."""
    checkpoint = info.checkpoint
    return info._replace(checkpoint=dataclasses.replace(checkpoint, metrics={**checkpoint.metrics, **metrics}))
