"""CIFAR-10 and CIFAR-100, binary version: records of one label byte (two for CIFAR-100) and 3 x 32 x 32 bytes.

The Python version of the same data is a pickle and is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import iterate_members, name_broken_file
from vitreous.data.datasets.dataset_dir import DatasetDir, MissingFiles
from vitreous.data.datasets.pixel_arrays import Pixels, pixel_dataset
from vitreous.data.source import Dataset

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str  # the file with the names of the classes
    label_bytes: int
    classes: int
    python: tuple[str, str]  # the pickled version, which users often have instead


CIFAR10 = Version(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    names="batches.meta.txt",
    label_bytes=1,
    classes=10,
    python=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
)
CIFAR100 = Version(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    names="fine_label_names.txt",
    label_bytes=2,  # the coarse class, then the fine one
    classes=100,
    python=("cifar-100-python.tar.gz", "cifar-100-python"),
)


def open_cifar(place: DatasetDir, version: Version) -> Dataset:
    members = (*version.train, version.test, version.names)
    base = place.base(version.test, version.folder)
    if base is not None:
        files = [DatasetDir(place.name, place.where, base).need(name) for name in members]
        return pixel_dataset(
            place, files, lambda: _read_pixels(version, base, {path.name: path.read_bytes() for path in files})
        )
    pickled = place.find(*version.python)
    if pickled and not place.find(version.archive):
        raise MissingFiles(
            f"{place.where}: {pickled} is the Python version, a pickle, which is not read; get {version.archive}"
        )
    archive = place.need(version.archive)
    return pixel_dataset(place, [archive], lambda: _read_pixels(version, archive, _read_archive(archive, members)))


def _read_archive(archive: Path, members: Sequence[str]) -> dict[str, bytes]:
    most = 1 << 28  # the longest file has 154 MB; what claims more is another archive
    with name_broken_file(archive), archive.open("rb") as raw:
        streams = iterate_members(archive, raw, lambda name: PurePosixPath(name).name in members)
        found = {PurePosixPath(name).name: stream.read(most) for name, stream in streams}
    if missing := [name for name in members if name not in found]:
        raise VitreousError(f"{archive}: lacks {missing[0]}; not the binary version of the data set, or truncated")
    return found


def _read_pixels(version: Version, origin: Path, content: Mapping[str, bytes]) -> Pixels:
    lines = content[version.names].decode("utf-8", errors="replace").split("\n")
    classes = tuple(line.strip() for line in lines if line.strip())
    if len(classes) != version.classes or len(set(classes)) != len(classes):
        raise VitreousError(f"{origin}: {version.names} has {len(classes)} names of classes, not {version.classes}")
    train = [_parse_records(version, f"{origin}: {name}", content[name]) for name in version.train]
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pixels(
        classes,
        {"train": (images, labels), "test": _parse_records(version, f"{origin}: {version.test}", content[version.test])},
    )


def _parse_records(version: Version, origin: str, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    length = version.label_bytes + _PIXELS
    if not data or len(data) % length:
        raise VitreousError(f"{origin} has {len(data):,} bytes, not a multiple of {length:,}: truncated or another file")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    labels = records[:, version.label_bytes - 1]
    if labels.max() >= version.classes:
        raise VitreousError(f"{origin} has the label {labels.max()} of {version.classes} classes; damaged or another file")
    return records[:, version.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels
