"""Resolve what a user names (file, folder, known checkpoint, hub repository) to a local path.

Fetched files lie where a person would look for them, and may be put there by hand:

    <cache>/vit_models/imagenet21k/ViT-B_16.npz      official files, by bucket and path
    <cache>/hf/google/vit-base-patch16-224/...       hub repositories; another revision is a folder REPO@REVISION

<cache> is what files.cache_folder says.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitreous.core.download import Missing, fetch, is_intact
from vitreous.core.errors import VitreousError, did_you_mean, nearest_names, unknown_name
from vitreous.core.files import cache_dir, did_you_mean_path, user_path
from vitreous.core.progress import byte_progress
from vitreous.data.conventions import SUFFIXES as IMAGE_SUFFIXES
from vitreous.models import names
from vitreous.weights.arrays import read_shard_index
from vitreous.weights.catalogue import ENTRIES, HUB, STORAGE, Entry
from vitreous.weights.checkpoint import DOCUMENT, WEIGHTS

_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_INDEX, _PICKLE = "model.safetensors.index.json", "pytorch_model.bin"  # the latter is read as tensors only
_ENDINGS = (".npz", ".safetensors", ".pt", ".pth", ".bin", ".json", ".onnx", ".ckpt", ".h5")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of an owner or a repository: never a way out of its folder


@dataclass(frozen=True)
class Located:
    path: Path
    known: dict[str, Any] = field(default_factory=dict)  # fields of a Checkpoint that only the catalogue knows


def locate(source: str | Path) -> Located:
    """The path of what is named, fetched first if need be.

    A path that exists is taken as such; then `hf:OWNER/REPO[@REVISION]`, `timm:NAME` and the catalogue's MODEL@TAG.
    """
    if not str(source):
        raise VitreousError("no checkpoint was named; give a file, a folder, or a name from `vitreous list weights`")
    if Path(source).suffix.lower() in IMAGE_SUFFIXES and not user_path(source).is_dir():
        raise VitreousError(f"{source}: is an image, where a checkpoint is expected; the checkpoint comes first, then images")
    if isinstance(source, Path) or user_path(source).exists():
        return Located(user_path(source))
    for prefix, owner in (("hf:", ""), ("timm:", "timm/")):
        if source.startswith(prefix):
            repository, _, revision = source.removeprefix(prefix).partition("@")
            return _locate_on_hub(source, owner + repository, revision or "main")
    if entry := ENTRIES.get(source):
        return Located(_fetch_official(entry), entry.known)
    if _looks_like_path(source):
        return Located(user_path(source))  # read_path says best what is wrong with it
    raise _not_found(source)


def check_source(source: str) -> None:
    """Refuse a name that leads nowhere; nothing is fetched or read."""
    if source.startswith(("hf:", "timm:")) or source in ENTRIES:
        return  # whether a server has it is found out by asking it
    if not (path := locate(source).path).exists():
        raise no_such_checkpoint(path)


def no_such_checkpoint(path: Path) -> VitreousError:
    hint = did_you_mean_path(path) or "check the path; `vitreous list weights` shows what can be loaded by name"
    return VitreousError(f"{path}: no such file or folder; {hint.rstrip()}")


def _looks_like_path(source: str) -> bool:
    path = user_path(source)
    if source.startswith(("./", "../", "/", "~")) or path.suffix.lower() in _ENDINGS:
        return True
    # A folder called ViT-B must not turn the name ViT-B/16 into a path.
    return path.parent != Path() and path.parent.is_dir() and not _is_architecture(source.partition("@")[0])


# Google's buckets ---------------------------------------------------------------------------------------------------------


def _fetch_official(entry: Entry) -> Path:
    target = cache_dir() / entry.location
    if is_intact(target):
        return target
    server = (os.environ.get("VITREOUS_MIRROR") or STORAGE).rstrip("/")
    remedy = f"put the file at {target}, or set VITREOUS_MIRROR to a server that has it in place of {STORAGE}"
    with byte_progress(entry.name) as progress:
        url = f"{server}/{quote(entry.location)}"
        return fetch(url, target, progress=progress, remedy=remedy)


# The Hugging Face hub -------------------------------------------------------------------------------------------------------


def _locate_on_hub(source: str, repository: str, revision: str) -> Located:
    parts = repository.split("/")
    if len(parts) != 2 or not all(_NAME.fullmatch(part) and ".." not in part for part in parts):
        raise VitreousError(f"{source!r}: not the name of a repository; expected hf:OWNER/REPO[@REVISION] or timm:NAME")
    if not all(_NAME.fullmatch(part) for part in revision.split("/")):
        raise VitreousError(f"{source!r}: {revision!r} is not the name of a branch, a tag or a commit")
    owner, name = parts
    folder = cache_dir() / "hf" / owner / (name if revision == "main" else f"{name}@{quote(revision, safe='')}")
    if not _is_complete(folder):
        _fetch_repository(source, repository, revision, folder)
    entry = ENTRIES.get(f"hf:{repository}")
    return Located(folder, entry.known if entry else {})


def _is_complete(folder: Path) -> bool:
    """Weights are fetched last, so a folder that has them has everything that the repository had."""
    if not any(is_intact(folder / name) for name in (_CONFIG, DOCUMENT)):
        return False
    for name in (WEIGHTS, _INDEX, _PICKLE):  # the order in which read_path looks for them
        if (folder / name).exists():
            parts = _shards(folder / name) if name == _INDEX else []
            return all(is_intact(path) for path in (folder / name, *parts))
    return False


def _fetch_repository(source: str, repository: str, revision: str, folder: Path) -> None:
    server = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    token = os.environ.get("HF_TOKEN", "").strip() or None
    remedy = f"put {_CONFIG}, {_PREPROCESSOR} and {WEIGHTS} into {folder}, or set HF_ENDPOINT to a mirror of {HUB}"

    def get(name: str, large: bool = False) -> Path | None:
        """One file of the repository; None if it has no such file."""
        url = f"{server}/{repository}/resolve/{quote(revision, safe='')}/{name}"
        try:
            if not large:
                return fetch(url, folder / name, token=token, remedy=remedy)
            with byte_progress(f"{source} {name}") as progress:
                return fetch(url, folder / name, progress=progress, token=token, remedy=remedy)
        except Missing:
            return None

    if not get(_CONFIG) and not get(DOCUMENT):
        raise VitreousError(f"{source}: no {_CONFIG} at {server}/{repository}, revision {revision!r}: check both names")
    get(_PREPROCESSOR)
    if get(WEIGHTS, large=True):
        return
    if index := get(_INDEX):
        for part in _shards(index):
            if not get(part.name, large=True):
                raise VitreousError(f"{source}: {_INDEX} names {part.name}, which the repository does not have")
    elif not get(_PICKLE, large=True):
        raise VitreousError(f"{source}: the repository has neither {WEIGHTS} nor {_INDEX} nor {_PICKLE}; nothing to load")


def _shards(index: Path) -> list[Path]:
    return [index.parent / name for name in sorted(set(read_shard_index(index).values()))]


# Names that lead nowhere ----------------------------------------------------------------------------------------------------


def _not_found(source: str) -> VitreousError:
    model, _, tag = source.partition("@")
    by_model: dict[str, list[str]] = {}
    for entry in ENTRIES.values():
        by_model.setdefault(entry.model, []).append(entry.name)
    if model in by_model or _is_architecture(model):
        weights = by_model.get(model)
        if not weights:
            return VitreousError(
                f"{source!r}: no weights are known for {model}; give the path of a checkpoint, or hf:OWNER/REPO"
            )
        if tag:
            hint = did_you_mean(source, weights)
            return VitreousError(f"unknown weights for {model}: {source!r}; {hint}`vitreous list weights` shows all")
        return VitreousError(
            f"{source!r} is an architecture, not weights; name the weights too, such as {weights[0]!r} "
            f"(known for it: {', '.join(weights)})"
        )
    if tag and (close := nearest_names(model, sorted(by_model))):
        return unknown_name(f"model {model!r} in", source, by_model[close[0]])
    hint = did_you_mean(source, ENTRIES) or did_you_mean_path(user_path(source))
    return VitreousError(
        f"{source!r}: no such file or folder, and no known weights; {hint}`vitreous list weights` shows "
        f"them; hub repositories are written hf:OWNER/REPO or timm:NAME"
    )


def _is_architecture(name: str) -> bool:
    try:
        names.parse_name(name)
    except VitreousError:
        return False
    return True
