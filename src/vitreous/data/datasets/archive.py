"""Read and unpack .tar, .tar.gz and .zip archives, which are untrusted input.

Only regular files are taken. A name that leads out of the archive's own folder, or a link where a file should be, is
refused: no data set's original archive has one. Modes, owners and dates in an archive are not restored.
"""

from __future__ import annotations

import contextlib
import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.progress import byte_progress

NameFilter = Callable[[str], bool]

_GROWTH, _ROOM = 10, 1 << 28  # an archive of images hardly grows; one that grows tenfold, and by 256 MB, is a bomb
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError, ValueError, OverflowError,
    RuntimeError, NotImplementedError,
)  # fmt: skip
"""What the standard library raises on damaged, cut, encrypted or exotic archives."""


def unpack(archive: Path, into: Path, keep: NameFilter) -> None:
    """The members to keep, under their names, as files in `into`."""
    size = archive.stat().st_size
    limit = size * _GROWTH + _ROOM
    with (
        name_broken_file(archive),
        byte_progress(archive.name, "unpacking", "unpacked") as progress,
        archive.open("rb") as raw,
    ):
        progress(0, size)
        for name, stream in iterate_members(archive, raw, keep):
            limit -= write_member(into / name, stream, archive, limit)
            progress(raw.tell(), size)
        progress(size, size)


def write_member(target: Path, stream: IO[bytes], archive: Path, limit: int) -> int:
    """One member as a file; how long it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while chunk := stream.read(1 << 20):
            file.write(chunk)
            if file.tell() > limit:
                raise VitreousError(f"{archive}: grows far beyond its size when unpacked; not the original archive, refused")
        return file.tell()


@contextlib.contextmanager
def name_broken_file(path: Path) -> Iterator[None]:
    """Around any reading of an original: says of which file, and what to do, if it is broken."""
    try:
        yield
    except _BROKEN as error:
        raise VitreousError(f"{path}: broken, truncated or another file ({one_line(error)}); fetch it again") from error


@contextlib.contextmanager
def open_original(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file that may be gzipped."""
    with name_broken_file(path), path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw


def iterate_members(archive: Path, raw: IO[bytes], keep: NameFilter) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of the files to keep in `raw`, in their order; the content is there until the next is asked for.

    `raw` is the archive itself, or an archive in it: a zip with a tar in it is read without a copy on the disk.
    """
    start = raw.read(4)
    raw.seek(0)
    if start == b"PK\x03\x04":
        yield from _iterate_zip(archive, raw, keep)
    elif start[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield from _iterate_tar(archive, cast(IO[bytes], stream), keep)
            while stream.read(1 << 20):  # to the end, where its checksum is
                pass
    else:
        yield from _iterate_tar(archive, raw, keep)


def _iterate_tar(archive: Path, stream: IO[bytes], keep: NameFilter) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if name := _take_name(archive, member.name, member.isdir(), keep):
                content = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    raise VitreousError(f"{archive}: {name} is a link or a device; not the original archive, refused")
                yield name, content


def _iterate_zip(archive: Path, raw: IO[bytes], keep: NameFilter) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(raw) as file:
        for member in file.infolist():
            if name := _take_name(archive, member.filename, member.is_dir(), keep):
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise VitreousError(f"{archive}: {name} is a link; not the original archive, refused")
                with file.open(member) as content:
                    yield name, content


def _take_name(archive: Path, name: str, folder: bool, keep: NameFilter) -> str | None:
    """The name of a file to keep; None for any other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(sign in name for sign in "\\:\0"):
        raise VitreousError(f"{archive}: holds {name!r}, which leads out of its folder; not the original archive, refused")
    clutter = any(part.startswith("._") or part == "__MACOSX" for part in path.parts)  # what macOS adds beside each file
    return None if folder or clutter or not keep(str(path)) else str(path)
