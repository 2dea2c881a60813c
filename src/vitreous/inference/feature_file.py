"""The file of features: one safetensors file with what a model makes of images, their ids and labels, and its origin.

    features   (n, D), of patch tokens (n, N, D); float32
    numbers    (n,) position of each image in its split
    ids        UTF-8 bytes of all ids one after another; id n ends at id_ends[n]
    labels     classes of all images one after another; those of image n end at label_ends[n]
    bad        JSON: place and reason of each image that could not be read

The metadata has `about` (JSON: checkpoint, weights, preprocess, data, classes ...), `splits` (JSON: how many rows each split
has, one after another) and `sha256` of everything else. `vitreous embed` writes such files, `vitreous similar` reads them, and
the feature cache is a folder of them.

Features come first, behind room for the header, so that a file is written from front to back while they are computed, and
read by mapping it: a search through a million images reads no id but those it finds.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import atomic_file
from vitreous.core.output_dir import find_data_folder
from vitreous.core.untrusted_json import parse_json

_ALIGNED = 64  # bytes; where the features begin, a multiple of this
_ROOM = 4096  # bytes of the header beside what `about` needs
_MOST_HEADER = 100_000_000  # bytes; safetensors' own limit
_DTYPES = {"F32": "<f4", "I64": "<i8", "U8": "|u1"}
_COLUMNS = {"features": "F32", "ids": "U8", "bad": "U8"} | dict.fromkeys(("numbers", "id_ends", "labels", "label_ends"), "I64")


@dataclass(frozen=True, eq=False)
class Features:
    """In memory: in the order of the data, without what could not be read."""

    values: NDArray[np.float32]  # (n, D), of patch tokens (n, N, D)
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


# Writing ---------------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """What a file says of its rows beside their features, gathered while these are written."""

    ids: list[bytes] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    label_ends: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    bad: list[Sequence[str]] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        split: str,
        ids: Iterable[str],
        labels: Iterable[Sequence[int]],
        numbers: Iterable[int],
        bad: Iterable[Sequence[str]],
    ) -> None:
        before = len(self)
        for id, own in zip(ids, labels, strict=True):
            self.ids.append(id.encode("utf-8", "surrogateescape"))
            self.labels += own
            self.label_ends.append(len(self.labels))
        self.numbers += numbers
        self.bad += bad
        self.splits[split] = self.splits.get(split, 0) + len(self) - before

    def __len__(self) -> int:
        return len(self.numbers)


def header_bytes(about: Mapping[str, Any]) -> int:
    """How many bytes of a file its features begin behind."""
    room = len(json.dumps(json.dumps(about))) + _ROOM
    return -(-room // _ALIGNED) * _ALIGNED


def finish_file(file: IO[bytes], about: Mapping[str, Any], shape: Sequence[int], rows: Rows) -> None:
    """Behind the features of this shape (without the first axis), the other columns; before them, the header."""
    start, text = header_bytes(about), json.dumps(about)
    end = start + 4 * len(rows) * int(np.prod(shape))
    columns = {
        "ids": _padded(b"".join(rows.ids), b"\0", end),
        "bad": _padded(json.dumps(rows.bad).encode("ascii"), b" ", 0),
        "numbers": np.array(rows.numbers, "<i8"),
        "id_ends": np.cumsum([len(id) for id in rows.ids], dtype="<i8"),
        "labels": np.array(rows.labels, "<i8"),
        "label_ends": np.array(rows.label_ends, "<i8"),
    }
    header: dict[str, Any] = {"features": _entry("F32", (len(rows), *shape), 0, end - start)}
    file.seek(end)
    file.truncate()
    for name, column in columns.items():
        file.write(column.tobytes())
        header[name] = _entry(_COLUMNS[name], column.shape, end - start, end - start + column.nbytes)
        end += column.nbytes
    file.flush()
    metadata = {"about": text, "splits": json.dumps(rows.splits), "sha256": _checksum(file, start, text)}
    encoded = json.dumps({"__metadata__": metadata, **header}).encode("ascii")
    if len(encoded) > start - 8:
        raise VitreousError(f"the header of {len(encoded):,} bytes has no room in {start:,}")
    file.seek(0)
    file.write(struct.pack("<Q", start - 8) + encoded.ljust(start - 8))
    file.flush()


def _entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _padded(content: bytes, filler: bytes, begin: int) -> NDArray[np.uint8]:
    """So long that what follows it begins at a multiple of 8: readers view it as 64-bit numbers where it lies."""
    return np.frombuffer(content + filler * (-(begin + len(content)) % 8), np.uint8)


def write_features(path: Path, found: Features, about: Mapping[str, Any], split: str) -> None:
    rows = Rows()
    rows.add(split, found.ids, found.labels, found.numbers.tolist(), found.bad)
    with atomic_file(path) as part, part.open("w+b") as file:
        file.seek(header_bytes(about))
        file.write(np.ascontiguousarray(found.values, "<f4").data)
        finish_file(file, about, found.values.shape[1:], rows)


def _checksum(file: IO[bytes], start: int, about: str) -> str:
    file.seek(start)
    digest = hashlib.sha256(about.encode("ascii"))
    return hashlib.file_digest(file, lambda: digest).hexdigest()  # type: ignore[arg-type]


# Reading ---------------------------------------------------------------------------------------------------------------


class FeatureFile:
    """A finished file. Features are mapped, not read: `values` is as large as the file, and memory is used where it is read.

    >>> file = FeatureFile(Path("features.safetensors"))
    >>> file.values[0], file.id(0), file.label_names(0)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="numpy") as file:  # refuses what is truncated, or no such file at all
                metadata = file.metadata() or {}
            self._read(metadata)
        except FileNotFoundError as error:
            raise VitreousError(f"{path}: no such file; `vitreous embed` makes one") from error
        except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise VitreousError(
                f"{path}: not a file of features, or a truncated one ({one_line(error, 80)}); make it with `vitreous embed`"
            ) from error

    def _read(self, metadata: Mapping[str, str]) -> None:
        with self.path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = parse_json(file.read(size), most=_MOST_HEADER)
        self._start, self._about, self._sha256 = 8 + size, metadata["about"], metadata["sha256"]
        self.about: dict[str, Any] = parse_json(self._about, most=_MOST_HEADER)
        self.classes = tuple(map(str, self.about["classes"]))
        self.splits: dict[str, int] = {str(name): int(count) for name, count in parse_json(metadata["splits"]).items()}
        self.values: NDArray[np.float32] = self._column(header, "features")
        self._ids, self._bad = self._column(header, "ids"), self._column(header, "bad")
        names = ("numbers", "id_ends", "labels", "label_ends")
        self.numbers, self._id_ends, self._labels, self._label_ends = (np.array(self._column(header, name)) for name in names)
        ends = ((self._id_ends, self._ids), (self._label_ends, self._labels))
        if (
            not len(self.values)
            == len(self.numbers)
            == len(self._id_ends)
            == len(self._label_ends)
            == sum(self.splits.values())
        ):
            raise ValueError("its columns have different lengths")
        if any((np.diff(end, prepend=0) < 0).any() or (len(end) and end[-1] > len(column)) for end, column in ends):
            raise ValueError("its ids or labels do not fit their ends")
        if len(self._labels) and not 0 <= self._labels.min() <= self._labels.max() < len(self.classes):
            raise ValueError("it has labels beyond its classes")

    def _column(self, header: Mapping[str, Any], name: str) -> NDArray[Any]:
        dtype, shape = header[name]["dtype"], tuple(header[name]["shape"])
        if dtype != _COLUMNS[name] or len(shape) not in ((2, 3) if name == "features" else (1,)):
            raise ValueError(f"its {name} are {dtype} of shape {shape}")
        if 0 in shape:
            return np.zeros(shape, _DTYPES[dtype])
        return np.memmap(self.path, _DTYPES[dtype], "r", self._start + header[name]["data_offsets"][0], shape)

    def __len__(self) -> int:
        return len(self.values)

    def id(self, row: int) -> str:
        begin = int(self._id_ends[row - 1]) if row else 0
        return self._ids[begin : int(self._id_ends[row])].tobytes().decode("utf-8", "surrogateescape")

    def labels(self, row: int) -> tuple[int, ...]:
        begin = int(self._label_ends[row - 1]) if row else 0
        return tuple(self._labels[begin : int(self._label_ends[row])].tolist())

    def label_names(self, row: int) -> tuple[str, ...]:
        return tuple(self.classes[label] for label in self.labels(row))

    def split(self, row: int) -> str:
        ends = np.cumsum([*self.splits.values()])
        return [*self.splits][int(np.searchsorted(ends, row, side="right"))]

    def place(self, name: Literal["checkpoint", "data"]) -> str:
        """Where it is: a path from the folder in which it was typed, a name as it is; empty where it is not known."""
        text = str(self.about.get(name) or "")
        there = Path(str(self.about.get("folder") or "."), text)
        return str(there) if text and (there.exists() or find_data_folder(str(there)) is not None) else text

    def find(self, id: str) -> int | None:
        """The row of this id, if there is one."""
        content, encoded = self._ids.tobytes(), id.encode("utf-8", "surrogateescape")
        at = content.find(encoded)
        while at >= 0:
            row = int(np.searchsorted(self._id_ends, at, side="right"))
            if row < len(self) and self.id(row) == id:
                return row
            at = content.find(encoded, at + 1)
        return None

    @property
    def bad(self) -> tuple[tuple[str, str], ...]:
        return tuple((str(place), str(why)) for place, why in parse_json(self._bad.tobytes(), most=1 << 30))

    def check_sum(self) -> None:
        """Reads all of it: a ValueError if a bit has changed."""
        with self.path.open("rb") as file:
            if _checksum(file, self._start, self._about) != self._sha256:
                raise ValueError("its checksum differs")

    def load(self) -> Features:
        """Everything in memory."""
        labels, ids = tuple(map(self.labels, range(len(self)))), tuple(map(self.id, range(len(self))))
        return Features(np.array(self.values), labels, ids, self.numbers, self.classes, self.bad)
