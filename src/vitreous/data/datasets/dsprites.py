"""dSprites: 737,280 images of 64 x 64, black and white, in one .npz; every combination of shape, scale, orientation, x, y.

There is one split. VTAB's own is 80, 10 and 10 % of the order that TensorFlow Datasets gives it (see `tfds_order`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.row_subset import BROKEN, RowSubset, broken_file_error, load_array, read_rows, save_arrays
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples
from vitreous.data.datasets.vtab_rules import bin_evenly, check_labels
from vitreous.data.datasets.vtab_tasks import DSPRITES_BINS, DSPRITES_ORIENTATIONS, DSPRITES_X, VtabTask

FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"

_FACTORS = 6  # colour, shape, scale, orientation, x, y
_MOST = 10_000_000  # images; more are not believed
_RULES = {"dsprites-location": (4, DSPRITES_X), "dsprites-orientation": (3, DSPRITES_ORIENTATIONS)}


def open_dsprites(place: DatasetDir, task: VtabTask) -> Parts:
    path = place.need(FILE)
    folder = prepare_once("vtab-dsprites", [path], lambda made: _extract_rows(path, made, place.where))
    column, original = _RULES[task.name]
    sources = {}
    for part in ("train", "test"):
        facts, ids = load_array(folder, f"{part}-factors"), load_array(folder, f"{part}-ids")
        labels = bin_evenly(facts[:, column], original, DSPRITES_BINS)
        check_labels(str(path), ids.tolist(), labels, task.classes)
        size = load_array(folder, "size")
        sources[part] = RowSubset(place.where, part, task.names, labels, folder, part, (int(size[0]), int(size[1])))
    return Parts(sources["train"], int(load_array(folder, "first")), sources["test"])


def _extract_rows(path: Path, folder: Path, where: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            with _open_member(archive, path, "latents_classes", 2) as (stream, shape, kind):
                if kind.kind not in "iu" or shape[1] != _FACTORS:
                    raise VitreousError(f"{path}: latents_classes is {kind} of {shape}; another file than the original")
                factors = np.frombuffer(stream.read(shape[0] * _FACTORS * kind.itemsize), kind)
                if len(factors) != shape[0] * _FACTORS:
                    raise VitreousError(f"{path}: latents_classes is truncated; fetch it again")
                factors = factors.reshape(shape).astype(np.int64)
            order = sort_as_tfds("train", range(len(factors)))
            first, second = len(order) * 8 // 10, len(order) * 9 // 10
            part = choose_examples(order[:first], order[first:second], order[second:], where)
            numbers = {"train": part.training, "test": part.test}
            with _open_member(archive, path, "imgs", 3) as (stream, shape, kind):
                if kind != np.uint8 or shape[0] != len(factors) or not 0 < shape[1] * shape[2] <= 1 << 20:
                    raise VitreousError(f"{path}: imgs is {kind} of {shape} for {len(factors):,} rows; not the original")
                images = read_rows(path, stream, shape, np.concatenate(list(numbers.values())), partial(_pack_bits, path))
    except BROKEN as error:
        raise broken_file_error(path, error) from error
    save_arrays(folder, {"first": np.array(len(part.train)), "size": np.array(shape[1:])})
    split = len(numbers["train"])
    for name, own in (("train", images[:split]), ("test", images[split:])):
        ids = np.array([f"{number:06d}" for number in numbers[name].tolist()])
        save_arrays(folder, {f"{name}-images": own, f"{name}-ids": ids, f"{name}-factors": factors[numbers[name]]})


def _pack_bits(path: Path, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Eight pixels to a byte: they are 0 or 1, and 255 of white."""
    if images.size and images.max() > 1:
        raise VitreousError(f"{path}: imgs has values up to {images.max()}, not 0 and 1; another file than the original")
    return np.packbits(images.reshape(len(images), -1), axis=1)


@contextmanager
def _open_member(
    archive: zipfile.ZipFile, path: Path, name: str, dimensions: int
) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
    """An array of the .npz as a stream behind its header, with its shape and type."""
    if f"{name}.npy" not in archive.namelist():
        raise VitreousError(f"{path}: has no array {name!r}; another file than the original")
    with archive.open(f"{name}.npy") as stream:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, kind = header(stream)
        if fortran or kind.hasobject or len(shape) != dimensions or shape[0] > _MOST:
            raise VitreousError(f"{path}: {name} is {kind} of {shape}; another file than the original")
        yield stream, shape, kind
