"""Downloads: whole and checked or not at all, whatever the server does; and loading by name from one end to the other."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from http_server import BODY, HALF, Handler, Server, Step, hang_up, never, ok, stall, status
from vitreous.classifier import load
from vitreous.core import download
from vitreous.core.download import Missing, fetch
from vitreous.core.errors import VitreousError
from vitreous.core.progress import byte_progress
from vitreous.models.build import create
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.locate import locate
from vitreous.weights.write import save_checkpoint


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("VITREOUS_TIMEOUT", "5")
    for name in ("HF_TOKEN", "HF_ENDPOINT", "VITREOUS_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store" / "weights.npz"


def leftovers(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path.name not in (target.name, f"{target.name}.source.json"))


# The plain case -----------------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_and_is_recorded(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok()]
    calls: list[tuple[int, int | None]] = []
    assert fetch(f"{server.url}/w", target, progress=lambda done, total: calls.append((done, total))) == target
    assert target.read_bytes() == BODY
    assert calls[0] == (0, len(BODY))
    assert calls[-1] == (len(BODY), len(BODY))
    assert calls == sorted(calls)
    record = json.loads((target.parent / "weights.npz.source.json").read_text())
    assert (record["url"], record["size"]) == (f"{server.url}/w", len(BODY))
    assert record["sha256"] == hashlib.sha256(BODY).hexdigest()
    assert leftovers(target) == []


def test_what_is_there_is_not_fetched_again(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok()]
    for _ in range(2):
        fetch(f"{server.url}/w", target)
    assert len(server.requests) == 1


def test_a_file_put_there_by_hand_is_taken(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    assert fetch(f"{server.url}/w", target).read_bytes() == b"mine"
    assert server.requests == []


@pytest.mark.parametrize("damage", [BODY[:-1], b"X" + BODY[1:], b""], ids=["cut", "same length", "emptied"])
def test_a_file_damaged_after_the_download_is_fetched_again(server: Server, target: Path, damage: bytes) -> None:
    server.scripts["/w"] = [ok()]
    fetch(f"{server.url}/w", target)
    target.write_bytes(damage)
    os.utime(target, ns=(0, 0))
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert len(server.requests) == 2


def test_a_cut_file_is_known_by_its_length_alone(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok()]
    fetch(f"{server.url}/w", target)
    date = target.stat().st_mtime_ns
    target.write_bytes(BODY[:-1])
    os.utime(target, ns=(date, date))
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


def test_a_copied_cache_with_other_dates_counts_as_intact(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok()]
    fetch(f"{server.url}/w", target)
    os.utime(target, ns=(0, 0))
    fetch(f"{server.url}/w", target)
    assert len(server.requests) == 1


# Trouble on the way ---------------------------------------------------------------------------------------------------------


def test_a_cut_download_resumes_where_it_stopped(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(sent=HALF), ok()]
    fetch(f"{server.url}/w", target)
    assert target.read_bytes() == BODY
    assert "Range" not in server.headers_of(0)
    assert server.headers_of(1)["Range"] == f"bytes={HALF}-"
    assert server.headers_of(1)["If-Range"] == '"one"'


def test_a_date_serves_where_there_is_no_strong_etag(server: Server, target: Path) -> None:
    date = "Wed, 21 Oct 2020 07:28:00 GMT"
    server.scripts["/w"] = [ok(sent=HALF, etag='W/"weak"', Last_Modified=date), ok(etag='W/"weak"', Last_Modified=date)]
    fetch(f"{server.url}/w", target)
    assert server.headers_of(1)["If-Range"] == date
    assert target.read_bytes() == BODY


def test_without_any_validator_it_starts_over(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(sent=HALF, etag=None), ok(etag=None)]
    fetch(f"{server.url}/w", target)
    assert "Range" not in server.headers_of(1)
    assert target.read_bytes() == BODY


def test_a_server_without_ranges_sends_all_of_it_again(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(sent=HALF), ok(ranges=False)]
    fetch(f"{server.url}/w", target)
    assert "Range" in server.headers_of(1)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("heed", [True, False], ids=["If-Range heeded", "If-Range ignored"])
def test_two_versions_of_a_file_are_never_joined(server: Server, target: Path, heed: bool) -> None:
    newer = BODY[::-1]
    server.scripts["/w"] = [ok(sent=HALF), ok(newer, etag='"two"', heed_if_range=heed)]
    fetch(f"{server.url}/w", target)
    assert target.read_bytes() == newer


def test_a_part_longer_than_the_file_has_become_is_dropped(server: Server, target: Path) -> None:
    def step(handler: Handler) -> None:
        (status(416) if "Range" in handler.headers else ok(b"short", etag='"two"'))(handler)

    server.scripts["/w"] = [ok(sent=HALF), step]
    assert fetch(f"{server.url}/w", target).read_bytes() == b"short"


@pytest.mark.parametrize("trouble", [status(500), status(503), status(429), hang_up], ids=["500", "503", "429", "closed"])
def test_passing_trouble_is_waited_out(server: Server, target: Path, trouble: Step) -> None:
    server.scripts["/w"] = [trouble, ok()]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert len(server.requests) == 2


def test_lasting_trouble_is_an_error_after_a_few_attempts(server: Server, target: Path) -> None:
    server.scripts["/w"] = [status(503)]
    with pytest.raises(VitreousError, match=r"/w in 4 attempts .*503"):
        fetch(f"{server.url}/w", target)
    assert len(server.requests) == 4


def test_a_server_that_always_cuts_does_not_keep_us_forever(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(sent=HALF, ranges=False)]
    with pytest.raises(VitreousError, match=r"received 256000 bytes, expected 512000.*kept"):
        fetch(f"{server.url}/w", target)
    assert len(server.requests) == 4
    assert not target.exists()


def test_attempts_that_bring_much_are_not_counted(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_ENOUGH", 1000)
    cuts = [ok(sent=place) for place in range(50_000, len(BODY), 50_000)]
    server.scripts["/w"] = [*cuts, ok()]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert len(server.requests) == len(cuts) + 1 > 4


def test_a_stalled_server_counts_as_a_failure_and_loses_nothing(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITREOUS_TIMEOUT", "0.3")
    server.scripts["/w"] = [ok(sent=HALF, then=stall), ok()]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert server.headers_of(1)["Range"] == f"bytes={HALF}-"


def test_a_server_that_never_answers_is_named_with_the_variable(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITREOUS_TIMEOUT", "0.1")
    server.scripts["/w"] = [never]
    with pytest.raises(VitreousError, match=r"0\.1 seconds; VITREOUS_TIMEOUT"):
        fetch(f"{server.url}/w", target)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_timeout_that_is_no_time_is_refused(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("VITREOUS_TIMEOUT", text)
    with pytest.raises(VitreousError, match=f"VITREOUS_TIMEOUT is '{text}'"):
        fetch(f"{server.url}/w", target)


@pytest.mark.parametrize(("code", "word"), [(404, "no such file"), (401, "HF_TOKEN"), (403, "HF_TOKEN"), (400, "refused")])
def test_a_refusal_is_final(server: Server, target: Path, code: int, word: str) -> None:
    server.scripts["/w"] = [status(code)]
    with pytest.raises(VitreousError, match=rf"/w.*{code}|{code}.*/w") as caught:
        fetch(f"{server.url}/w", target)
    assert word in str(caught.value)
    assert isinstance(caught.value, Missing) == (code == 404)
    assert len(server.requests) == 1
    assert leftovers(target) == []


def test_a_disk_that_takes_no_more_is_not_taken_for_a_bad_network(server: Server, target: Path) -> None:
    pytest.importorskip("resource")
    server.scripts["/w"] = [ok()]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    command = [sys.executable, "-c", f"{limit}\n{RUN}", f"{server.url}/w", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(r"VitreousError: .*weights\.npz: cannot write \(File too large.*VITREOUS_CACHE", result.stderr)
    assert len(server.requests) == 1
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert server.headers_of(1)["Range"] == "bytes=100000-"


# Is it the right file? ----------------------------------------------------------------------------------------------------


def md5_header(body: bytes) -> str:
    return f"crc32c=AAAAAA==,md5={base64.b64encode(hashlib.md5(body).digest()).decode()}"


def test_the_md5_that_google_declares_is_checked(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(x_goog_hash=md5_header(b"another")), ok(x_goog_hash=md5_header(BODY))]
    with pytest.raises(VitreousError, match=r"damaged or another file: md5 .* deleted"):
        fetch(f"{server.url}/w", target)
    assert not target.exists()
    assert leftovers(target) == []
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


def test_a_given_sha256_is_checked_before_anything_declared(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(x_goog_hash=md5_header(BODY))]
    with pytest.raises(VitreousError, match=f"sha256 {hashlib.sha256(BODY).hexdigest()}, expected {'0' * 64}"):
        fetch(f"{server.url}/w", target, sha256="0" * 64)
    assert leftovers(target) == []
    fetch(f"{server.url}/w", target, sha256=hashlib.sha256(BODY).hexdigest().upper())
    assert target.read_bytes() == BODY


def test_the_hash_that_the_hub_gives_before_its_redirect_is_checked(server: Server, target: Path) -> None:
    good = hashlib.sha256(BODY).hexdigest()
    for digest in ("f" * 64, good):
        headers = {"Location": "/blob", "X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(BODY))}
        server.scripts.setdefault("/w", []).append(status(302, **headers))
    server.scripts["/blob"] = [ok()]
    with pytest.raises(VitreousError, match=f"expected {'f' * 64}"):
        fetch(f"{server.url}/w", target)
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


def test_a_git_hash_in_place_of_a_sha256_is_no_error(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(X_Linked_Etag=f'"{"a" * 40}"')]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


@pytest.mark.parametrize("how", ["given", "declared"])
def test_a_file_of_another_length_is_refused_at_once(server: Server, target: Path, how: str) -> None:
    server.scripts["/w"] = [ok(X_Linked_Size="7") if how == "declared" else ok()]
    with pytest.raises(VitreousError, match="512,000 bytes, not 7"):
        fetch(f"{server.url}/w", target, size=7 if how == "given" else None)
    assert not target.exists()
    assert len(server.requests) == 1


def test_a_body_of_unknown_length_is_refused(server: Server, target: Path) -> None:
    def step(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(BODY[:HALF])

    server.scripts["/w"] = [step]
    with pytest.raises(VitreousError, match="does not say how long"):
        fetch(f"{server.url}/w", target)
    assert not target.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_chunked_body_ends_with_its_last_chunk_or_is_cut(server: Server, target: Path, whole: bool) -> None:
    def step(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"3\r\nabc\r\n3\r\ndef\r\n" + (b"0\r\n\r\n" if whole else b""))
        handler.close_connection = True

    server.scripts["/w"] = [step]
    if whole:
        assert fetch(f"{server.url}/w", target).read_bytes() == b"abcdef"
        return
    with pytest.raises(VitreousError, match="in 4 attempts"):
        fetch(f"{server.url}/w", target)
    assert not target.exists()


def test_a_compressed_body_is_refused(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(Content_Encoding="gzip")]
    with pytest.raises(VitreousError, match=r"sends it as .gzip"):
        fetch(f"{server.url}/w", target)


def raw(answer: bytes) -> Step:
    """These bytes and nothing else, so that what no HTTP library would send can be sent."""

    def step(handler: Handler) -> None:
        handler.wfile.write(answer)

    return step


DIGITS = b"9" * 5000  # more than int() takes


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + DIGITS + b"\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX-Linked-Size: " + DIGITS + b"\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX-Linked-Size: \xb2\r\n\r\nabc",
        b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-" + DIGITS + b"/" + DIGITS + b"\r\n\r\nabc",
        b"HTTP/1.1 500 \x1b[31mred\x1b[0m\x9b2J\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 \x1b[31mred\x9b2J\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\x9b31m\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + DIGITS + b"\r\nabc",
        b"HTTP/9 \x1b[2J\r\n\r\n",
    ],
    ids=range(10),
)
def test_an_absurd_answer_is_one_printable_line(server: Server, target: Path, answer: bytes) -> None:
    server.scripts["/w"] = [raw(answer)]
    with pytest.raises(VitreousError, match=f"{server.url}/w") as caught:
        fetch(f"{server.url}/w", target)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    assert not target.exists()


@pytest.mark.parametrize(
    "place", ["http://a..b/", f"http://{'a' * 300}.com/", "http://[::1", "http://x:99999/", "http://x:\xb2/", "http://\x1b[2J/"]
)
def test_a_redirect_to_a_place_that_cannot_be_is_one_line(server: Server, target: Path, place: str) -> None:
    server.scripts["/w"] = [raw(b"HTTP/1.1 302 \r\nLocation: " + place.encode("latin-1") + b"\r\n\r\n")]
    with pytest.raises(VitreousError, match=f"cannot fetch {server.url}/w") as caught:
        fetch(f"{server.url}/w", target)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "mirror", ["http://[::1", "http://a..b", "http://x:port", "http://", "mirror.example", "http://\x1b[2J"]
)
def test_a_mirror_that_is_no_address_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    monkeypatch.setenv("VITREOUS_MIRROR", mirror)
    with pytest.raises(VitreousError, match="set VITREOUS_MIRROR") as caught:
        locate("ViT-B/16@imagenet21k")
    assert "\n" not in str(caught.value)


def test_a_proxy_that_cannot_be_used_is_one_line(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("socks5://127.0.0.1:1", "http://[::1", "nonsense://x"):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(VitreousError, match="proxies can be used") as caught:
            fetch("http://a.example/w", target)
        assert str(caught.value).isprintable()


def test_a_token_that_no_header_can_carry_is_not_shown(target: Path) -> None:
    with pytest.raises(VitreousError, match="check HF_TOKEN") as caught:
        fetch("http://127.0.0.1:1/w", target, token="sec\nret")
    assert "ret" not in str(caught.value)


def test_a_body_without_an_end_is_bounded_and_deleted(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "UNKNOWN", 1 << 20)
    sent = 0

    def endless(handler: Handler) -> None:
        nonlocal sent
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):  # 64 MB
            handler.wfile.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            sent += 65_536

    server.scripts["/w"] = [endless]
    with pytest.raises(VitreousError, match="no end after 1,048,576 bytes of a file of unknown length"):
        fetch(f"{server.url}/w", target)
    assert sent < 32 << 20  # what was read, and what two sockets hold
    assert leftovers(target) == []
    assert len(server.requests) == 1


def test_a_redirect_without_an_end_is_not_read(server: Server, target: Path) -> None:
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /moved\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:  # until the other side has left
            handler.wfile.write(b"10000\r\n" + bytes(65_536) + b"\r\n")

    server.scripts |= {"/w": [endless], "/moved": [ok()]}
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


def test_a_file_larger_than_the_disk_is_refused_before_it_comes(server: Server, target: Path) -> None:
    server.scripts["/w"] = [raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\nabc")]
    with pytest.raises(VitreousError, match=r"99,999,999,999,999,999 bytes, and .* are free .*VITREOUS_CACHE"):
        fetch(f"{server.url}/w", target)
    assert len(server.requests) == 1


@pytest.mark.parametrize("opening", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_a_server_that_trickles_counts_as_stalled(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, opening: bytes
) -> None:
    """Every byte comes in time, so that no read times out."""
    monkeypatch.setenv("VITREOUS_TIMEOUT", "0.1")

    def trickle(handler: Handler) -> None:
        handler.wfile.write(opening)
        while not handler.server.closing.wait(0.02):
            handler.wfile.write(b"a")

    server.scripts["/w"] = [trickle]
    with pytest.raises(VitreousError, match="in 4 attempts"):
        fetch(f"{server.url}/w", target)


# Where it may go ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "data:,x", "weights.npz", "http:///x"])
def test_only_web_addresses_are_fetched(target: Path, url: str) -> None:
    with pytest.raises(VitreousError, match="only http"):
        fetch(url, target)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1:1/x"])
def test_a_redirect_cannot_lead_out_of_the_web(server: Server, target: Path, place: str) -> None:
    server.scripts["/w"] = [status(302, Location=place)]
    with pytest.raises(VitreousError, match=r"/w.*only http"):
        fetch(f"{server.url}/w", target)
    assert not target.exists()
    assert len(server.requests) == 1


def test_a_token_follows_a_redirect_only_on_its_own_host(server: Server, target: Path) -> None:
    other = Server()
    try:
        server.scripts["/w"] = [status(307, Location="/moved")]
        server.scripts["/moved"] = [status(302, Location=f"{other.url}/blob")]
        other.scripts["/blob"] = [ok()]
        fetch(f"{server.url}/w", target, token="secret")
    finally:
        other.close()
    assert target.read_bytes() == BODY
    assert [headers.get("Authorization") for _, headers in server.requests] == ["Bearer secret"] * 2
    assert [headers.get("Authorization") for _, headers in other.requests] == [None]


def test_an_endless_redirect_is_an_error(server: Server, target: Path) -> None:
    server.scripts["/w"] = [status(302, Location="/w")]
    with pytest.raises(VitreousError, match="more than 10 redirects"):
        fetch(f"{server.url}/w", target)


# Other processes ------------------------------------------------------------------------------------------------------------

RUN = """
import sys
from pathlib import Path
from vitreous.core.download import fetch
print("ready", flush=True)
fetch(sys.argv[1], Path(sys.argv[2]))
"""


def start(url: str, target: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", RUN, url, str(target)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_what_a_killed_process_left_is_completed(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok(sent=HALF, then=stall), ok()]
    process = start(f"{server.url}/w", target)
    part = Path(f"{target}.part")
    # Its buffer may hold back the last of what came; most of it is on the disk.
    wait_for(lambda: part.exists() and part.stat().st_size > HALF // 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not target.exists()
    kept = part.stat().st_size
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert server.headers_of(1)["Range"] == f"bytes={kept}-"
    assert leftovers(target) == []


def test_a_part_that_was_complete_needs_only_to_be_checked(server: Server, target: Path) -> None:
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(BODY)
    facts = dict(url=f"{server.url}/w", validator='"one"', total=len(BODY), sha256=hashlib.sha256(BODY).hexdigest(), md5=None)
    Path(f"{target}.part.json").write_text(json.dumps(facts))
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert server.requests == []


@pytest.mark.parametrize("facts", ["", "[]", '{"url": 1}', '{"surprise": 1}'])
def test_a_part_without_a_usable_record_starts_over(server: Server, target: Path, facts: str) -> None:
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(b"of unknown origin")
    Path(f"{target}.part.json").write_text(facts)
    server.scripts["/w"] = [ok()]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY
    assert "Range" not in server.headers_of(0)


def test_a_part_of_another_server_is_not_continued(server: Server, target: Path) -> None:
    """Two servers may call different bytes by the same ETag."""
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(BODY[::-1][:HALF])
    facts = dict(url="http://elsewhere/w", validator='"one"', total=len(BODY), sha256=None, md5=None)
    Path(f"{target}.part.json").write_text(json.dumps(facts))
    server.scripts["/w"] = [ok()]
    assert fetch(f"{server.url}/w", target).read_bytes() == BODY


def test_new_facts_never_stand_beside_old_bytes(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between learning that the file changed and writing its first byte, the next run must not join the two."""
    server.scripts["/w"] = [ok(sent=HALF), status(403)]
    with pytest.raises(VitreousError):
        fetch(f"{server.url}/w", target)
    assert Path(f"{target}.part").stat().st_size == HALF
    newer = BODY[::-1]
    server.scripts["/w"] = [ok(newer, etag='"two"')]

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(download, "_copy_body", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(f"{server.url}/w", target)
    assert fetch(f"{server.url}/w", target).read_bytes() == newer


def test_two_processes_fetch_a_file_once(server: Server, target: Path) -> None:
    both = threading.Event()
    server.scripts["/w"] = [ok(sent=HALF, then=lambda handler: (both.wait(10), handler.wfile.write(BODY[HALF:])))]
    first = start(f"{server.url}/w", target)
    wait_for(lambda: len(server.requests) == 1)
    second = start(f"{server.url}/w", target)
    time.sleep(0.1)  # for the second to come as far as the lock; without one it would ask the server now
    both.set()
    assert (first.wait(10), second.wait(10)) == (0, 0)
    assert target.read_bytes() == BODY
    assert len(server.requests) == 1
    assert leftovers(target) == []


def test_threads_do_not_get_in_each_others_way(server: Server, target: Path) -> None:
    server.scripts["/w"] = [ok()]
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fetch(f"{server.url}/w", target)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert target.read_bytes() == BODY
    assert leftovers(target) == []
    assert len(server.requests) == 1


# What the user sees ---------------------------------------------------------------------------------------------------------


def test_a_log_gets_one_line_at_the_start_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress("ViT-B/16@x") as progress:
        for done in range(0, 3_000_001, 1_000_000):
            progress(done, 3_000_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "downloading ViT-B/16@x (3.0 MB)\ndownloaded ViT-B/16@x (3.0 MB)\n"


def test_nothing_is_said_where_nothing_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress("ViT-B/16@x"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with byte_progress("ViT-B/16@x") as progress:
        progress(1_500_000, 3_000_000)
    assert "ViT-B/16@x" in screen.getvalue()
    assert "1.5/3.0 MB" in screen.getvalue()


# From a name to a model -----------------------------------------------------------------------------------------------------


def small(names: tuple[str, ...] | None = None, classes: int = 3) -> Checkpoint:
    model = create("ViT-Ti/16", image_size=32, classes=classes, depth=2, width=24, mlp=48, heads=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)  # the zero-initialised ones too
    return Checkpoint(model.config, model.state_dict(), "resize(32)|range(-1,1)", names)


def logits(source: str) -> torch.Tensor:
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    with torch.no_grad():
        out: torch.Tensor = load(source).model(images)
    return out


def serve_folder(server: Server, folder: Path, prefix: str, without: tuple[str, ...] = ()) -> None:
    for path in folder.iterdir():
        if path.name not in without:
            server.scripts[f"{prefix}/{path.name}"] = [ok(path.read_bytes())]


def asked_for(server: Server) -> list[str]:
    return [path.rsplit("/", 1)[1] for path, _ in server.requests]


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [
        ("ViT-B/16@imagenet21k", "/vit_models/imagenet21k/ViT-B_16.npz", "vit_models/imagenet21k/ViT-B_16.npz"),
        (
            "R50+ViT-B/16@imagenet21k+imagenet2012",
            "/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
            "vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz",
        ),
    ],
)
def test_an_official_name_is_fetched_once_and_then_works_offline(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, file: str
) -> None:
    checkpoint = small()
    save_checkpoint(checkpoint, tmp_path / "theirs" / "ViT-B_16.npz", "official")
    expected = logits(str(tmp_path / "theirs" / "ViT-B_16.npz"))
    server.scripts[place] = [ok((tmp_path / "theirs" / "ViT-B_16.npz").read_bytes())]
    monkeypatch.setenv("VITREOUS_MIRROR", f"{server.url}/")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert torch.equal(logits(name), expected)
    assert locate(name).path == tmp_path / "cache" / file
    server.close()
    assert torch.equal(logits(name), expected)
    assert load(name).checkpoint.licence == "Apache-2.0"
    assert len(server.requests) == 1
    assert "Authorization" not in server.headers_of(0)


def test_without_a_network_the_error_says_what_to_put_where(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITREOUS_MIRROR", server.url)
    server.close()
    with pytest.raises(VitreousError) as caught:
        load("ViT-L/16@imagenet21k")
    message = str(caught.value)
    assert f"{server.url}/vit_models/imagenet21k/ViT-L_16.npz" in message
    assert f"put the file at {tmp_path / 'cache' / 'vit_models' / 'imagenet21k' / 'ViT-L_16.npz'}," in message
    assert "VITREOUS_MIRROR" in message
    assert "attempts" not in message  # nobody waits for a network that is not there
    save_checkpoint(small(), tmp_path / "cache" / "vit_models" / "imagenet21k" / "ViT-L_16.npz", "official")  # as told
    assert load("ViT-L/16@imagenet21k").config.width == 24


def test_a_hub_repository_is_fetched_once_and_then_works_offline(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(small(("cat", "dog", "eel")), tmp_path / "theirs", "huggingface")
    expected = logits(str(tmp_path / "theirs"))
    serve_folder(server, tmp_path / "theirs", "/google/vit-base-patch16-224/resolve/main")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "secret")
    source = "hf:google/vit-base-patch16-224"
    assert torch.equal(logits(source), expected)
    assert asked_for(server) == ["config.json", "preprocessor_config.json", "model.safetensors"]
    assert all(headers["Authorization"] == "Bearer secret" for _, headers in server.requests)
    server.close()
    assert torch.equal(logits(source), expected)
    again = load(source)
    assert again.classes == ("cat", "dog", "eel")
    assert again.checkpoint.licence == "Apache-2.0"
    assert locate(source).path == tmp_path / "cache" / "hf" / "google" / "vit-base-patch16-224"
    assert len(server.requests) == 3


def test_an_unknown_repository_has_no_licence_and_may_lack_its_preprocessing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(small(), tmp_path / "theirs", "huggingface")
    serve_folder(server, tmp_path / "theirs", "/me/mine/resolve/refs%2Fpr%2F1", without=("preprocessor_config.json",))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    found = locate("hf:me/mine@refs/pr/1")
    assert found.path == tmp_path / "cache" / "hf" / "me" / "mine@refs%2Fpr%2F1"
    assert found.known == {}
    clf = load("hf:me/mine@refs/pr/1")
    assert clf.checkpoint.licence is None
    assert any("does not state its preprocessing" in note for note in clf.notes)
    assert len(server.requests) == 3


def test_a_timm_name_is_a_repository_of_timm(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(small(), tmp_path / "theirs", "timm")
    expected = logits(str(tmp_path / "theirs"))
    serve_folder(server, tmp_path / "theirs", "/timm/vit_tiny_patch16_224.augreg_in21k/resolve/main")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert torch.equal(logits("timm:vit_tiny_patch16_224.augreg_in21k"), expected)


def test_an_interrupted_repository_is_completed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(small(), tmp_path / "theirs", "huggingface")
    expected = logits(str(tmp_path / "theirs"))
    serve_folder(server, tmp_path / "theirs", "/me/mine/resolve/main")
    weights = server.scripts["/me/mine/resolve/main/model.safetensors"]
    server.scripts["/me/mine/resolve/main/model.safetensors"] = [status(403)]
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(VitreousError, match="403"):
        locate("hf:me/mine")
    server.scripts["/me/mine/resolve/main/model.safetensors"] = weights
    assert torch.equal(logits("hf:me/mine"), expected)
    assert asked_for(server).count("config.json") == 1


def sharded(folder: Path, names: tuple[str, str]) -> None:
    tensors = sorted(safetensors.torch.load_file(folder / "model.safetensors").items())
    where = {}
    for number, name in enumerate(names):
        part = dict(tensors[number::2])
        if "/" not in name:
            safetensors.torch.save_file(part, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def test_a_model_in_several_files_is_fetched_whole(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(small(), tmp_path / "theirs", "huggingface")
    expected = logits(str(tmp_path / "theirs"))
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    sharded(tmp_path / "theirs", shards)
    serve_folder(server, tmp_path / "theirs", "/me/mine/resolve/main", without=("model.safetensors",))
    late = server.scripts.pop(f"/me/mine/resolve/main/{shards[1]}")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(VitreousError, match=f"names {shards[1]}, which the repository does not have"):
        locate("hf:me/mine")
    server.scripts[f"/me/mine/resolve/main/{shards[1]}"] = late
    assert torch.equal(logits("hf:me/mine"), expected)
    server.close()
    assert torch.equal(logits("hf:me/mine"), expected)
    assert asked_for(server).count(shards[0]) == 1


@pytest.mark.parametrize("name", ["../../../evil.safetensors", "/tmp/evil.safetensors", "evil.sh", "..\\evil.safetensors"])
def test_an_index_cannot_name_files_elsewhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = "/me/mine/resolve/main"
    server.scripts[f"{root}/config.json"] = [ok(b"{}")]
    index = json.dumps({"weight_map": {"a": name}}).encode()
    server.scripts[f"{root}/model.safetensors.index.json"] = [ok(index)]
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(VitreousError, match="points outside its folder"):
        locate("hf:me/mine")
    assert not any("evil" in path for path, _ in server.requests)


def test_torch_files_are_the_last_resort(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(small(), tmp_path / "theirs", "huggingface")
    expected = logits(str(tmp_path / "theirs"))
    torch.save(
        safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors"), tmp_path / "theirs" / "pytorch_model.bin"
    )
    serve_folder(server, tmp_path / "theirs", "/me/mine/resolve/main", without=("model.safetensors",))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert torch.equal(logits("hf:me/mine"), expected)
    assert asked_for(server)[-3:] == ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]


def test_a_vitreous_checkpoint_on_the_hub_loads_too(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = dataclasses.replace(small(("cat", "dog", "eel")), licence="CC0-1.0")
    save_checkpoint(checkpoint, tmp_path / "ours", "vitreous")
    serve_folder(server, tmp_path / "ours", "/me/mine/resolve/main")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    clf = load("hf:me/mine")
    assert (clf.classes, clf.checkpoint.licence) == (("cat", "dog", "eel"), "CC0-1.0")


def test_empty_and_absent_repositories_are_distinguished(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(VitreousError, match=r"hf:me/gone@v1: no config\.json at .*revision 'v1'"):
        locate("hf:me/gone@v1")
    server.scripts["/me/empty/resolve/main/config.json"] = [ok(b"{}")]
    with pytest.raises(VitreousError, match=r"hf:me/empty: the repository has neither"):
        locate("hf:me/empty")


def test_a_hub_out_of_reach_is_reported_with_folder_and_variable(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.close()
    with pytest.raises(VitreousError) as caught:
        locate("hf:google/vit-base-patch16-224")
    message = str(caught.value)
    assert f"{server.url}/google/vit-base-patch16-224/resolve/main/config.json" in message
    assert str(tmp_path / "cache" / "hf" / "google" / "vit-base-patch16-224") in message
    assert "HF_ENDPOINT" in message
