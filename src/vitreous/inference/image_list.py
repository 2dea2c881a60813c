"""The images that a command names: files, folders, patterns and standard input, listed lazily in a fixed order.

    photo.jpg         a file; one that is not there is an entry all the same, so that its row can say so
    photos/           searched with everything below it, in the order of names; hidden files are passed over
    'photos/**/*.jpg' a pattern that the shell has left alone; a file that really has that name comes first
    -                 standard input: names, a line each or parted by NUL (`find -print0`), or one encoded image

The order is the same each time, which resuming and sharding over ranks rely on. Only the names of one folder, and of the
folders above it, are in memory at a time.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.image_formats import LeftOutFiles, is_image_name

STDIN = "-"
_MOST = 1 << 29  # bytes of one image on standard input; encoded, what decoding allows is far smaller
_READ = 1 << 16
_ENDLESS = 1 << 20  # bytes without a newline: no list of names

Above = tuple[tuple[int, int], ...]  # device and number of the folders that one came through


@dataclass(frozen=True)
class NamedImage:
    """One image: where it is, or its bytes, or why there is nothing to read."""

    path: str
    content: bytes | None = field(default=None, repr=False)
    error: str | None = None


def image_list(
    words: Sequence[str], stdin: BinaryIO | None = None, *, shared: bool = False, left_out: LeftOutFiles | None = None
) -> Iterator[NamedImage]:
    """The images that these words name. `shared` tells that other processes read the same standard input; `left_out`
    counts the files of folders that are passed over, while the list is read."""
    if not words:
        raise VitreousError("no images given; name image files, folders that hold some, or - for standard input")
    if list(words).count(STDIN) > 1:
        raise VitreousError("- is given twice, and standard input can be read once; leave one out")
    if "" in words:
        raise VitreousError("an image is given as an empty word; check the quotes and variables of the command")
    for word in words:
        others = LeftOutFiles()
        if word != STDIN and next(_of(word, others), None) is None:  # now: a mistyped pattern costs no time
            what = "a pattern that no image matches" if _is_pattern(word) else "no images in this folder"
            found = f" ({others.notes()[0]})" if others.count else ""
            raise VitreousError(f"{word}: {what}{found}; check the path, and that names end in .jpg, .png and so on")
    return _all(words, stdin, shared, LeftOutFiles() if left_out is None else left_out)


def _all(words: Sequence[str], stdin: BinaryIO | None, shared: bool, left_out: LeftOutFiles) -> Iterator[NamedImage]:
    for word in words:
        if word == STDIN:
            yield from _from_stdin(stdin or sys.stdin.buffer, shared)
        else:
            yield from _of(word, left_out)


def _of(word: str, left_out: LeftOutFiles) -> Iterator[NamedImage]:
    if os.path.isdir(word):  # noqa: PTH112
        yield from _below(word.rstrip("/" + os.sep) or word[:1], (), left_out)
    elif _is_pattern(word):
        yield from _matching(word, left_out)
    else:
        yield NamedImage(word)


# Folders -----------------------------------------------------------------------------------------------------------------


def _below(folder: str, above: Above, left_out: LeftOutFiles) -> Iterator[NamedImage]:
    """Every image in and under a folder. Links are followed, and never in a circle."""
    try:
        status = os.stat(folder)  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        entries = _entries(folder)
    except OSError as error:
        yield _closed(folder, error)
        return
    for name in sorted(entries):
        path = os.path.join(folder, name)  # noqa: PTH118
        if is_image_name(name):  # a folder of such a name too: its row says what is wrong
            yield NamedImage(path)
        elif entries[name]:
            yield from _below(path, (*above, identity), left_out)
        else:
            left_out.add(path)


def _entries(folder: str) -> dict[str, bool]:
    """What is visible: whether it is a folder."""
    with os.scandir(folder) as found:
        return {entry.name: _is_folder(entry) for entry in found if not entry.name.startswith(".")}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _closed(folder: str, error: OSError) -> NamedImage:
    return NamedImage(folder, error=f"the folder cannot be looked into ({error.strerror or error})")


# Patterns ----------------------------------------------------------------------------------------------------------------


def _is_pattern(word: str) -> bool:
    return re.search(r"[*?\[]", word) is not None and not os.path.lexists(word)


def _matching(pattern: str, left_out: LeftOutFiles) -> Iterator[NamedImage]:
    """As the shell would, and in a fixed order; `**` is any number of folders. Standard glob gives no order to rely on."""
    drive, rest = os.path.splitdrive(pattern)
    root = drive + (os.sep if rest.startswith(("/", os.sep)) else "")
    parts = [part for part in (re.split(r"[/\\]", rest) if os.sep == "\\" else rest.split("/")) if part]
    parts = [part for at, part in enumerate(parts) if part != "**" or at == 0 or parts[at - 1] != "**"]
    if parts[-1] == "**":
        parts.append("*")
    yield from _matched(root, parts, (), left_out)


def _matched(folder: str, parts: Sequence[str], above: Above, left_out: LeftOutFiles) -> Iterator[NamedImage]:
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _matched(folder, rest, (), left_out)
        try:
            status = os.stat(folder or ".")  # noqa: PTH116
            identity = (status.st_dev, status.st_ino)
            names = [] if identity in above else _names(folder, True)
        except OSError:
            return  # told by the line before
        for name in names:
            if not name.startswith("."):
                yield from _matched(os.path.join(folder, name), parts, (*above, identity), left_out)  # noqa: PTH118
        return
    if not re.search(r"[*?\[]", first):
        path = os.path.join(folder, first)  # noqa: PTH118
        if rest:
            yield from _matched(path, rest, (), left_out)
        elif os.path.lexists(path):
            yield NamedImage(path)
        return
    try:
        names = _names(folder, bool(rest))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield _closed(folder or ".", error)
        return
    anything = not rest and not first.strip("*")  # of `photos/*` those are meant that a search of photos/ would find
    matches = re.compile(fnmatch.translate(os.path.normcase(first))).match
    for name in names:
        if not matches(os.path.normcase(name)) or (name.startswith(".") and not first.startswith(".")):
            continue
        path = os.path.join(folder, name)  # noqa: PTH118
        if rest:
            yield from _matched(path, rest, (), left_out)
        elif is_image_name(name) or not (anything or os.path.isdir(path)):  # noqa: PTH112
            yield NamedImage(path)
        elif not os.path.isdir(path):  # noqa: PTH112
            left_out.add(path)


def _names(folder: str, folders_only: bool) -> list[str]:
    with os.scandir(folder or ".") as found:
        return sorted(entry.name for entry in found if not folders_only or _is_folder(entry))


# Standard input ----------------------------------------------------------------------------------------------------------


def _from_stdin(stream: BinaryIO, shared: bool) -> Iterator[NamedImage]:
    pieces = _pieces(stream, shared)
    head = b""
    for piece in pieces:
        head += piece
        lines = head.endswith(b"\n") and head[:1] not in (b"\xff", b"\x89", b"\0")  # names that come one at a time
        if lines or (len(head) >= 16 and (is_encoded_image(head) or b"\0" in head or b"\n" in head)):
            break
        if len(head) > _ENDLESS:
            raise VitreousError("-: standard input is neither a list of names nor an image of a kind that can be told")
    if is_encoded_image(head):
        yield _whole(head, pieces)
        return
    found = False
    for name in _separated(head, pieces, b"\0" if b"\0" in head else b"\n"):
        found = True
        yield NamedImage(name)
    if not found:
        raise VitreousError("-: standard input is empty; give the names of images, a line each, or one encoded image")


def _pieces(stream: BinaryIO, shared: bool) -> Iterator[bytes]:
    """What comes, as it comes. A file that several processes have as their input has one position for all of them, so each
    reads it by positions of its own; of a pipe each would get what the others leave."""
    try:
        number = stream.fileno()
        regular = stat.S_ISREG(os.fstat(number).st_mode)
    except (OSError, ValueError):  # no file of the system's: a test, or a program that has put its own there
        number, regular = -1, False
    if not shared:
        read = getattr(stream, "read1", stream.read)
        while piece := read(_READ):
            yield piece
        return
    if not regular or not hasattr(os, "pread"):
        raise VitreousError("-: several processes cannot share a pipe; write the names to a file and give it with < FILE")
    position = 0
    while piece := os.pread(number, _READ, position):
        yield piece
        position += len(piece)


def _separated(head: bytes, pieces: Iterator[bytes], by: bytes) -> Iterator[str]:
    rest = head
    while True:
        *whole, rest = rest.split(by)
        for name in whole:
            if name := _name(name, by):
                yield os.fsdecode(name)
        if len(rest) > _ENDLESS:
            raise VitreousError(f"-: {len(rest):,} bytes of standard input without an end of line are no list of names")
        piece = next(pieces, None)
        if piece is None:
            break
        rest += piece
    if name := _name(rest, by):
        yield os.fsdecode(name)


def _name(raw: bytes, by: bytes) -> bytes:
    if by == b"\n":
        if b"\0" in raw:
            raise VitreousError("-: standard input has names parted by newlines and by NUL; use one of them")
        raw = raw.removesuffix(b"\r")
    return raw


def _whole(head: bytes, pieces: Iterator[bytes]) -> NamedImage:
    content = bytearray(head)
    for piece in pieces:
        content += piece
        if len(content) > _MOST:
            return NamedImage(STDIN, error=f"more than {_MOST:,} bytes on standard input; give large images as files")
    return NamedImage(STDIN, bytes(content))


def is_encoded_image(head: bytes) -> bool:
    """Whether this begins an image file and cannot begin a list of names: each mark has bytes that no text has there."""
    return (
        head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  "))
        or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
        or (head[:6] in (b"GIF87a", b"GIF89a") and b"\0" in head[6:13])
        or (head[:3] == b"\0\0\0" and head[4:8] == b"ftyp")
        or (head[:2] == b"BM" and head[6:10] == b"\0\0\0\0")
    )
