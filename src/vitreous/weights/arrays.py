"""Lazy, safe readers of named arrays in untrusted .npz, .safetensors and .pt files.

Shapes are known before any data is read, so an architecture can be recognised from a file of any size at once.
Whatever is broken, truncated, oversized or not an array is one clear error. Nothing is ever unpickled freely.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.untrusted_json import read_json
from vitreous.weights.bounded_zip import ZIP_ERRORS, open_zip
from vitreous.weights.torch_file import TensorsOnlyFile

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Arrays(Mapping[str, Tensor]):
    """Names to float32 tensors. `shapes` is there at once; a tensor is read when asked for."""

    path: Path
    shapes: dict[str, Shape]
    read: Callable[[str], Tensor]
    in_file: Callable[[str], str] = str  # what the file itself calls an array

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def open_arrays(path: Path) -> Arrays:
    """Open by what the file is, not by what it is called; the name only decides between formats that look alike."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise VitreousError(f"{path}: cannot read ({error.strerror})") from error
    if not start:
        raise VitreousError(f"{path}: is empty; the copy or download did not finish")
    if path.name.endswith(".index.json"):
        return _open_shards(path)
    if start[:4] == b"PK\x03\x04":
        return _open_npz(path) if path.suffix == ".npz" or _holds_npy(path) else _open_torch(path)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return open_safetensors(path)
    if path.suffix == ".npz":
        raise VitreousError(f"{path}: not a .npz archive, or its beginning is damaged; fetch it again")
    if path.suffix in (".pt", ".pth", ".bin"):
        raise VitreousError(
            f"{path}: not a zip-format torch file; it is damaged, or was written before torch 1.6 and is a plain pickle, "
            f"which is never loaded: have its owner save the state dict as .safetensors"
        )
    raise VitreousError(f"{path}: not a weights file; expected .npz, .safetensors, .pt or .pth")


def _holds_npy(path: Path) -> bool:
    try:
        with open_zip(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except ZIP_ERRORS:
        return False


def _open_npz(path: Path) -> Arrays:
    """A numpy archive. Its headers are checked against the sizes in the archive before memory is taken."""
    try:
        archive = open_zip(path)
        entries = {
            entry.filename.removesuffix(".npy"): entry for entry in archive.infolist() if entry.filename.endswith(".npy")
        }
        headers = {name: _check_header(path, archive, entry) for name, entry in entries.items()}
    except VitreousError:
        raise
    except Exception as error:  # numpy reads a header as Python text: hostile bytes fail there in any way they like
        raise VitreousError(f"{path}: truncated or corrupt .npz ({one_line(error, 100)}); fetch it again") from error

    def read(name: str) -> Tensor:
        shape, fortran, dtype = headers[name]
        try:
            with archive.open(f"{name}.npy") as file:
                _npy_header(file)
                data = bytearray(file.read())  # reading to the end also checks the checksum
        except ZIP_ERRORS as error:
            raise VitreousError(f"{path}: array {name!r} is corrupt ({one_line(error)}); fetch the file again") from error
        order: Literal["F", "C"] = "F" if fortran else "C"
        if dtype.kind == "V" and dtype.itemsize == 2:  # how numpy stores jax's bfloat16
            bits = np.frombuffer(data, np.uint16).reshape(shape, order=order)
            return torch.from_numpy(np.ascontiguousarray(bits)).view(torch.bfloat16).float()
        if dtype.kind not in "fiu":
            raise VitreousError(f"{path}: array {name!r} has type {dtype}, not numbers")
        array = np.frombuffer(data, dtype).reshape(shape, order=order)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))

    return Arrays(path, {name: shape for name, (shape, _, _) in headers.items()}, read)


