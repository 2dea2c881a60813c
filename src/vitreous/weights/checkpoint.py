"""Our own checkpoint format: a folder with `model.safetensors` and `model.json`, and nothing else.

`model.json` says what the weights cannot: architecture, numerics, grid, preprocessing, class names, where the
model comes from and under which licence. Equal weights give equal bytes: the header of `model.safetensors`
holds a single metadata key, because several come out in random order.

Both files change together. New ones are written beside the old under the names `*.new`; then the weights are
renamed, then `model.json`, which knows the weights by their hash. A reader that finds weights that fit only
`model.json.new` knows that the writer died between the two renames, and reads the new pair.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.core.fields import check_fields
from vitreous.core.files import atomic_file, flush_to_disk, write_text
from vitreous.core.hashing import hash_file
from vitreous.core.untrusted_json import read_json
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import build_on_meta
from vitreous.models.config import ModelConfig, Size, config_from_json, config_to_json
from vitreous.weights.arrays import open_safetensors
from vitreous.weights.formats import Family

FORMAT = "vitreous-checkpoint"
VERSION = 1
WEIGHTS, DOCUMENT, CARD = "model.safetensors", "model.json", "README.md"
CARD_MARK = "Written by vitreous"  # a card that bears this may be overwritten

Outputs = Literal["softmax", "sigmoid"]

MOST_PIXELS = 1 << 24  # of an image that enters a model: 4,096 x 4,096

# Config fields that say how to compute rather than what is there; they stand in their own section of model.json.
_NUMERICS = ("norm_eps", "activation", "norm_after_pool", "position_resize", "standardise", "standardise_eps", "root_padding")
# Fields of a checkpoint that model.json has under the same names.
_STORED: tuple[str, ...] = ("preprocess", "preprocess_guessed", "classes", "outputs", "family", "parent", "licence", "metrics")
_STORED += ("head", "conformal")


@dataclass(frozen=True)
class Checkpoint:
    """A model at rest: config, tensors under our names, and everything that must travel with them."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    preprocess: str
    classes: tuple[str, ...] | None = None  # names, where they are known
    outputs: Outputs = "softmax"  # how logits become probabilities
    family: Family = "vitreous"  # whose weights these are
    parent: Mapping[str, Any] = field(default_factory=dict)  # where they came from: source, sha256, and its own parent
    licence: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)  # how a closed-form head was fitted; empty: it was trained
    conformal: Mapping[str, Any] = field(default_factory=dict)  # scores for prediction sets; empty: not calibrated
    preprocess_guessed: bool = False  # nothing said how images are prepared: the string is its family's habit, not a fact
    notes: tuple[str, ...] = ()  # what reading it found missing, extra, assumed or replaced; not stored

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}:")
        if self.classes is not None and len(self.classes) != self.config.classes:
            raise VitreousError(f"{len(self.classes)} class names for a head with {self.config.classes} classes")
        size = Preprocess(self.preprocess).size
        if size is not None and size[0] * size[1] > MOST_PIXELS:
            raise VitreousError(f"preprocessing {self.preprocess!r} makes images of more than {MOST_PIXELS:,} pixels")
        if Preprocess(self.preprocess).random:  # a string that cannot be read, or not be repeated, must not be stored
            raise VitreousError(f"preprocessing {self.preprocess!r} is random; a checkpoint keeps the string for evaluation")

    @property
    def evaluation_size(self) -> Size:
        """Height and width of the images that every command gives the model; it need not be that of its position table."""
        return Preprocess(self.preprocess).size or self.config.image_size


