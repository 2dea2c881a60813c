"""Fetch one file over HTTP, whole and checked or not at all, with the standard library alone.

Beside a target NAME lie, while it is fetched, NAME.part (the bytes so far), NAME.part.json (what the server said of
them, so that a later run can go on) and NAME.lock (one process at a time); afterwards NAME.source.json, by which
later loads know without a network that the file is intact. A file without one was put there by hand and is trusted.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from vitreous.errors import VitreousError
from vitreous.files import flush, write_text
from vitreous.progress import silent
from vitreous.untrusted_json import read_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[int, int | None], None]

DELAYS = (0.5, 1.0, 2.0)  # seconds before each further attempt: enough for a hiccup, and nobody waits long for an outage
_ENOUGH = 1 << 20  # an attempt that brought this many new bytes was no failure of the network's: the count begins anew
_CHUNK = 1 << 20


class Missing(VitreousError):
    """The server has no such file (404)."""


class _Unusable(Exception):
    """An answer that does not do; asking again may bring a better one."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    token: str | None = None,
    remedy: str | None = None,
) -> Path:
    """Download `url` to `target`, unless it is there already; resumes what an earlier run left.

    Length and hash are checked: against `sha256` or `md5` and `size` where given, else against what the server declares.
    `token` goes to the host of `url` and to no other. `remedy` tells the user what to do if the server is out of reach.
    """
    _check_address(url)
    if intact(target, size):
        return target
    try:
        with alone(target) as part:
            if not intact(target, size):  # else another process fetched it while this one waited
                asked = _Asked(url, target, part, sha256, md5, size, token, remedy or f"or put the file at {target} by hand")
                _keep(asked, _download(asked, progress or (lambda done, total: None)))
    except OSError as error:  # those of the network were dealt with where they arose
        raise VitreousError(
            f"{target}: cannot write ({error.strerror or error}); make room, or set VITREOUS_CACHE to another folder"
        ) from error
    return target


def intact(target: Path, size: int | None = None) -> bool:
    """Whether the file is there and as it was when it was fetched; hashed only if it was written to since."""
    record = _load(_beside(target, ".source.json"))
    try:
        found = target.stat()
        if size not in (None, found.st_size):
            return False
        if record is None:
            return True
        same_time = found.st_mtime_ns == record.get("modified")
        return found.st_size == record.get("size") and (same_time or _digest(target, "sha256") == record.get("sha256"))
    except OSError:
        return False


# What is asked and what the server says ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    url: str
    target: Path
    part: Path
    sha256: str | None
    md5: str | None
    size: int | None
    token: str | None
    remedy: str


@dataclass(frozen=True)
class _Facts:
    """What the server says of the file; kept beside a part."""

    url: str
    validator: str | None  # by which the server knows whether it still has the same bytes: a strong ETag, or a date
    total: int | None
    sha256: str | None
    md5: str | None

    @classmethod
    def of_part(cls, asked: _Asked) -> _Facts | None:
        try:
            facts = cls(**(_load(_beside(asked.part, ".json")) or {}))
        except TypeError:
            return None
        return facts if facts.url == asked.url else None


def _facts(asked: _Asked, headers: Message, linked: dict[str, str], total: int | None) -> _Facts:
    """`linked` are the hub's headers from before its redirect: the file's own, not those of the server behind it."""
    tag = headers.get("ETag")
    strong = tag if tag and not tag.startswith("W/") else None  # If-Range takes no weak one (RFC 9110, 13.1.5)
    md5 = re.search(r"\bmd5=([A-Za-z0-9+/]{22}==)", ",".join(headers.get_all("x-goog-hash") or []))
    named = (linked.get("x-linked-etag") or headers.get("X-Linked-Etag") or "").strip('"')
    sha256 = named if re.fullmatch(r"[0-9a-f]{64}", named) else None  # files outside LFS have a git hash there
    length = linked.get("x-linked-size") or headers.get("X-Linked-Size")
    expected = asked.size if asked.size is not None else int(length) if length and length.isdigit() else None
    if total is not None and expected is not None and total != expected:
        raise VitreousError(
            f"{asked.url}: the server has {total:,} bytes, not {expected:,}; it is another file than the one meant"
        )
    return _Facts(
        url=asked.url,
        validator=strong or headers.get("Last-Modified"),
        total=expected if total is None else total,
        sha256=sha256,
        md5=base64.b64decode(md5[1]).hex() if md5 else None,
    )


# The transfer -------------------------------------------------------------------------------------------------------------


