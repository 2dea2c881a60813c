"""Read Matlab's .mat files of version 5 (which Matlab 5 to 7.2 write): arrays of numbers, texts and structs of these.

Written by hand because scipy's reader is compiled and trusts the file: with a few bytes changed it crashes the process
(scipy 1.17.1, segmentation fault, found by the test that changes bytes). Nothing here can: every length is checked.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError

_STORED = {
    1: "i1",
    2: "u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}  # how numbers lie there
_NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_TEXTS = {2: "utf-8", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_NAME, _SIZES, _FLAGS, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_STRUCT, _TEXT = 2, 4
_MOST = 1 << 30  # bytes of one variable, unpacked; the largest here has 225 MB
_DEEPEST = 4  # structs in structs


class _Damaged(Exception):
    """What the file says cannot be."""


def read_mat(path: Path, *names: str) -> tuple[Any, ...]:
    """These variables of the file: numpy arrays, str, and for structs a list of dict, one for each element."""
    try:
        content = path.read_bytes()
        found = _read_variables(content, names)
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (_Damaged, struct.error, zlib.error, UnicodeDecodeError) as error:
        raise VitreousError(f"{path}: broken, truncated or no Matlab file of version 5 ({error}); fetch it again") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise VitreousError(f"{path}: has no variable {missing[0]!r}; another file than the one meant")
    return tuple(found[name] for name in names)


def check_integers(path: Path, name: str, array: Any, lowest: int, highest: int) -> NDArray[np.int64]:
    """A row or column of whole numbers in a range. Matlab keeps them as any type, floats among them."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind not in "uif" or not np.array_equal(flat, np.floor(flat)):
        raise VitreousError(f"{path}: {name!r} is {flat.dtype}, not whole numbers; another file than the one meant")
    if len(flat) and (flat.min() < lowest or flat.max() > highest):
        raise VitreousError(f"{path}: {name!r} goes from {flat.min()} to {flat.max()}, not {lowest} to {highest}; a wrong file")
    return flat.astype(np.int64)


def _read_variables(content: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    if content[124:128] != b"\x00\x01IM":  # version and byte order, which is that of all machines that write such files
        raise _Damaged("it does not begin as one")
    found: dict[str, Any] = {}
    for kind, data in _iterate_elements(memoryview(content)[128:]):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(data, _MOST)
            if not unpacker.eof:
                raise _Damaged("a variable is truncated, or larger than believed")
            kind, data = next(_iterate_elements(memoryview(unpacked)), (0, data))
        if kind == _MATRIX:
            parts = _iterate_elements(data)
            name, what, sizes = _read_header(parts)
            if name in names:
                found[name] = _read_value(what, sizes, parts, 0)
    return found


def _iterate_elements(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Kind and bytes of one element after another. Those of up to four bytes may lie in the tag itself."""
    place = 0
    while place < len(view):
        first, second = struct.unpack_from("<II", view, place)
        small = first >> 16
        kind, length, start = (first & 0xFFFF, small, place + 4) if small else (first, second, place + 8)
        if small > 4 or start + length > len(view):
            raise _Damaged(f"an element of {length:,} bytes where {len(view) - start:,} are left")
        yield kind, view[start : start + length]
        place = place + 8 if small else start + (length if kind == _COMPRESSED else -(-length // 8) * 8)


def _expect_element(parts: Iterator[tuple[int, memoryview]], *kinds: int) -> tuple[int, memoryview]:
    kind, data = next(parts, (0, memoryview(b"")))
    if kind not in kinds:
        raise _Damaged(f"an element of kind {kind} where {' or '.join(map(str, kinds))} should be")
    return kind, data


def _expect_numbers(parts: Iterator[tuple[int, memoryview]], *kinds: int) -> NDArray[Any]:
    kind, data = _expect_element(parts, *kinds)
    if len(data) % np.dtype(_STORED[kind]).itemsize:
        raise _Damaged(f"{len(data):,} bytes of {_STORED[kind]}")
    return np.frombuffer(data, _STORED[kind])


def _read_header(parts: Iterator[tuple[int, memoryview]]) -> tuple[str, int, tuple[int, ...]]:
    """Name, class and sizes of a matrix."""
    flags, sizes = _expect_numbers(parts, _FLAGS), tuple(_expect_numbers(parts, _SIZES).tolist())
    if len(flags) != 2 or len(sizes) < 2 or min(sizes) < 0:
        raise _Damaged(f"a matrix of sizes {sizes}")
    if flags[0] & 0x0800:
        raise _Damaged("complex numbers")
    return bytes(_expect_element(parts, _NAME)[1]).decode("ascii"), int(flags[0]) & 0xFF, sizes


def _read_value(what: int, sizes: tuple[int, ...], parts: Iterator[tuple[int, memoryview]], depth: int) -> Any:
    count = math.prod(sizes)
    if what in _NUMBERS:
        numbers = _expect_numbers(parts, *_STORED)
        if len(numbers) != count:
            raise _Damaged(f"{len(numbers):,} numbers where {sizes} should be")
        return numbers.astype(_NUMBERS[what], copy=False).reshape(sizes, order="F")
    if what == _TEXT:
        kind, data = _expect_element(parts, *_TEXTS)
        return bytes(data).decode(_TEXTS[kind])
    if what == _STRUCT and depth < _DEEPEST:
        fields = _read_field_names(parts)
        return [{name: _read_field(parts, depth) for name in fields} for _ in range(count)]
    raise _Damaged(f"a matrix of class {what}, which is neither numbers nor text nor a struct")


def _read_field_names(parts: Iterator[tuple[int, memoryview]]) -> list[str]:
    lengths = _expect_numbers(parts, _SIZES).tolist()
    names = bytes(_expect_element(parts, _NAME)[1])
    if len(lengths) != 1 or not 0 < lengths[0] <= 64 or len(names) % lengths[0] or not names:
        raise _Damaged("a struct without fields")
    return [names[start : start + lengths[0]].split(b"\0")[0].decode("ascii") for start in range(0, len(names), lengths[0])]


def _read_field(parts: Iterator[tuple[int, memoryview]], depth: int) -> Any:
    inner = _iterate_elements(_expect_element(parts, _MATRIX)[1])
    _, what, sizes = _read_header(inner)
    return _read_value(what, sizes, inner, depth + 1)
