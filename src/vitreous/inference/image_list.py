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
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from vitreous.core.errors import VitreousError
from vitreous.core.files import is_directory
from vitreous.data.transforms.image_formats import describe_left_out, is_image_name

STDIN = "-"
_MOST = 1 << 29  # bytes of one image on standard input; encoded, what decoding allows is far smaller
_READ = 1 << 16
_ENDLESS = 1 << 20  # bytes without a newline: no list of names

Names = tuple[str, ...]  # of the folders from the root, and of a file
Above = tuple[tuple[int, int], ...]  # device and number of the folders that one came through


@dataclass(frozen=True)
class NamedImage:
    """One image: where it is, or its bytes, or why there is nothing to read."""

    path: str
    content: bytes | None = field(default=None, repr=False)
    error: str | None = None


def image_list(
    words: Sequence[str], stdin: BinaryIO | None = None, *, shared: bool = False, left_out: list[str] | None = None
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
        others: list[str] = []
        if word != STDIN and next(_of(word, others), None) is None:  # now: a mistyped pattern costs no time
            what = "a pattern that no image matches" if _is_pattern(word) else "no images in this folder"
            found = f" ({describe_left_out(others, len(others))})" if others else ""
            raise VitreousError(f"{word}: {what}{found}; check the path, and that names end in .jpg, .png and so on")
    return _all(words, stdin, shared, [] if left_out is None else left_out)


def _all(words: Sequence[str], stdin: BinaryIO | None, shared: bool, left_out: list[str]) -> Iterator[NamedImage]:
    for word in words:
        if word == STDIN:
            yield from _from_stdin(stdin or sys.stdin.buffer, shared)
        else:
            yield from _of(word, left_out)


def _of(word: str, left_out: list[str]) -> Iterator[NamedImage]:
    if os.path.isdir(word):  # noqa: PTH112
        yield from _matching(word.rstrip("/" + os.sep) or word[:1], ["**", "*"], left_out)
    elif _is_pattern(word):
        parts = word.replace(os.sep, "/").split("/")
        fixed = list(itertools.takewhile(lambda part: not _MAGIC.search(part), parts))
        rest = [part for part in parts[len(fixed) :] if part]
        root = "/".join(fixed) or word[: word.startswith("/")]
        yield from _matching(root, [*rest, "*"] if rest[-1] == "**" else rest, left_out)
    else:
        yield NamedImage(word)


# Folders and patterns ----------------------------------------------------------------------------------------------------

_MAGIC = re.compile(r"[*?\[]")


def _is_pattern(word: str) -> bool:
    return _MAGIC.search(word) is not None and not os.path.lexists(word)


def _matching(
    folder: str, parts: Sequence[str], left_out: list[str], names: Names = (), above: Above = ()
) -> Iterator[NamedImage]:
    """The images in and under a folder whose names from its root match a pattern's parts, in the order of names.

    As the shell would; `**` is any number of folders. Standard glob gives no order to rely on. Links are followed, and never
    in a circle.
    """
    try:
        status = os.stat(folder or ".")  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        with os.scandir(folder or ".") as found:
            entries = {entry.name: is_directory(entry) for entry in found} if identity not in above else {}
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield NamedImage(folder or ".", error=f"the folder cannot be looked into ({error.strerror or error})")
        return
    anything = not parts[-1].strip("*")  # of `photos/*` those are meant that a search of photos/ would find
    for name in sorted(entries):
        path, inside, is_folder = os.path.join(folder, name), (*names, name), entries[name]  # noqa: PTH118
        matches = _matches(parts, inside)
        if matches and (
            is_image_name(name) or not (anything or is_folder)
        ):  # a folder so named too: its row says what is wrong
            yield NamedImage(path)
        elif is_folder and _matches(parts, inside, below=True):
            yield from _matching(path, parts, left_out, inside, (*above, identity))
        elif matches and not is_folder:
            left_out.append(path)


def _matches(parts: Sequence[str], names: Names, below: bool = False) -> bool:
    """Whether the names match the parts of a pattern; with `below`, whether names below them may."""
    if not names:
        return bool(parts) == below
    if not parts:
        return False
    first, rest = parts[0], parts[1:]
    visible = not names[0].startswith(".")
    if first == "**":
        return _matches(rest, names, below) or (visible and _matches(parts, names[1:], below))
    return (visible or first.startswith(".")) and fnmatch.fnmatch(names[0], first) and _matches(rest, names[1:], below)


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
            raise VitreousError("-: standard input is neither a list of names nor an image of a known kind")
    if is_encoded_image(head):
        yield _whole(head, pieces)
        return
    names = _separated(head, pieces, b"\0" if b"\0" in head else b"\n")
    first = next(names, None)
    if first is None:
        raise VitreousError("-: standard input is empty; give the names of images, a line each, or one encoded image")
    yield from map(NamedImage, itertools.chain([first], names))


def _pieces(stream: BinaryIO, shared: bool) -> Iterator[bytes]:
    """What comes, as it comes. A file that several processes have as their input has one position for all of them, so each
    reads it by positions of its own; of a pipe each would get what the others leave."""
    if not shared:
        read = getattr(stream, "read1", stream.read)
        yield from iter(lambda: read(_READ), b"")
        return
    position = 0
    try:
        while piece := os.pread(stream.fileno(), _READ, position):
            yield piece
            position += len(piece)
    except (OSError, AttributeError):  # a pipe, or a system without such reads
        raise VitreousError(
            "-: several processes cannot share a pipe; write the names to a file and give it with < FILE"
        ) from None


def _separated(head: bytes, pieces: Iterator[bytes], by: bytes) -> Iterator[str]:
    rest = b""
    for piece in itertools.chain([head], pieces, [by]):  # the last name need not have an end
        *names, rest = (rest + piece).split(by)
        for name in names:
            if by == b"\n" and b"\0" in name:
                raise VitreousError("-: standard input has names parted by newlines and by NUL; use one of them")
            if name := name.removesuffix(b"\r") if by == b"\n" else name:
                yield os.fsdecode(name)
        if len(rest) > _ENDLESS:
            raise VitreousError(f"-: {len(rest):,} bytes of standard input without an end of line are no list of names")


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