def _download(asked: _Asked, progress: Progress) -> _Facts:
    """Fill the part, in as many attempts as it takes while there is progress."""
    failures, reached = 0, _length(asked.part)
    while True:
        try:
            return _attempt(asked, progress)
        except (urllib.error.URLError, http.client.HTTPException, _Unusable) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code == 416:  # the part is longer than the file is now
                    _drop(asked.part)
            failures += 1
            if _length(asked.part) >= reached + _ENOUGH:
                failures, reached = 1, _length(asked.part)
            if not _worth_repeating(error) or failures > len(DELAYS):
                raise _explained(asked, error, failures) from error
        time.sleep(DELAYS[failures - 1])


def _attempt(asked: _Asked, progress: Progress) -> _Facts:
    known, offset = _Facts.of_part(asked), _length(asked.part)
    if known and known.total is not None and known.total == offset:
        return known  # an earlier run had all of it and died before it was checked
    if not known or not known.validator or (known.total is not None and offset > known.total):
        offset = 0
    request = urllib.request.Request(asked.url, headers={"User-Agent": "vitreous", "Accept-Encoding": "identity"})
    if offset and known and known.validator:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", known.validator)
    if asked.token:
        request.add_header("Authorization", f"Bearer {asked.token}")
    redirects = _Redirects()
    with _open(request, redirects) as response:
        headers = response.headers
        if headers.get("Content-Encoding", "identity") != "identity":
            raise VitreousError(f"{asked.url}: the server sends it as {headers['Content-Encoding']}, though asked not to")
        offset, total = _extent(asked, response, offset)
        facts = _facts(asked, headers, redirects.linked, total)
        if offset and known and (facts.validator, facts.total) != (known.validator, known.total):
            _drop(asked.part)
            raise _Unusable("the file changed on the server, which sent the rest of the new one")
        chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
        if facts.total is None and not (chunked or facts.sha256 or facts.md5 or asked.sha256 or asked.md5):
            raise VitreousError(
                f"{asked.url}: the server does not say how long it is, so that a cut file would pass for a whole one"
            )
        if not offset:
            _drop(asked.part)  # first: new facts must never stand beside old bytes, wherever this process is killed
        write_text(_beside(asked.part, ".json"), json.dumps(dataclasses.asdict(facts)))
        with asked.part.open("ab") as file:
            done = _copy(response, file, offset, facts.total, progress)
    if facts.total is not None and done != facts.total:
        raise _Unusable(f"the connection ended after {done:,} of {facts.total:,} bytes")
    return facts


def _open(request: urllib.request.Request, redirects: _Redirects) -> Any:
    opener = urllib.request.OpenerDirector()  # http and https alone: no file:, ftp: or data:, by a redirect either
    handlers = (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler)
    for handler in (*handlers, urllib.request.HTTPErrorProcessor, urllib.request.HTTPDefaultErrorHandler):
        opener.add_handler(handler())
    opener.add_handler(urllib.request.UnknownHandler())
    opener.add_handler(redirects)
    try:
        return opener.open(request, timeout=_timeout())
    except urllib.error.URLError:
        raise
    except OSError as error:  # a reset or a timeout while the answer was awaited
        raise urllib.error.URLError(error) from error


def _extent(asked: _Asked, response: Any, offset: int) -> tuple[int, int | None]:
    """Where this answer's bytes begin, and how long the whole file is."""
    length = response.headers.get("Content-Length")
    if response.status == 200:  # all of it: asked for, or the file changed, or the server has no ranges
        return 0, int(length) if length and length.isdigit() else None
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    if response.status != 206 or not offset or not found or int(found[1]) != offset:
        _drop(asked.part)
        raise _Unusable(f"the server answered {response.status} with another range than the one asked for")
    return offset, None if found[3] == "*" else int(found[3])


