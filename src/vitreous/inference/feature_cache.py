"""Features on disk, so that a model runs over the same images once.

An entry is found by everything that its numbers follow from: the weights and the architecture, the preprocessing, the
precision, and the data. Of data that is files (or shards) on this machine, the path, size, time of writing and time of
change of each stand for its content: reading a million photographs again only to see that they are the same ones would take
as long as some models need for them. Everything else (arrays, archives, rendered images) has no times, and its content is
read and hashed, which costs little beside the model. Shards that are far away are not kept: nobody can say without fetching
them whether they have changed.

The cache may be deleted at any time. It never ends the work: an entry that is damaged is computed again, one that cannot be
written is not kept, and either is said.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import atomic_file, cache_dir
from vitreous.core.hashing import hash_words
from vitreous.core.progress import is_silent, progress_bar, silence
from vitreous.core.untrusted_json import parse_json
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.decode import BadImage
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import Model
from vitreous.models.config import config_to_json

VERSION = 2  # of the entries; to be raised when they, or a model's features, come out otherwise than before
MOST_BYTES = 20_000_000_000  # in all; beyond, what was not used for longest goes
_SLOW = 20_000  # items from which hashing is worth a word


@dataclass(frozen=True, eq=False)
class Features:
    """In the order of the data, without what could not be read."""

    values: NDArray[np.float32]  # (n, D)
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    numbers: NDArray[np.int64]  # of each in the source; in a stream, how many items came before it
    classes: tuple[str, ...]
    bad: tuple[tuple[str, str], ...] = ()  # place and reason of what could not be read
    notes: tuple[str, ...] = ()  # what became of the cache, and shards that were left out
    cached: bool = False  # it was on disk; the model was not run

    def __len__(self) -> int:
        return len(self.ids)

    def some(self, rows: Sequence[int] | NDArray[np.int64]) -> Features:
        """These rows alone."""
        rows = np.asarray(rows, np.int64)
        labels, ids = tuple(self.labels[row] for row in rows), tuple(self.ids[row] for row in rows)
        return replace(self, values=self.values[rows], labels=labels, ids=ids, numbers=self.numbers[rows])

    def targets(self) -> NDArray[np.int64]:
        """The first label of each, -1 where there is none."""
        return np.array([labels[0] if labels else -1 for labels in self.labels], np.int64)


def folder() -> Path:
    return cache_dir() / "features"


# The key ---------------------------------------------------------------------------------------------------------------


def key(model: Model, data: Source | Stream, preprocess: Preprocess, precision: Precision, title: str) -> str | None:
    """None where nobody can say whether the data is still the same."""
    content = _of_stream(data) if isinstance(data, Stream) else _of_source(data, title)
    if content is None:
        return None
    words = (
        VERSION,
        weights_hash(model),
        json.dumps(config_to_json(model.config)),
        str(preprocess),
        preprocess.channels,
        precision,
    )
    return hash_words(*words, content)


def weights_hash(model: Model) -> str:
    """Of the weights as they are now: a model that was trained on is another one."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
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
    """The time of change too: whoever replaces a file and sets the time of writing back cannot set that one back."""
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


def read(key: str, classes: tuple[str, ...], bad_images: Policy) -> tuple[Features | None, tuple[str, ...]]:
    """The entry, if there is a whole one, and what is to be said. One with bad images is none for who stops at them."""
    path = folder() / f"{key}.safetensors"
    if not path.exists():
        return None, ()
    try:
        found = read_features(path, classes)
    except ValueError as error:
        return None, (f"{path}: a damaged cache entry ({one_line(error, 80)}); the features are computed again",)
    with contextlib.suppress(OSError):
        os.utime(path)  # it was used: the last to go
    return (None, ()) if found.bad and bad_images == "stop" else (found, ())


def read_features(path: Path, classes: tuple[str, ...]) -> Features:
    """What `write_features` wrote; a file that is damaged raises ValueError."""
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in ("values", "numbers", "about")}
            if (file.metadata() or {}).get("sha256") != _checksum(arrays):
                raise ValueError("its checksum differs")
        about = parse_json(arrays["about"].tobytes(), most=1 << 30)
        ids, labels, bad = tuple(about["ids"]), tuple(map(tuple, about["labels"])), tuple(map(tuple, about["bad"]))
        found = Features(arrays["values"], labels, ids, arrays["numbers"], classes, bad, cached=True)
        if not len(found.values) == len(found.numbers) == len(ids) == len(labels):
            raise ValueError("its parts have different lengths")
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return found


def write(key: str, found: Features) -> tuple[str, ...]:
    """What is to be said, if it could not be written."""
    try:
        with atomic_file(folder() / f"{key}.safetensors") as part:
            write_features(part, found)
        _make_room()
    except (VitreousError, SafetensorError, OSError, MemoryError) as error:
        return (f"the features could not be kept for the next time: {one_line(error)}",)
    return ()


def write_features(path: Path, found: Features) -> None:
    about = json.dumps({"ids": found.ids, "labels": found.labels, "bad": found.bad}).encode("ascii")
    arrays: dict[str, NDArray[Any]] = {
        "values": np.ascontiguousarray(found.values, np.float32),
        "numbers": np.ascontiguousarray(found.numbers, np.int64),
        "about": np.frombuffer(about, np.uint8),
    }
    save_file(arrays, path, metadata={"sha256": _checksum(arrays)})


def _checksum(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\0".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _make_room() -> None:
    entries = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in folder().glob("*.safetensors"))
    size = sum(entry[1] for entry in entries)
    for _, freed, path in entries[:-1]:  # the newest stays however large it is
        if size <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        size -= freed
