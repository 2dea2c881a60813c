"""Download one file over HTTP, complete and checked or not at all.

While a target NAME is downloaded, beside it lie NAME.part (the bytes so far), NAME.part.json (what the server said of
them, to resume from) and NAME.lock (one process at a time); afterwards NAME.source.json, by which later loads know
without a network that the file is intact. A file without one was put there by hand and is trusted.

The server is not trusted: httpx2 (with h11) parses its responses, and time, redirects and disk space are bounded here.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import http.client
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.fields import check_fields
from vitreous.core.files import beside, flush_to_disk, locked, write_text
from vitreous.core.hashing import hash_file
from vitreous.core.printable import printable
from vitreous.core.progress import Bytes
from vitreous.core.untrusted_json import read_record

if TYPE_CHECKING:  # imported where it is used: 0.07 s, which only downloads should pay
    import ssl

    import httpx2

DELAYS = (0.5, 1.0, 2.0)  # seconds before each retry: enough for a short fault, and not a long wait in an outage
UNKNOWN = 20 * 10**9  # bytes of a file of unknown length; half of the free disk space at most
SLOWEST = 100  # bytes a second: a body that comes more slowly counts as stalled
_REDIRECTS = 10
_LONGER = "; VITREOUS_TIMEOUT sets how long to wait"
_ENOUGH = 1 << 20  # an attempt that brought this many new bytes was no failure: the count of retries starts again


class Missing(VitreousError):
    """The server has no such file (404)."""


class _Failed(Exception):
    """An attempt that did not bring the file; `retry` where another one may."""

    def __init__(self, reason: object, retry: bool = True) -> None:
        super().__init__(printable(one_line(reason)))
        self.retry = retry


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    progress: Bytes | None = None,
    token: str | None = None,
    remedy: str | None = None,
) -> Path:
    """Download `url` to `target`, unless it is there already; resumes what an earlier run left.

    Length and hash are checked: against `sha256` or `md5` and `size` where given, else against what the server declares.
    `token` goes to the host of `url` and to no other. `remedy` tells the user what to do if the server is out of reach.
    """
    if is_intact(target, size):
        return target
    try:
        with locked(beside(target, ".lock")):
            if not is_intact(target, size):  # else another process fetched it while this one waited
                part = beside(target, ".part")
                job = _Job(url, target, part, sha256, md5, size, token, remedy or f"or put the file at {target} by hand")
                _verify_and_move(job, _download(job, progress or (lambda done, total: None)))
    except OSError as error:  # those of the network were dealt with where they arose
        raise VitreousError(
            f"{target}: cannot write ({error.strerror or error}); make room, or set VITREOUS_CACHE to another folder"
        ) from error
    return target


def is_intact(target: Path, size: int | None = None) -> bool:
    """Whether the file is there and as it was when it was fetched; hashed only if it was written to since."""
    record = read_record(beside(target, ".source.json"))
    try:
        found = target.stat()
        if size not in (None, found.st_size):
            return False
        if not record:
            return True
        same_time = found.st_mtime_ns == record.get("modified")
        return found.st_size == record.get("size") and (same_time or hash_file(target) == record.get("sha256"))
    except OSError:
        return False


# What is asked for, and what the server says of it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
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
    def of_part(cls, job: _Job) -> _Facts | None:
        try:
            facts = cls(**read_record(beside(job.part, ".json")))
            check_fields(facts, lambda name, value: name)
        except (TypeError, VitreousError):
            return None
        return facts if facts.url == job.url else None


def _read_facts(job: _Job, headers: Mapping[str, str], total: int | None) -> _Facts:
    tag = headers.get("etag", "")
    strong = tag if not tag.startswith("W/") else ""  # If-Range takes no weak one (RFC 9110, 13.1.5)
    validator = strong or headers.get("last-modified", "")
    md5 = re.search(r"\bmd5=([A-Za-z0-9+/]{22}==)", headers.get("x-goog-hash", ""))
    linked = headers.get("x-linked-etag", "").strip('"')
    declared = headers.get("x-linked-size", "")
    expected = int(declared) if job.size is None and re.fullmatch("[0-9]{1,18}", declared) else job.size
    if total is not None and expected is not None and total != expected:
        raise VitreousError(
            f"{job.url}: the server has {total:,} bytes, not {expected:,}; it is another file than the one meant"
        )
    return _Facts(
        url=job.url,
        validator=validator if validator and validator.isascii() else None,
        total=expected if total is None else total,
        sha256=linked if re.fullmatch("[0-9a-f]{64}", linked) else None,  # files outside LFS have a git hash there
        md5=base64.b64decode(md5[1]).hex() if md5 else None,
    )


# The transfer -------------------------------------------------------------------------------------------------------------


def _download(job: _Job, progress: Bytes) -> _Facts:
    """Fill the part, in as many attempts as it takes while there is progress."""
    failures, reached = 0, _file_size(job.part)
    while True:
        try:
            return _attempt(job, progress)
        except _Failed as error:
            failures += 1
            if _file_size(job.part) >= reached + _ENOUGH:
                failures, reached = 1, _file_size(job.part)
            if not error.retry or failures > len(DELAYS):
                attempts = f" in {failures} attempts" if failures > 1 else ""
                kept = "; what came is kept, and trying again resumes there" if _file_size(job.part) else ""
                raise VitreousError(
                    f"cannot fetch {printable(one_line(job.url))}{attempts} ({error}){kept}; try again, {job.remedy}"
                ) from error
        time.sleep(DELAYS[failures - 1])


def _attempt(job: _Job, progress: Bytes) -> _Facts:
    known, offset = _Facts.of_part(job), _file_size(job.part)
    if known and known.total is not None and known.total == offset:
        return known  # an earlier run had all of it and died before it was checked
    headers = {"User-Agent": "vitreous", "Accept-Encoding": "identity"}
    if offset and known and known.validator and (known.total is None or offset < known.total):
        headers |= {"Range": f"bytes={offset}-", "If-Range": known.validator}
    if job.token:
        if not re.fullmatch("[!-~]+", job.token):
            raise VitreousError(f"{job.url}: the access token has characters that no header can carry; check HF_TOKEN")
        headers["Authorization"] = f"Bearer {job.token}"
    with _send_request(job.url, headers) as response:
        _check_status(job, response.status_code)
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise VitreousError(f"{job.url}: the server sends it as {encoding[:60]!r}, though asked not to")
        offset, total = _read_extent(job, response, offset if "Range" in headers else 0)
        facts = _read_facts(job, response.headers, total)
        if offset and known and (facts.validator, facts.total) != (known.validator, known.total):
            _delete_part(job.part)
            raise _Failed("the file changed on the server, which sent the rest of the new one")
        if facts.total is None and not (
            "transfer-encoding" in response.headers or facts.sha256 or facts.md5 or job.sha256 or job.md5
        ):
            raise VitreousError(
                f"{job.url}: the server does not say how long it is, so that a truncated file would pass for a complete one"
            )
        if not offset:
            _delete_part(job.part)  # first: new facts must never stand beside old bytes, wherever this process is killed
        write_text(beside(job.part, ".json"), json.dumps(dataclasses.asdict(facts)))
        most = _check_room(job, facts, offset)
        with job.part.open("ab") as file:
            done = _copy_body(response, file, offset, most, lambda done: progress(done, facts.total))
    if facts.total is None and done > most:
        _delete_part(job.part)
        raise VitreousError(f"{job.url}: no end after {most:,} bytes of a file of unknown length; it was deleted")
    if facts.total is not None and done != facts.total:
        raise _Failed(f"the connection ended after {done:,} of {facts.total:,} bytes")
    return facts


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The system's, read once: that takes longer than all else of a small download."""
    import httpx2

    return httpx2.create_ssl_context()