def _copy(response: Any, file: IO[bytes], done: int, total: int | None, progress: Progress) -> int:
    progress(done, total)
    while total is None or done < total:
        try:
            chunk = response.read1(_CHUNK)  # what has come, so that a stall loses nothing of it
        except OSError as error:
            raise urllib.error.URLError(error) from error
        if not chunk:
            break
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
    return done


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; notes what the hub says before it sends one elsewhere, and takes no token there."""

    def __init__(self) -> None:
        self.linked: dict[str, str] = {}

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self.linked.update({key.lower(): value for key, value in headers.items() if key.lower().startswith("x-linked-")})
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        old_place, new_place = urlsplit(req.full_url), urlsplit(newurl)
        if new is not None and (old_place.scheme, old_place.netloc) != (new_place.scheme, new_place.netloc):
            new.remove_header("Authorization")
        return new


# The end of it ------------------------------------------------------------------------------------------------------------


def _keep(asked: _Asked, facts: _Facts) -> None:
    """Check the part, and make it the target."""
    digest = _digest(asked.part, "sha256")
    checks = [("sha256", digest, asked.sha256 or facts.sha256)]
    if (asked.md5 or facts.md5) and not asked.sha256:
        checks.append(("md5", _digest(asked.part, "md5"), asked.md5 or facts.md5))
    for name, found, expected in checks:
        if expected and found != expected.lower():
            _drop(asked.part)
            raise VitreousError(
                f"{asked.url}: what came is damaged or another file: {name} {found}, expected {expected}; "
                f"it was deleted: try again, and if that fails too, the server's copy is bad"
            )
    if asked.size is not None and _length(asked.part) != asked.size:
        _drop(asked.part)
        raise VitreousError(f"{asked.url}: what came does not have {asked.size:,} bytes; it was deleted")
    flush(asked.part)
    modified = asked.part.stat()
    os.replace(asked.part, asked.target)
    _beside(asked.part, ".json").unlink(missing_ok=True)
    record = {"url": asked.url, "size": modified.st_size, "sha256": digest, "modified": modified.st_mtime_ns}
    write_text(_beside(asked.target, ".source.json"), json.dumps(record, indent=1) + "\n")


def _worth_repeating(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 416, 429) or error.code >= 500
    if isinstance(error, urllib.error.URLError):  # without a network, or with a wrong name, waiting does not help
        reason = error.reason
        if not isinstance(reason, OSError) or isinstance(reason, (socket.gaierror, ssl.SSLCertVerificationError)):
            return False
        return reason.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)
    return True


def _explained(asked: _Asked, error: Exception, failures: int) -> VitreousError:
    reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        if error.code == 404:
            return Missing(f"{asked.url}: there is no such file (404)")
        if error.code in (401, 403):
            return VitreousError(
                f"{asked.url}: access refused ({error.code}): it does not exist, or is private or gated; "
                f"check the name, and for such a Hugging Face repository set HF_TOKEN"
            )
        reason = f"{error.code} {error.reason}"
        if not _worth_repeating(error):
            return VitreousError(f"{asked.url}: the server refused ({reason})")
    if isinstance(reason, TimeoutError):
        reason = f"nothing came for {_timeout():g} seconds; VITREOUS_TIMEOUT sets how long to wait"
    attempts = f" in {failures} attempts" if failures > 1 else ""
    kept = "; what came is kept, and trying again goes on from there" if _length(asked.part) else ""
    return VitreousError(f"cannot fetch {asked.url}{attempts} ({reason}){kept}; try again, {asked.remedy}")


# Small things -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(target: Path) -> Iterator[Path]:
    """The part to write, while no other process writes it; where there are no locks, a part of one's own."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = _beside(target, ".lock")
    handle = _locked(lock)
    if handle is None:
        part = _beside(target, f".{uuid.uuid4().hex}.part")
        try:
            yield part
        finally:
            _drop(part)
        return
    try:
        yield _beside(target, ".part")
    finally:
        lock.unlink(missing_ok=True)  # before the lock is let go: whoever waits on it notices, and makes a new one
        os.close(handle)


def _locked(lock: Path) -> int | None:
    while fcntl is not None:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
        except FileNotFoundError:
            pass  # it went between the two looks
        except OSError:  # a network disk without locks
            os.close(handle)
            return None
        os.close(handle)
    return None


def _check_address(url: str) -> None:
    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        raise VitreousError(f"{url}: not an address to fetch from; only http:// and https:// are")


def _timeout() -> float:
    text = os.environ.get("VITREOUS_TIMEOUT") or "30"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise VitreousError(f"VITREOUS_TIMEOUT is {text!r}; it must be a number of seconds, such as 30")
    return seconds


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _beside(part, ".json").unlink(missing_ok=True)


def _load(path: Path) -> dict[str, Any] | None:
    try:
        fields = read_json(path)
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        # md5 only tells damage here, not malice: some data sets' authors have published no other.
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def shown(what: str, doing: str = "fetching", did: str = "fetched") -> Iterator[Progress]:
    """Progress on stderr: a bar on a terminal, elsewhere a line at the start and one at the end."""
    if silent():
        yield lambda done, total: None
        return
    if sys.stderr.isatty():
        from rich import progress as rich
        from rich.console import Console

        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn())
        with rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{doing} {what}", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last: list[int] = []

    def tell(done: int, total: int | None) -> None:
        if not last:
            already = f", {done / 1e6:,.1f} MB here already" if done else ""
            print(f"{doing} {what}" + (f" ({total / 1e6:,.1f} MB{already})" if total else ""), file=sys.stderr, flush=True)
        last[:] = [done]

    yield tell
    if last:
        print(f"{did} {what} ({last[0] / 1e6:,.1f} MB)", file=sys.stderr, flush=True)
