"""dSprites: 737,280 images of 64 x 64, black and white, in one .npz; every combination of shape, scale, orientation, x, y.

There is one split. VTAB's own is 80, 10 and 10 % of the order that TensorFlow Datasets gives it (see `tfds_order`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import name_broken_file
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.pixel_arrays import read_array, read_rows
from vitreous.data.datasets.tfds_order import sort_as_tfds
from vitreous.data.datasets.vtab_parts import Parts, choose_examples, open_rows, save_rows
from vitreous.data.datasets.vtab_rules import bin_evenly
from vitreous.data.datasets.vtab_tasks import DSPRITES_BINS, DSPRITES_ORIENTATIONS, DSPRITES_X, VtabTask

FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"

_FACTORS = 6  # colour, shape, scale, orientation, x, y
_MOST = 10_000_000  # images; more are not believed
_RULES = {"dsprites-location": (4, DSPRITES_X), "dsprites-orientation": (3, DSPRITES_ORIENTATIONS)}


def open_dsprites(place: DatasetDir, task: VtabTask) -> Parts:
    path = place.need(FILE)
    folder = prepare_once("vtab-dsprites", [path], lambda made: _extract_rows(path, made, place.where))
    column, original = _RULES[task.name]
    return open_rows(place, task, folder, lambda factors: bin_evenly(factors[:, column], original, DSPRITES_BINS))


def _extract_rows(path: Path, folder: Path, where: str) -> None:
    with name_broken_file(path), zipfile.ZipFile(path) as archive:
        with _open_member(archive, path, "latents_classes", 2) as (stream, shape, kind):
            if kind.kind not in "iu" or shape[1] != _FACTORS:
                raise VitreousError(f"{path}: latents_classes is {kind} of {shape}; another file than the original")
            factors = read_array(path, stream, shape, kind).astype(np.int64)
        order = sort_as_tfds("train", range(len(factors)))
        first, second = len(order) * 8 // 10, len(order) * 9 // 10
        chosen = choose_examples(order[:first], order[first:second], order[second:], where)
        rows = np.concatenate((chosen.training, chosen.test))
        with _open_member(archive, path, "imgs", 3) as (stream, shape, kind):
            if kind != np.uint8 or shape[0] != len(factors) or not 0 < shape[1] * shape[2] <= 1 << 20:
                raise VitreousError(f"{path}: imgs is {kind} of {shape} for {len(factors):,} rows; not the original")
            images = read_rows(path, stream, shape, rows)
    if images.max(initial=0) > 1:
        raise VitreousError(f"{path}: imgs has values up to {images.max()}, not 0 and 1; another file than the original")
    save_rows(folder, chosen, images * np.uint8(255), [f"{number:06d}" for number in rows.tolist()], factors[rows])


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