@contextlib.contextmanager
def _send_request(url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
    """The server's answer after all redirects; the hub's X-Linked headers, which come before them, are copied into it."""
    import httpx2

    seconds, linked = _read_timeout(), httpx2.Headers()
    streams: list[Any] = []

    def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            streams.append(info["return_value"])

    def cut() -> None:
        with contextlib.suppress(OSError, IndexError):
            streams[-1].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    # A read timeout starts again with every byte: headers that trickle in need a limit of their own.
    watchdog = threading.Timer(2 * seconds, cut)
    watchdog.daemon = True
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(watchdog.cancel)
            try:
                client = stack.enter_context(httpx2.Client(timeout=seconds, verify=_certificates()))
                request = client.build_request("GET", url, headers=headers)
                watchdog.start()
                for _ in range(_REDIRECTS):
                    request.extensions["trace"] = trace
                    response = client.send(request, stream=True)
                    stack.callback(response.close)  # without reading a redirect's body, which may have no end
                    if response.next_request is None:
                        break
                    linked.update({name: text for name, text in response.headers.items() if name.startswith("x-linked-")})
                    request = response.next_request
                else:
                    raise _Failed(f"more than {_REDIRECTS} redirects", retry=False)
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError, ImportError) as error:
                raise _Failed(f"only http:// and https:// addresses and proxies can be used: {error}", retry=False) from error
            watchdog.cancel()
            response.headers.update(linked)
            yield response
    except httpx2.TimeoutException as error:
        raise _Failed(f"nothing came for {seconds:g} seconds{_LONGER}") from error
    except httpx2.HTTPError as error:  # without a network, or with a wrong name, waiting does not help
        raise _Failed(error, retry=not isinstance(error, httpx2.ConnectError)) from error


