"""Read a shard's bytes from a file, an http(s) server, or anything that fsspec can open, with retries.

A read that fails is tried again from the byte where it stopped, so what is read is read once, whatever the line does.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from vitreous.core.errors import VitreousError, one_line

RETRIES = 3  # of a read that fails, until a megabyte has come
DELAY = 0.5  # seconds before the first further attempt; doubled for each, up to LONGEST_DELAY
LONGEST_DELAY = 30.0
_ENOUGH = 1 << 20  # an attempt that brought this many bytes was no failure: the count of retries starts again
_TIMEOUT = 60  # seconds of silence from a server


class Fault(Exception):
    """What is wrong with a shard or a sample; becomes an error or a `Skipped`."""


class Unreadable(Fault):
    """The bytes cannot be had; whether they would be a tar file is unknown."""


class Missing(Unreadable):
    pass


# Addresses ----------------------------------------------------------------------------------------------------------------


def is_remote(shard: str) -> bool:
    return "://" in shard


def is_http(shard: str) -> bool:
    return shard.startswith(("http://", "https://"))


def strip_query(shard: str) -> str:
    """The address without a query, in which signatures are sent; they belong in no id, message or file."""
    return shard.partition("?")[0] if is_http(shard) else shard


def printable_address(shard: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@", "", strip_query(shard)) if is_remote(shard) else shard


def base_name(shard: str) -> str:
    return re.split(r"[/\\]" if os.name == "nt" else "/", strip_query(shard))[-1]


# Bytes --------------------------------------------------------------------------------------------------------------------


def open_bytes(shard: str, buffer: int = io.DEFAULT_BUFFER_SIZE) -> IO[bytes]:
    """A shard's bytes. Those of a file here can be searched, others come in their order."""
    try:
        if not is_remote(shard):
            return Path(shard).open("rb", buffer)
        raw = RemoteBytes(shard)
        raw.connect()
        return io.BufferedReader(raw, buffer)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise Missing("no such file") from error
    except PermissionError as error:  # object stores respond so for what is not there, too
        raise (Missing if is_remote(shard) else Unreadable)("may not be read") from error


class RemoteBytes(io.RawIOBase):
    """The bytes of a shard elsewhere. A read that fails is tried again where it stopped; only then is the shard at fault."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._file: IO[bytes] | None = None
        self._position = self._failures = self._since_failure = 0
        self.size: int | None = None
        self.mark: str | None = None  # by which the server knows this version of the file

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._drop()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            self.connect()
            assert self._file is not None
            try:
                data = self._file.read(len(buffer))
                if not data and self.size is not None and self._position < self.size:
                    raise OSError(f"the connection ended after {self._position:,} of {self.size:,} bytes")
            except MemoryError:
                raise
            except Exception as error:  # each kind of storage has its own errors, and not all are OSErrors
                self._failed(error)
                continue
            buffer[: len(data)] = data
            self._position += len(data)
            self._since_failure += len(data)
            if self._since_failure >= _ENOUGH:
                self._failures = 0
            return len(data)

    def connect(self) -> None:
        while self._file is None:
            try:
                size, mark = self._open()
            except (Fault, VitreousError, MemoryError, FileNotFoundError, IsADirectoryError, PermissionError):
                raise
            except Exception as error:
                self._failed(error)
                continue
            if (self.size, self.mark) != (None, None) and (size, mark) != (self.size, self.mark):
                raise Unreadable("was changed while it was read")
            self.size, self.mark = size, mark

    def _failed(self, error: Exception) -> None:
        self._drop()
        if self._failures >= RETRIES:
            raise Unreadable(f"cannot be read ({one_line(error)}; tried {self._failures + 1} times)") from error
        time.sleep(min(DELAY * 2**self._failures, LONGEST_DELAY))
        self._failures += 1
        self._since_failure = 0

    def _drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._file.close()
        self._file = None

    def _open(self) -> tuple[int | None, str | None]:
        """Opens the file where reading resumes; its size, and its mark if it has one."""
        if is_http(self._shard):
            self._file, begins, size, mark = _open_http(self._shard, self._position)
        else:
            files, path = open_filesystem(self._shard)
            self._file = files.open(path, "rb")
            size, mark, begins = getattr(self._file, "size", None), None, 0
            with contextlib.suppress(OSError, ValueError):  # not every file system can begin in the middle
                begins = self._file.seek(self._position)
        while begins < self._position:
            passed = len(self._file.read(min(self._position - begins, 1 << 20)))
            if not passed:
                raise OSError("the file ends before the place where reading stopped")
            begins += passed
        return size, mark


def _open_http(url: str, position: int) -> tuple[IO[bytes], int, int | None, str | None]:
    """An open response, the byte with which it begins, and the whole file's size and mark."""
    headers = {"User-Agent": "vitreous", "Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403, 404, 410):
            raise Missing("no such file" if error.code >= 404 else f"the server refuses it ({error.code})") from error
        if error.code < 500 and error.code not in (408, 425, 429):
            raise Unreadable(f"the server responds {error.code} {error.reason}") from error
        raise
    begins = position if response.status == 206 else 0
    length = response.headers.get("Content-Length")
    size = begins + int(length) if length and length.isdecimal() else None
    return response, begins, size, response.headers.get("ETag") or response.headers.get("Last-Modified")


def open_filesystem(address: str) -> tuple[Any, str]:
    import fsspec  # only for what is far away

    try:
        files, path = fsspec.core.url_to_fs(address)
    except ImportError as error:  # which says what to install
        raise VitreousError(f"{printable_address(address)}: {one_line(error)}") from error
    except ValueError as error:
        raise VitreousError(
            f"{printable_address(address)}: {one_line(error)}; expected a path, or an address as s3://BUCKET/NAME"
        ) from error
    return files, path
