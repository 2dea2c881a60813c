"""Features on disk, so that a model runs over the same images once.

An entry is found by everything that its numbers follow from: the weights and the architecture, the preprocessing, the
precision, and the data. Of data that is files (or shards) on this machine, the path, size, time of writing and time of
change of each stand for its content: reading a million photographs again only to see that they are the same ones would take
as long as some models need for them. Everything else (arrays, archives, rendered images) has no times, and its content is
read and hashed, which costs little beside the model. Shards that are far away are not kept: whether they have
changed is unknown without fetching them.

The cache may be deleted at any time. It never ends the work: an entry that is damaged is computed again, one that cannot be
written is not kept, and either is said.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import cache_dir
from vitreous.core.hashing import hash_words
from vitreous.core.progress import is_silent, progress_bar, silence
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.engines.exported_file import FileEngine
from vitreous.inference.feature_file import FeatureFile, Features, write_features
from vitreous.inference.outputs import FeatureKind
from vitreous.inference.runner import LoadedModel
from vitreous.models.config import config_to_json
from vitreous.models.vit import ViT

VERSION = 3  # of the entries; to be raised when they, or a model's features, come out otherwise than before
MOST_BYTES = 20_000_000_000  # in all; beyond, what was not used for longest goes
_SLOW = 20_000  # items from which hashing is worth a word


def folder() -> Path:
    return cache_dir() / "features"


# The key ---------------------------------------------------------------------------------------------------------------


def describe(clf: LoadedModel, preprocess: Preprocess, precision: Precision, kind: FeatureKind) -> dict[str, Any]:
    """What features follow from, beside the data."""
    # Only where there is something to say, so that entries of before stay valid.
    model = clf.model
    engine = {"engine": clf.engine.name} if clf.engine.name != "torch" else {}
    merging = {"merge_tokens": model.merge_tokens} if isinstance(model, ViT) and model.merge_tokens else {}
    return {
        "weights": weights_hash(clf),
        "config": config_to_json(model.config),
        "preprocess": str(preprocess),
        "channels": preprocess.channels,
        "precision": precision,
        "kind": kind,
        **merging,
        **engine,
    }


def key(about: Mapping[str, Any], content: str) -> str:
    return hash_words(VERSION, json.dumps(about), content)


def data_hash(data: Source | Stream, title: str) -> str | None:
    """None where it is unknown whether the data is still the same."""
    return _of_stream(data) if isinstance(data, Stream) else _of_source(data, title)


def weights_hash(clf: LoadedModel) -> str:
    """Of the weights as they are now: a model that was trained on is another one."""
    if isinstance(clf.engine, FileEngine):
        return clf.engine.hash()
    digest = hashlib.sha256()
    for name, tensor in clf.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().float().cpu().contiguous().flatten().numpy().data)
    return digest.hexdigest()


def _of_source(data: Source, title: str) -> str:
    digest = hashlib.sha256(data.fingerprint().encode())
    with silence(len(data) < _SLOW or is_silent()), progress_bar(f"looking for {title}", len(data)) as advance:
        for index in range(len(data)):
            path = data.path(index)
            digest.update(_content(data, index) if path is None else _of_file(path))
            advance(1)
    return digest.hexdigest()


def _of_stream(data: Stream) -> str | None:
    if not all(Path(shard).is_file() for shard in data.shards):
        return None
    digest = hashlib.sha256(repr((data.classes, data.split, data.shard_lengths())).encode())
    for shard in data.shards:
        digest.update(_of_file(shard))
    return digest.hexdigest()


def _of_file(path: str) -> bytes:
    """The time of change too: a file that is replaced may have its time of writing set back, but not that one."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a Path for each of a million files takes longer than the question
    except OSError as error:
        return f"{path}\0{error.errno}\0".encode(errors="surrogateescape")
    times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return f"{os.path.abspath(path)}\0{times}\0".encode(errors="surrogateescape")  # noqa: PTH100


def _content(data: Source, index: int) -> bytes:
    try:
        content = data.read(index)
    except BadImage as error:
        return error.why.encode(errors="surrogateescape")
    if isinstance(content, bytes):
        return hashlib.sha256(content).digest()
    return hashlib.sha256(repr(content.shape).encode() + np.ascontiguousarray(content).tobytes()).digest()


# Entries ---------------------------------------------------------------------------------------------------------------


def read(key: str, bad_images: Policy) -> tuple[Features | None, tuple[str, ...]]:
    """The entry, if there is a whole one, and what is to be said. One with bad images is none for who stops at them."""
    path = folder() / f"{key}.safetensors"
    if not path.exists():
        return None, ()
    try:
        file = FeatureFile(path)
        file.check_sum()
        found = replace(file.load(), cached=True)
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used: the last to go
    except (VitreousError, OSError, ValueError) as error:
        reason = one_line(error, 80).removeprefix(f"{path}: ")
        return None, (f"{path}: a damaged cache entry ({reason}); the features are computed again",)
    return (None, ()) if found.bad and bad_images == "stop" else (found, ())


def write(key: str, found: Features, about: Mapping[str, Any], data: Source | Stream) -> tuple[str, ...]:
    """What is to be said, if it could not be written."""
    origin = {**about, "checkpoint": None, "data": data.where, "folder": str(Path.cwd()), "classes": data.classes}
    try:
        write_features(folder() / f"{key}.safetensors", found, origin, data.split)
        _make_room()
    except (VitreousError, OSError, MemoryError) as error:
        return (f"the features could not be kept for the next time: {one_line(error)}",)
    return ()


def _make_room() -> None:
    entries = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in folder().glob("*.safetensors"))
    size = sum(entry[1] for entry in entries)
    for _, freed, path in entries[:-1]:  # the newest stays however large it is
        if size <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        size -= freed
