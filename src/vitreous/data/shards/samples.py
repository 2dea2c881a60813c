"""Read the samples of a tar file in the webdataset layout, with one at a time in memory.

What tarfile takes for an end of the archive, a bad header or a missing end mark, is a broken shard here: samples must not
vanish unnoticed.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import reprlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vitreous.core.untrusted_json import parse_json
from vitreous.data.conventions import SUFFIXES
from vitreous.data.shards.byte_stream import Fault, Unreadable, open_bytes
from vitreous.data.source import Item

Label: TypeAlias = int | str

UNKNOWN_SUFFIX = ".img"  # what the writer calls an image whose format has no usual suffix
MEMBER_BYTES = 1 << 28  # of an image: no photograph comes near it, and a worker's memory must have a bound
TEXT_BYTES = 1 << 24  # of a sample's labels and of a tar header's extensions
_IMAGES = (*SUFFIXES, UNKNOWN_SUFFIX)
_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, RecursionError, OverflowError)  # what garbage raises


@dataclass
class Sample:
    """Members of one key, as they come."""

    key: str
    image: bytes | None = None
    member: str = ""  # the image's
    second: bool = False  # the image's suffix is not all that follows the key, as in 7.seg.png; 7.png would be preferred
    texts: dict[str, bytes] = field(default_factory=dict)  # of cls and json
    ambiguous: str = ""
    damaged: str = ""

    @property
    def fault(self) -> str:
        return self.damaged or self.ambiguous

    def take(self, archive: tarfile.TarFile, info: tarfile.TarInfo, suffix: str, pixels: bool) -> None:
        is_image = f".{suffix}".endswith(_IMAGES)
        if not is_image and suffix not in ("cls", "json"):
            return
        second = is_image and f".{suffix}" not in _IMAGES
        if is_image and self.image is not None and second != self.second:
            if second:
                return
            self.image, self.ambiguous = None, ""
        if not info.isreg():
            self.damaged = f"{info.name} is a link, not a file"
        elif is_image and self.image is not None:
            self.ambiguous = f"{self.member} and {info.name} have one key (it ends at the first dot), so which is the image?"
        elif info.size > (MEMBER_BYTES if is_image else TEXT_BYTES):
            self.damaged = f"{info.name} has {info.size:,} bytes; at most {MEMBER_BYTES if is_image else TEXT_BYTES:,}"
        elif not is_image:
            self.texts[suffix] = _read_member(archive, info)
        else:
            self.image, self.member, self.second = _read_member(archive, info) if pixels else b"", info.name, second

    def labels(self) -> tuple[Label, ...]:
        """Numbers or names, as they are written."""
        if "cls" in self.texts:
            text = self.texts["cls"].decode("utf-8", "replace").strip()
            words = [word for word in re.split(r"[\s,]+", text) if word]
            found: Any = [int(word) for word in words] if all(re.fullmatch(r"-?\d{1,18}", word) for word in words) else [text]
        elif "json" in self.texts:
            try:
                found = parse_json(self.texts["json"])
            except ValueError as error:
                raise Fault(f"{self.key}.json: not JSON ({error})") from error
            if isinstance(found, dict):
                found = next((found[key] for key in ("label", "labels", "cls") if found.get(key) is not None), [])
            found = found if isinstance(found, list) else [found]
        else:
            return ()
        if found == [-1]:  # what others write for "not known"
            return ()
        for label in found:
            if isinstance(label, bool) or not isinstance(label, (int, str)) or (isinstance(label, int) and label < 0):
                raise Fault(f"{self.key}: label {reprlib.repr(label)} is neither a class number nor a name")
        return tuple(found)

    def item(self, name: str, place: str, numbers: dict[str, int], classes: int) -> Item:
        if self.fault or self.image is None:
            raise Fault(self.fault)
        labels = []
        for label in self.labels():
            number = numbers.get(label) if isinstance(label, str) else label
            if number is None or number >= classes:
                raise Fault(f"{self.key}: label {reprlib.repr(label)} is none of the {classes:,} classes")
            labels.append(number)
        return Item(f"{name}/{self.key}", tuple(labels), self.image, f"{place}: {self.member}")


def read_samples(shard: str, pixels: bool = True) -> Iterator[Sample]:
    """The samples of one shard. Where it breaks, the sample before is not given: its last members may be lost."""
    sample: Sample | None = None
    with contextlib.ExitStack() as stack:
        try:
            archive: Any = _open_tar(stack, shard, buffer=1 << 18 if pixels else 1 << 12)
            while (info := archive.next()) is not None:
                archive.members.clear()  # or a large shard's list would grow without end
                folder, slash, name = info.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                if info.isdir() or not stem or not dot:  # hidden files, and what macOS adds to archives
                    continue
                key = f"{folder}{slash}{stem}"
                if sample is not None and key != sample.key:
                    yield sample
                    sample = None
                sample = sample or Sample(key)
                sample.take(archive, info, suffix.lower(), pixels)
            _check_end(archive)
        except _BROKEN as error:
            raise Fault(f"broken tar file ({error})") from error
    if sample is not None:
        yield sample


def _open_tar(stack: contextlib.ExitStack, shard: str, buffer: int) -> tarfile.TarFile:
    file: Any = stack.enter_context(open_bytes(shard, buffer))
    seekable = file.seekable()  # then members that are not used need not be read
    if file.peek(2)[:2] == b"\x1f\x8b":
        file, seekable = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")), False
    try:
        mode: Any = "r:" if seekable else "r|"
        return stack.enter_context(tarfile.open(fileobj=file, mode=mode, tarinfo=_Header, encoding="utf-8"))
    except Unreadable:
        raise
    except (Fault, *_BROKEN) as error:
        raise Fault("not a tar file") from error


def _read_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    content = file.read() if file is not None else b""
    if len(content) != info.size:
        raise Fault(f"broken tar file ({info.name} is truncated)")
    return content


def _check_end(archive: tarfile.TarFile) -> None:
    """Nothing but zeros may follow the end mark. Reading to the end also makes gzip compare its checksum."""
    file: Any = archive.fileobj
    while rest := file.read(1 << 16):
        if rest.strip(b"\0"):
            raise Fault("has data after its end mark; were several tar files put together?")


class _Header(tarfile.TarInfo):
    """Tells a broken header and a missing end from the end mark; tarfile ends the archive in silence for all of them."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        if len(buf) != tarfile.BLOCKSIZE:
            raise Fault("truncated: it has no end mark")
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):  # the end mark, by which tarfile knows the end
                raise
            raise Fault(f"broken tar file ({error})") from error
        extension = header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if header.size < 0 or (extension and header.size > TEXT_BYTES):  # tarfile would read it into memory, whatever it says
            raise Fault(f"broken tar file (a header of {header.size:,} bytes)")
        return header