def _check_status(job: _Job, code: int) -> None:
    reason = f"{code} {http.client.responses.get(code, '')}".strip()  # not the server's own words
    if code == 416:  # the part is longer than the file is now
        _delete_part(job.part)
    if code in (408, 416, 429) or code >= 500:
        raise _Failed(reason)
    if code == 404:
        raise Missing(f"{job.url}: there is no such file (404)")
    if code not in (200, 206):
        gated = "it does not exist, or is private or gated: check the name, and for such a Hugging Face repository set HF_TOKEN"
        raise VitreousError(f"{job.url}: access refused ({reason}); {gated if code in (401, 403) else 'check the address'}")


def _read_extent(job: _Job, response: httpx2.Response, offset: int) -> tuple[int, int | None]:
    """Where the bytes of this answer start, and how long the complete file is."""
    if response.status_code == 200:  # all of it: asked for, or the file changed, or the server has no ranges
        length = response.headers.get("content-length")  # a number: h11 refuses others
        return 0, int(length) if length and "transfer-encoding" not in response.headers else None
    found = re.fullmatch("bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|[*])", response.headers.get("content-range", ""))
    if not offset or not found or int(found[1]) != offset:
        _delete_part(job.part)
        raise _Failed("the server answered 206 with another range than the one asked for")
    return offset, None if found[2] == "*" else int(found[2])


def _check_room(job: _Job, facts: _Facts, offset: int) -> int:
    """How many bytes the part may have."""
    free = shutil.disk_usage(job.part.parent).free
    if facts.total is None:
        return offset + min(UNKNOWN, free // 2)
    if facts.total - offset > free:
        raise VitreousError(
            f"{job.url}: has {facts.total:,} bytes, and {free:,} are free at {job.part.parent}; "
            f"make room, or set VITREOUS_CACHE to another folder"
        )
    return facts.total


def _copy_body(response: httpx2.Response, file: IO[bytes], done: int, most: int, progress: Callable[[int], None]) -> int:
    """Append the body to the file, until its end or a little more than `most` bytes."""
    seconds, since, before = _read_timeout(), time.monotonic(), done
    progress(done)
    for chunk in response.iter_raw():
        file.write(chunk)
        done += len(chunk)
        progress(done)
        if done > most:
            break
        if (now := time.monotonic()) - since > seconds:
            if done - before < SLOWEST * seconds:
                raise _Failed(f"only {done - before:,} bytes came in {seconds:g} seconds{_LONGER}")
            since, before = now, done
    return done


# The end of it ------------------------------------------------------------------------------------------------------------


def _verify_and_move(job: _Job, facts: _Facts) -> None:
    """Check the part, and make it the target."""
    digest = hash_file(job.part)
    checks = [("sha256", digest, job.sha256 or facts.sha256), ("length", str(_file_size(job.part)), job.size and str(job.size))]
    if (job.md5 or facts.md5) and not job.sha256:
        checks.append(("md5", hash_file(job.part, "md5"), job.md5 or facts.md5))
    for name, found, expected in checks:
        if expected and found != expected.lower():
            _delete_part(job.part)
            raise VitreousError(
                f"{job.url}: what came is damaged or another file: {name} {found}, expected {expected}; "
                f"it was deleted: try again, and if that fails too, the server's copy is bad"
            )
    flush_to_disk(job.part)
    modified = job.part.stat()
    os.replace(job.part, job.target)
    beside(job.part, ".json").unlink(missing_ok=True)
    record = {"url": job.url, "size": modified.st_size, "sha256": digest, "modified": modified.st_mtime_ns}
    write_text(beside(job.target, ".source.json"), json.dumps(record, indent=1) + "\n")


# Small things -------------------------------------------------------------------------------------------------------------


def _read_timeout() -> float:
    text = os.environ.get("VITREOUS_TIMEOUT") or "30"
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or not float(text):
        raise VitreousError(f"VITREOUS_TIMEOUT is {text!r}; it must be a number of seconds, such as 30")
    return float(text)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _delete_part(part: Path) -> None:
    part.unlink(missing_ok=True)
    beside(part, ".json").unlink(missing_ok=True)