def describe_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that travels with the weights, as fields of JSON."""
    architecture = config_to_json(checkpoint.config)
    numerics = {key: architecture.pop(key) for key in _NUMERICS if key in architecture}
    return {
        "format": FORMAT,
        "version": VERSION,
        "architecture": architecture,
        "numerics": numerics,
        "grid": list(checkpoint.config.grid) if hasattr(checkpoint.config, "grid") else None,
        "preprocess": checkpoint.preprocess,
        "preprocess_guessed": checkpoint.preprocess_guessed,
        "classes": list(checkpoint.classes) if checkpoint.classes is not None else None,
        "outputs": checkpoint.outputs,
        "family": checkpoint.family,
        "parent": dict(checkpoint.parent),
        "licence": checkpoint.licence,
        "metrics": dict(checkpoint.metrics),
        "head": dict(checkpoint.head),
        **({"conformal": dict(checkpoint.conformal)} if checkpoint.conformal else {}),
    }


def format_document(checkpoint: Checkpoint, weights: Path, name: str) -> str:
    """What `model.json` says. It knows its weights by their hash: beside others it is not believed."""
    fields = {**describe_checkpoint(checkpoint), "weights": {"file": name, "sha256": file_hash(weights)}}
    return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"


def from_document(fields: dict[str, Any], tensors: Mapping[str, Tensor], where: Path) -> Checkpoint:
    try:
        if fields.get("version") != VERSION:
            raise VitreousError(
                f"version {fields.get('version')!r} is not known; this program writes and reads version {VERSION}"
            )
        config = config_from_json({**fields["architecture"], **fields["numerics"]})
        missing: dict[str, Any] = {"preprocess_guessed": False, "head": {}, "conformal": {}}  # in earlier files of this version
        fields = missing | fields
        stored = {name: fields[name] for name in _STORED}
        if isinstance(stored["classes"], list):
            stored["classes"] = tuple(map(str, stored["classes"]))
        return Checkpoint(config, tensors, **stored)
    except KeyError as error:
        raise VitreousError(f"{where}: field {error} is missing; the file is not a {DOCUMENT} of this program") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise VitreousError(f"{where}: a field has the wrong form ({error})") from error
    except VitreousError as error:
        raise VitreousError(f"{where}: {error}") from error


def write_conformal(folder: Path, conformal: Mapping[str, Any]) -> None:
    """Into the `model.json` of a checkpoint that is there; the weights stay as they are."""
    fields = _read_matching_document(folder)
    write_text(folder / DOCUMENT, json.dumps({**fields, "conformal": dict(conformal)}, indent=1, ensure_ascii=False) + "\n")


def read_document(path: Path) -> dict[str, Any] | None:
    """The contents of a model.json; None if it is some other JSON, an error if it is none at all."""
    try:
        fields = read_json(path)
    except OSError as error:
        raise VitreousError(f"{path}: cannot read ({error.strerror})") from error
    except ValueError as error:
        raise VitreousError(f"{path}: not valid JSON ({error}); restore it from a copy") from error
    return fields if isinstance(fields, dict) and fields.get("format") == FORMAT else None


def write_checkpoint(checkpoint: Checkpoint, folder: Path, card: str | None = None) -> None:
    """Write the checkpoint into a folder, made if need be; other things in the folder stay."""
    if folder.exists() and not folder.is_dir():
        raise VitreousError(f"{folder}: is a file; a checkpoint needs a folder")
    if (folder / WEIGHTS).exists() and not (folder / DOCUMENT).exists():
        raise VitreousError(f"{folder}: holds another tool's {WEIGHTS}; choose another folder")
    new_weights, new_document = folder / f"{WEIGHTS}.new", folder / f"{DOCUMENT}.new"
    try:
        _finish_interrupted(folder)
        with atomic_file(new_weights) as part:
            safetensors.torch.save_file(_separate_storages(checkpoint.tensors), part, metadata={"format": "pt"})
        write_text(new_document, format_document(checkpoint, new_weights, WEIGHTS))
        os.replace(new_weights, folder / WEIGHTS)
        os.replace(new_document, folder / DOCUMENT)
        flush_to_disk(folder)
        if card is not None and may_write_card(folder / CARD):
            write_text(folder / CARD, card)
    except (OSError, safetensors.SafetensorError) as error:
        raise VitreousError(f"{folder}: cannot write the checkpoint ({error}); what was there before is intact") from error
    finally:
        # After a failure, weights without a document (or the reverse) must not linger; after success there are none.
        if new_weights.exists():
            new_weights.unlink()
            new_document.unlink(missing_ok=True)


def _finish_interrupted(folder: Path) -> None:
    """A writer that died between its two renames left weights that only model.json.new describes: keep that pair."""
    new_document = folder / f"{DOCUMENT}.new"
    if new_document.exists() and (folder / WEIGHTS).exists():
        fields = read_document(new_document)
        if fields and describes_weights(fields, file_hash(folder / WEIGHTS)):
            os.replace(new_document, folder / DOCUMENT)


def describes_weights(fields: dict[str, Any], digest: str) -> bool:
    return isinstance(fields.get("weights"), dict) and fields["weights"].get("sha256") == digest


def may_write_card(path: Path) -> bool:
    """Somebody's own README is left alone."""
    return not path.exists() or CARD_MARK in path.read_text(encoding="utf-8", errors="replace")


def _separate_storages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float32, contiguous, and no two sharing memory, which a shared position table would otherwise do."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().to(torch.float32).contiguous()
        out[name] = tensor.clone() if tensor.untyped_storage()._cdata in seen else tensor
        seen.add(tensor.untyped_storage()._cdata)
    return out


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read our own checkpoint; hash, names and shapes are all checked."""
    weights = folder / WEIGHTS
    if not weights.exists():
        raise VitreousError(f"{folder}: has {DOCUMENT} but no {WEIGHTS}")
    checkpoint = from_document(_read_matching_document(folder), {}, folder / DOCUMENT)
    arrays = open_safetensors(weights)
    expected = {name: tuple(tensor.shape) for name, tensor in build_on_meta(checkpoint.config).state_dict().items()}
    for name, shape in expected.items():
        if name not in arrays.shapes:
            raise VitreousError(f"{weights}: tensor {name!r} is missing, which {DOCUMENT} asks for")
        if arrays.shapes[name] != shape:
            raise VitreousError(f"{weights}: tensor {name!r} has shape {arrays.shapes[name]}, but {DOCUMENT} asks for {shape}")
    extra = sorted(set(arrays.shapes) - set(expected))
    if extra:
        raise VitreousError(f"{weights}: tensor {extra[0]!r} is in the file but not in {DOCUMENT}'s model")
    return replace(checkpoint, tensors={name: arrays[name] for name in expected})


def _read_matching_document(folder: Path) -> dict[str, Any]:
    digest = file_hash(folder / WEIGHTS)
    for name in (DOCUMENT, f"{DOCUMENT}.new"):
        if not (folder / name).exists():
            continue
        fields = read_document(folder / name)
        if fields is None:
            raise VitreousError(f"{folder / name}: not a {DOCUMENT} of this program; is this another tool's folder?")
        if describes_weights(fields, digest):
            return fields
    raise VitreousError(
        f"{folder / WEIGHTS}: does not match {DOCUMENT} (sha256 differs); one of them is damaged: copy both again"
    )


def file_hash(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise VitreousError(f"{path}: cannot read ({error.strerror})") from error