def _check_header(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[Shape, bool, np.dtype[Any]]:
    with archive.open(entry) as file:
        shape, fortran, dtype = _npy_header(file)
        header = file.tell()
    name = entry.filename.removesuffix(".npy")
    if dtype.hasobject:
        raise VitreousError(f"{path}: array {name!r} holds pickled objects, which are never loaded; only plain numbers are")
    if min(shape, default=0) < 0 or header + math.prod(shape) * dtype.itemsize != entry.file_size:
        raise VitreousError(f"{path}: array {name!r} says shape {shape}, but its data has another size; the file is corrupt")
    return shape, fortran, dtype


def _npy_header(file: IO[bytes]) -> tuple[Shape, bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy has advice for owners of files that Python 2 wrote
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"npy version {version} is not known")


def open_safetensors(path: Path) -> Arrays:
    try:
        file = safe_open(path, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise VitreousError(f"{path}: truncated or corrupt .safetensors ({one_line(error)}); fetch it again") from error

    def read(name: str) -> Tensor:
        # A copy: the file may be overwritten while the model lives, and memory of our own is aligned for fast kernels.
        try:
            return file.get_tensor(name).to(torch.float32, copy=True)
        except (SafetensorError, NotImplementedError, RuntimeError, AttributeError) as error:
            raise VitreousError(f"{path}: tensor {name!r} cannot be read as numbers ({one_line(error)})") from error

    return Arrays(path, shapes, read)


def _open_torch(path: Path) -> Arrays:
    """A .pt or .pth file, through a reader that knows tensors and nothing else."""
    file = TensorsOnlyFile(path)
    shapes = {name: view.shape for name, view in file.tensors.items()}
    return Arrays(path, shapes, lambda name: file.read(name).float().contiguous())


def _open_shards(path: Path) -> Arrays:
    """Several .safetensors files and an index beside them, as Hugging Face splits large models."""
    where = read_shard_index(path)
    parts = {name: open_arrays(path.parent / name) for name in sorted(set(where.values()))}
    for name, part in where.items():
        if name not in parts[part].shapes:
            raise VitreousError(f"{path}: says that {part} holds {name!r}, but it does not")
    return Arrays(path, {name: parts[part].shapes[name] for name, part in where.items()}, lambda name: parts[where[name]][name])


_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")  # in the folder of its index, never a way out of it


def read_shard_index(path: Path) -> dict[str, str]:
    """In which file beside the index each array lies."""
    try:
        where = dict(read_json(path)["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VitreousError(f"{path}: not an index of weight files ({error}); delete it to fetch it again") from error
    for name in where.values():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise VitreousError(f"{path}: points outside its folder, or not to a .safetensors file ({name!r}); refused")
    return where


def view_arrays(arrays: Arrays, make: dict[str, tuple[str, int | None]]) -> Arrays:
    """Arrays under other names: `make` maps each to (old name, index), where an index is one layer of a stacked array."""

    @functools.lru_cache(maxsize=1)  # its layers are asked for one after another
    def read_stack(name: str) -> Tensor:
        return arrays[name]

    def read(name: str) -> Tensor:
        old, index = make[name]
        return arrays[old] if index is None else read_stack(old)[index].clone()

    shapes = {new: arrays.shapes[old] if index is None else arrays.shapes[old][1:] for new, (old, index) in make.items()}
    return Arrays(arrays.path, shapes, read, lambda name: arrays.in_file(make[name][0]))


def axes(arrays: Arrays, name: str, count: int) -> Shape:
    """The shape of an array that has to be there and to have so many axes."""
    if name not in arrays.shapes:
        raise VitreousError(f"{arrays.path}: array {name!r} is missing; the file is incomplete or of another kind")
    if len(arrays.shapes[name]) != count:
        raise VitreousError(f"{arrays.path}: array {name!r} has shape {arrays.shapes[name]}; {count} axes were expected")
    return arrays.shapes[name]


def count_layers(arrays: Arrays, pattern: str) -> int:
    """How many numbers the pattern finds in names, which have to be counted from 0."""
    found = {int(match[1]) for name in arrays.shapes if (match := re.match(pattern, name))}
    if not found or found != set(range(len(found))):
        raise VitreousError(f"{arrays.path}: layers {sorted(found)} are not numbered from 0 without gaps")
    return len(found)


def count_units(arrays: Arrays, pattern: str, first: int) -> tuple[int, ...]:
    """How many units each stage of a ResNet has; the pattern finds stage and unit in a name, both counted from `first`."""
    found = {(int(match[1]), int(match[2])) for name in arrays.shapes if (match := re.search(pattern, name))}
    stages = Counter(stage for stage, _ in sorted(found))
    if found != {(first + i, first + u) for i, units in enumerate(stages.values()) for u in range(units)}:
        raise VitreousError(f"{arrays.path}: the ResNet's stages and units are not numbered from {first} without gaps")
    return tuple(stages.values())


def rename_arrays(arrays: Arrays, old_names: dict[str, str]) -> Arrays:
    """The same arrays under other names, or only some of them."""
    return view_arrays(arrays, {new: (old, None) for new, old in old_names.items()})


def subtree(arrays: Arrays, mark: str, clean: Callable[[str], str] = lambda name: name) -> Arrays | None:
    """The arrays of the one model that holds `mark`, their names counted from its root; None if no model does."""
    roots = roots_of(arrays, mark, clean)
    if not roots:
        return None
    root = roots[0]
    return rename_arrays(
        arrays, {clean(name).removeprefix(root): name for name in arrays.shapes if clean(name).startswith(root)}
    )


def roots_of(arrays: Arrays, mark: str, clean: Callable[[str], str] = lambda name: name) -> list[str]:
    """What stands before `mark`: once, or not at all. A file with several models is refused, for which one is meant?"""
    roots = sorted({clean(name).removesuffix(mark) for name in arrays.shapes if clean(name).endswith(mark)})
    # Moments of an optimiser stand under opt/ and bear the names of the weights.
    roots = [root for root in roots if "opt" not in root.split("/") or root.endswith("target/")] or roots
    if len(roots) > 1:
        raise VitreousError(
            f"{arrays.path}: holds several models, under {' and '.join(map(repr, roots))}; keep one in the file"
        )
    return roots
