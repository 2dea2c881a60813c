"""Read a checkpoint of any family from a folder or a file.

What a thing is is decided by the arrays inside it and the config beside it, never by its name.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from vitreous.core.errors import VitreousError
from vitreous.core.untrusted_json import read_json
from vitreous.models.config import ModelConfig
from vitreous.weights import huggingface, official, timm
from vitreous.weights.arrays import Arrays, open_arrays, rename_arrays
from vitreous.weights.checkpoint import (
    DOCUMENT,
    WEIGHTS,
    Checkpoint,
    describes_weights,
    file_hash,
    from_document,
    read_checkpoint,
    read_document,
)
from vitreous.weights.locate import no_such_checkpoint
from vitreous.weights.mapping import Recognised, read_tensors
from vitreous.weights.unfinished import find_best_so_far

# A training script's checkpoint may hold the weights under one of these words, the averaged ones preferred by timm.
_NESTS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "module")
_FOLDER_FILES = (WEIGHTS, "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.pth")


def read_path(path: Path) -> Checkpoint:
    """Read what lies at a path. Weights that are no numbers are refused: such a model gives NaN for every image."""
    checkpoint = _read(path)
    for name, tensor in checkpoint.tensors.items():
        # A sum is 10 times as fast as asking each number, and is finite if they are, unless it overflows.
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            raise VitreousError(f"{path}: tensor {name!r} holds NaN or infinite numbers, as after training that diverged")
    return checkpoint


def _read(path: Path) -> Checkpoint:
    if not path.exists():
        raise no_such_checkpoint(path)
    if path.is_dir():
        return _read_folder(path)
    if path.name == DOCUMENT or (path.name == WEIGHTS and (path.parent / DOCUMENT).exists()):
        return _record_parent(read_checkpoint(path.parent), path.parent / WEIGHTS)
    return read_file(path)


def _read_folder(folder: Path) -> Checkpoint:
    for candidate in (folder, folder / "checkpoint"):  # a run's folder holds its checkpoint in a folder of that name
        if (candidate / DOCUMENT).exists():
            return _record_parent(read_checkpoint(candidate), candidate / WEIGHTS)
    if run := find_best_so_far(folder):
        best, where = run
        if best is None:
            raise VitreousError(f"{folder}: {where}, before its first evaluation; start the same command again to resume it")
        found = _record_parent(read_checkpoint(best), best / WEIGHTS)
        note = f"{where}: this is its best evaluation so far, of step {found.metrics.get('step')}, checkpoint/best"
        return dataclasses.replace(found, notes=(*found.notes, note))
    for name in _FOLDER_FILES:
        if (folder / name).exists():
            return read_file(folder / name)
    files = [p for p in sorted(folder.iterdir()) if p.suffix in (".npz", ".safetensors", ".pt", ".pth")]
    if len(files) == 1:
        return read_file(files[0])
    if files:
        raise VitreousError(f"{folder}: holds several weights files ({', '.join(p.name for p in files)}); name one of them")
    raise VitreousError(
        f"{folder}: no checkpoint here; expected {DOCUMENT} with {WEIGHTS}, or one .npz, .safetensors or .pth file"
    )


def read_file(path: Path) -> Checkpoint:
    """Read one foreign weights file, and the config files that lie beside it."""
    whole = open_arrays(path)
    arrays = _unnest(whole)
    digest = file_hash(path)
    checkpoint, stale = _from_sidecar(path, arrays, digest)
    if checkpoint is None:
        official_layout = path.suffix == ".npz"  # which has no config: one that lies beside it belongs to something else
        beside = [
            {} if official_layout else _read_settings(path.with_name(n)) for n in ("config.json", "preprocessor_config.json")
        ]
        checkpoint = _from_arrays(arrays, whole, *beside)
    checkpoint = dataclasses.replace(checkpoint, notes=(*checkpoint.notes, *stale))
    return _record_parent(checkpoint, path, digest)


def _from_arrays(arrays: Arrays, whole: Arrays, settings: dict[str, Any], preprocessor: dict[str, Any]) -> Checkpoint:
    """`whole` is the file, of which `arrays` may be the part under one word."""
    path = arrays.path
    try:
        found = (
            official.recognise(arrays)
            or huggingface.recognise(arrays, settings, preprocessor)
            or timm.recognise(arrays, settings)
        )
        if found is not None:
            checkpoint = _with_tensors(found, whole)
            if not checkpoint.preprocess_guessed:
                return checkpoint
            guess = f"the checkpoint does not state its preprocessing; guessed: {checkpoint.preprocess}"
            return dataclasses.replace(checkpoint, notes=(*checkpoint.notes, guess))
    except VitreousError as error:  # a config that cannot be: say where it was read
        raise (
            error if str(path) in str(error) or str(path.parent) in str(error) else VitreousError(f"{path}: {error}")
        ) from error
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        # An array with fewer axes than its name promises, or a config.json with nonsense in it.
        raise VitreousError(
            f"{path}: arrays or config.json do not have the form that their names promise ({error!r})"
        ) from error
    if "embedding.weight" in arrays.shapes and "blocks.0.attention.qkv.weight" in arrays.shapes:
        raise VitreousError(f"{path}: these are vitreous weights, but {DOCUMENT} is not beside them; copy the whole folder")
    some = ", ".join(sorted(arrays.shapes)[:3]) or "nothing"
    kind = settings.get("model_type") or settings.get("architecture")
    named = f" ({kind!r}, says its config.json)" if isinstance(kind, str) else ""
    raise VitreousError(f"{path}: not a model that this program knows{named}; it holds {some} ...")


def _with_tensors(found: Recognised, whole: Arrays) -> Checkpoint:
    checkpoint, arrays, rules = found
    tensors = read_tensors(rules, arrays, checkpoint.config)
    unused = _note_unused(whole, {arrays.in_file(name) for each in rules for name in each.theirs}, checkpoint.config)
    return dataclasses.replace(checkpoint, tensors=tensors, notes=(*checkpoint.notes, *unused))


# The last word of the name of a layer that a classifier may end in; numbers, as of nn.Sequential, follow it or not.
_HEAD_WORDS = {"head", "heads", "classifier", "cls_classifier", "fc", "linear", "logits", "output", "prediction"}
_PARAMETERS = {"weight", "bias", "kernel"}


def _note_unused(whole: Arrays, used: set[str], config: ModelConfig) -> list[str]:
    """A note on every array of the file that the model does not use; an error if one could be the head that it lacks."""
    left = sorted(set(whole.shapes) - used)
    for name in left if not config.classes else ():
        words = [word for word in re.split(r"[./]", name) if not word.isdigit()]
        shape = tuple(size for size in whole.shapes[name] if size != 1)  # of a 1x1 convolution, too
        other_tower = words[0] == "text_model"  # whose projection SigLIP calls its head
        named = words[-1] in _PARAMETERS and bool(_HEAD_WORDS & set(words[-2:-1])) and not other_tower
        if named and len(shape) == 2 and config.feature_width in shape:
            raise VitreousError(
                f"{whole.path}: array {name!r}, {shape[0]} x {shape[1]}, could be the head of the model, which has no "
                f"other, but is not where this format keeps it; rename it in the file, or delete it to load features only"
            )
    if len(left) <= 8:
        return [f"left out: {', '.join(left)}"] if left else []
    counts = Counter(re.split(r"[./]", name)[0] for name in left)
    return [f"left out {len(left)} arrays: {', '.join(f'{word} ({count})' for word, count in sorted(counts.items()))}"]


def _from_sidecar(path: Path, arrays: Arrays, digest: str) -> tuple[Checkpoint | None, list[str]]:
    """An .npz that we wrote has a .json beside it, which knows what arrays cannot say; and a note, if that is stale."""
    sidecar = path.with_suffix(".json")
    if path.suffix != ".npz" or not sidecar.exists():
        return None, []
    fields = read_document(sidecar)
    names = official.released_names(arrays)
    if fields is None or names is None:
        return None, []
    if not describes_weights(fields, digest):
        return None, [f"{sidecar.name} is about other weights, and was left out of account"]
    checkpoint = from_document(fields, {}, sidecar)
    return _with_tensors(Recognised(checkpoint, names, official.rules(checkpoint.config)), arrays), []


def _unnest(arrays: Arrays) -> Arrays:
    """Only the weights of a training checkpoint, without the word that leads to them."""
    for nest in _NESTS:
        inside = {name.removeprefix(f"{nest}."): name for name in arrays.shapes if name.startswith(f"{nest}.")}
        if inside:
            return rename_arrays(arrays, inside)
    return arrays


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        fields = read_json(path)
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise VitreousError(f"{path}: expected an object, found {type(fields).__name__}")
    return fields


def _record_parent(checkpoint: Checkpoint, path: Path, digest: str | None = None) -> Checkpoint:
    """Remember which file this came from, so that a copy can name its parent."""
    source = path.parent.name + "/" + path.name if path.parent.name else path.name
    parent: dict[str, Any] = {"source": source, "sha256": digest or file_hash(path), "family": checkpoint.family}
    if checkpoint.parent:
        parent["parent"] = dict(checkpoint.parent)
    return dataclasses.replace(checkpoint, parent=parent)
