"""One image out of whatever a stranger sends: counted while it comes, read like a file of our own, and nothing is opened."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_server import CROP, picture
from starlette.requests import ClientDisconnect, Request

from vitreous.data.transforms.parse import Preprocess
from vitreous.serving import image_decode as picture_module
from vitreous.serving.byte_budget import Budget
from vitreous.serving.http_errors import ErrorResponse
from vitreous.serving.image_decode import raw_pixels
from vitreous.serving.limits import Limits
from vitreous.serving.uploads import AROUND, Body, image_in, receive_body

LIMITS = Limits(upload_bytes=100_000, pixels=1_000_000)
PREPROCESS = Preprocess(CROP)


def form(*fields: tuple[str, bytes], boundary: str = "b0undary") -> bytes:
    """Written by hand, as RFC 7578 has it."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="a"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in fields
    ]
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def of_form(content: bytes, boundary: bytes = b"b0undary") -> bytes:
    return image_in(Body("form", boundary, content), LIMITS)


def of_json(content: Any) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return image_in(Body("json", b"", body), LIMITS)


def refused(function: Any, *arguments: Any) -> ErrorResponse:
    with pytest.raises(ErrorResponse) as found:
        function(*arguments)
    assert found.value.error
    assert found.value.hint
    return found.value


# Forms ------------------------------------------------------------------------------------------------------------------------


@given(content=st.binary(min_size=1, max_size=3000).filter(lambda content: b"/" not in content and b"~" not in content[:9]))
def test_a_form_gives_the_bytes_that_another_library_put_in(content: bytes) -> None:
    sent = httpx.Request("POST", "http://x", files={"file": ("ä name.jpg", content, "image/jpeg")})
    boundary = sent.headers["content-type"].partition("boundary=")[2].encode()
    try:
        assert of_form(sent.read(), boundary) == content
    except ErrorResponse as refusal:  # what looks like a path: b"C:\\"
        assert "path" in refusal.error


@given(content=st.binary(max_size=400), cut=st.integers(0, 200))
def test_a_broken_form_is_refused_and_never_an_error(content: bytes, cut: int) -> None:
    for body in (content, b"--b0undary\r\n" + content, form(("file", content))[:cut]):
        try:
            of_form(body)
        except ErrorResponse as refusal:
            assert refusal.status in (400, 422)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (form(), 400, "form"),  # what is said of it is the parser's, in several versions
        (b"", 400, "ends before"),
        (form(("file", b"x"), ("file", b"y")), 400, "several"),
        (form(("flie", b"x")), 400, "unknown field 'flie'"),
        (form(("file", b"x"), ("other", b"y")), 400, "unknown field"),
        (form(("url", b"http://example.org/cat.jpg")), 400, "URL"),
        (form(("path", b"/etc/passwd")), 400, "URL or path"),
        (form(("file", b"https://example.org/cat.jpg")), 400, "URL"),
        (form(("file", b"/etc/passwd")), 400, "path"),
        (form(("file", b"")), 422, "empty"),
        (form(("file", b"x" * 100_001)), 413, "MB"),
        (form(*[("file", b"x")] * 50), 400, "several"),
        (form(("file", b"x"))[:-6], 400, "ends before"),
        (b"--b0undary\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b0undary--\r\n", 400, "form"),
        (b"--b0undary\r\n" + b"A" * 100_000, 400, "form"),
    ],
)
def test_forms_that_are_not_one_image(body: bytes, status: int, word: str) -> None:
    refusal = refused(of_form, body)
    assert refusal.status == status
    assert word in refusal.error


# JSON -------------------------------------------------------------------------------------------------------------------------


def test_json_with_base64_of_every_usual_kind() -> None:
    content = bytes(range(256))
    text = base64.b64encode(content).decode()
    wrapped = base64.encodebytes(content).decode()  # lines of 76, as the command `base64` writes them
    for image in (text, wrapped, f"data:image/png;base64,{text}", f"DATA:;base64,{text}"):
        assert of_json({"image": image}) == content
    assert of_json(json.dumps({"image": text}).encode("utf-16")) == content
    jpeg = picture(format="JPEG")
    assert base64.b64encode(jpeg).startswith(b"/9j/")  # which looks like a path
    assert of_json({"image": base64.b64encode(jpeg).decode()}) == jpeg


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe\x00", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b'{"image": ' + b"9" * 10_000 + b"}", 400, "not JSON"),
        ([], 400, "not an object"),
        ("text", 400, "not an object"),
        ({}, 400, "no key 'image'"),
        ({"image": None}, 400, "not a string"),
        ({"image": {"url": "x"}}, 400, "not a string"),
        ({"imgae": "eA=="}, 400, "unknown key 'imgae'"),
        ({"image": "eA==", "top": 5}, 400, "unknown key 'top'"),
        ({"url": "http://example.org"}, 400, "URL"),
        ({"image": "http://example.org/cat.jpg"}, 400, "URL"),
        ({"image": "file:///etc/passwd"}, 400, "URL"),
        ({"image": "../../etc/passwd"}, 400, "path"),
        ({"image": "C:\\cat.jpg"}, 400, "path"),
        ({"image": "no base64!"}, 400, "not base64"),
        ({"image": "é"}, 400, "not base64"),
        ({"image": "eA="}, 400, "not base64"),
        ({"image": "data:image/png,abc"}, 400, "data: URI"),
        ({"image": ""}, 422, "empty"),
        ({"image": base64.b64encode(b"x" * 100_001).decode()}, 413, "MB"),
        (b'{"image": "eA==", "image": "eA=="}', 400, "twice"),
    ],
)
def test_json_that_is_not_one_image(body: Any, status: int, word: str) -> None:
    refusal = refused(of_json, body)
    assert refusal.status == status
    assert word in refusal.error


# The image itself -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"", 422, "empty"),
        (b"x" * 100_001, 413, "MB"),
        (b"https://example.org/cat.jpg", 400, "URL"),
        (b"/etc/passwd", 400, "path"),
    ],
)
def test_bodies_that_are_not_one_image(content: bytes, status: int, word: str) -> None:
    refusal = refused(image_in, Body("image", b"", content), LIMITS)
    assert refusal.status == status
    assert word in refusal.error


# Bodies as they come ----------------------------------------------------------------------------------------------------------


def asked(headers: dict[str, str], chunks: list[bytes], limits: Limits = LIMITS, budget: Budget | None = None) -> Body:
    coming = iter(chunks)
    left = len(chunks)

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        chunk = next(coming, None)
        return {"type": "http.disconnect"} if chunk is None else {"type": "http.request", "body": chunk, "more_body": left > 0}

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "path": "/predict", "headers": raw, "query_string": b""}, receive)

    async def read() -> Body:
        with (budget or Budget(limits.held)).account() as account:
            return await receive_body(request, limits, account)

    return asyncio.run(read())


def test_a_body_is_put_together() -> None:
    body = asked({"Content-Type": "application/json; charset=utf-8"}, [b"ab", b"", b"c"])
    assert (body.kind, body.content) == ("json", b"abc")
    body = asked({"Content-Type": 'Multipart/Form-Data; boundary="x y"'}, [b"a"])
    assert (body.kind, body.boundary) == ("form", b"x y")
    for media_type in ("image/png", "Image/JPEG; q=1", "image/x-unknown"):
        body = asked({"Content-Type": media_type}, [b"a", b"b"])
        assert (body.kind, image_in(body, LIMITS)) == ("image", b"ab")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "image"}, 415),
        ({"Content-Type": "video/mp4"}, 415),
        ({"Content-Type": "image/png", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "image/png", "Content-Length": str(100_001 + AROUND)}, 413),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "multipart/form-data"}, 400),
        ({"Content-Type": "application/json", "Content-Length": "-1"}, 400),
        ({"Content-Type": "application/json", "Content-Length": "1e3"}, 400),
        ({"Content-Type": "application/json", "Content-Length": "9" * 17}, 413),
        ({"Content-Type": "multipart/form-data; boundary=x", "Content-Length": str(100_001 + AROUND)}, 413),
    ],
)
def test_headers_that_are_refused_before_a_byte_is_read(headers: dict[str, str], status: int) -> None:
    assert refused(asked, headers, [b"never read"] * 2).status == status


def test_a_body_is_counted_while_it_comes_whatever_its_header_says() -> None:
    chunks = [b"x" * 50_000] * 5
    for headers in ({}, {"Content-Length": "10"}):
        assert refused(asked, {"Content-Type": "multipart/form-data; boundary=x", **headers}, chunks).status == 413
    most = 100_000 * 7 // 5 + AROUND
    assert len(asked({"Content-Type": "application/json"}, [b"x" * most]).content) == most
    assert refused(asked, {"Content-Type": "application/json"}, [b"x" * most, b"x"]).status == 413


def test_all_uploads_together_have_a_bound_that_is_given_back() -> None:
    budget = Budget(1000)
    with budget.account() as other:
        other.take(900)
        refusal = refused(asked, {"Content-Type": "application/json"}, [b"x" * 200], LIMITS, budget)
        assert refusal.status == 503
        assert int(refusal.headers["Retry-After"]) >= 1
        refusal = refused(asked, {"Content-Type": "application/json", "Content-Length": "200"}, [], LIMITS, budget)
        assert refusal.status == 503
        assert budget.held == 900
        asked({"Content-Type": "application/json"}, [b"x" * 100], LIMITS, budget)
    assert budget.held == 0


def test_a_caller_who_leaves_is_not_an_error() -> None:
    budget = Budget(1000)
    with pytest.raises(ClientDisconnect):
        asked({"Content-Type": "application/json", "Content-Length": "100"}, [], LIMITS, budget)
    assert budget.held == 0


# Images ---------------------------------------------------------------------------------------------------------------------


def turned(orientation: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


def sixteen_bits() -> bytes:
    values = np.random.default_rng(0).integers(0, 65536, (60, 50), dtype=np.uint16)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    return out.getvalue()


def several(format: str) -> bytes:
    frames = [Image.open(io.BytesIO(picture(seed))) for seed in range(3)]
    out = io.BytesIO()
    frames[0].save(out, format, save_all=True, append_images=frames[1:])
    return out.getvalue()


KINDS = {
    "png": lambda: picture(),
    "grey": lambda: picture(mode="L"),
    "palette": lambda: picture(mode="P"),
    "see-through": lambda: picture(mode="RGBA"),
    "16 bits": sixteen_bits,
    "jpeg": lambda: picture(format="JPEG"),
    "progressive": lambda: picture(format="JPEG", progressive=True),
    "cmyk": lambda: picture(format="JPEG", mode="CMYK"),
    "turned jpeg": lambda: picture(format="JPEG", **turned(6)),
    "turned png": lambda: picture(format="PNG", **turned(8)),
    "webp": lambda: picture(format="WEBP"),
    "bmp": lambda: picture(format="BMP"),
    "tiff": lambda: picture(format="TIFF"),
    "ppm": lambda: picture(format="PPM"),
    "animated gif": lambda: several("GIF"),
    "animated webp": lambda: several("WEBP"),
    "pages of tiff": lambda: several("TIFF"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_image_is_read_as_a_file_is(kind: str, channels: int, tmp_path: Path) -> None:
    preprocess = Preprocess("resize_small(36,bilinear)|central_crop(32)|range(-1,1)", channels)
    content = KINDS[kind]()
    (tmp_path / "file").write_bytes(content)
    expected = preprocess(str(tmp_path / "file"))
    found = preprocess.scale(raw_pixels(content, preprocess, LIMITS))
    assert torch.equal(found, expected)


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(1001, 1000), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (1, 1_000_001)])
def test_a_header_that_claims_too_much_is_refused_before_it_is_decoded(width: int, height: int) -> None:
    assert refused(raw_pixels, claiming(width, height), PREPROCESS, LIMITS).status == 413


def test_the_largest_size_is_read() -> None:
    assert raw_pixels(picture(size=(1000, 1000), format="BMP"), PREPROCESS, LIMITS).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("size", "format", "times"), [((4000, 4000), "BMP", 0), ((4001, 4000), "BMP", 1), ((4001, 4000), "JPEG", 1)]
)
def test_large_images_leave_no_memory_behind(
    size: tuple[int, int], format: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[None] = []
    monkeypatch.setattr(picture_module, "_trim_memory", lambda: given.append(None))
    out = io.BytesIO()
    Image.new("L", size).save(out, format)
    content = out.getvalue()
    assert raw_pixels(content, PREPROCESS, Limits()).shape == (3, 32, 32)
    assert len(given) == times
    with pytest.raises(ErrorResponse):  # cut off; the next one is not locked out
        raw_pixels(content[:-1000], PREPROCESS, Limits())
    assert len(given) == 2 * times


def test_a_line_does_not_become_gigapixels() -> None:
    refusal = refused(raw_pixels, picture(size=(900_000, 1), format="BMP"), PREPROCESS, LIMITS)
    assert (refusal.status, "thin" in refusal.error) == (422, True)


def test_a_jpeg_that_is_scanned_again_and_again_is_refused() -> None:
    content = picture(size=(900, 1000), format="JPEG", progressive=True)
    assert content.count(b"\xff\xda") == 10  # as many as usual
    assert raw_pixels(content, PREPROCESS, LIMITS).shape == (3, 32, 32)
    last = content.rindex(b"\xff\xda")
    scan = content[last:-2]
    assert "scans" in refused(raw_pixels, content[:-2] + scan * 20 + b"\xff\xd9", PREPROCESS, LIMITS).error


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"http://example.org",
        claiming(30, 30),
        picture()[:200],
        picture(format="JPEG")[:500],
        picture(format="WEBP")[:100],
        several("GIF")[:30],
    ],
    ids=lambda content: repr(content[:8]),
)
def test_what_is_no_whole_image_is_refused(content: bytes) -> None:
    assert refused(raw_pixels, content, PREPROCESS, LIMITS).status == 422


@pytest.mark.parametrize("format", ["EPS", "ICO", "TGA", "PDF"])
def test_no_other_format_is_tried(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads EPS by running Ghostscript."""

    def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a program was run")

    monkeypatch.setattr(subprocess, "Popen", never)
    monkeypatch.setattr(subprocess, "check_call", never)
    refusal = refused(raw_pixels, picture(format=format), PREPROCESS, LIMITS)
    assert (refusal.status, refusal.error) == (422, "not an image in a known format")


def test_a_image_too_small_for_the_crop_says_so() -> None:
    refusal = refused(raw_pixels, picture(size=(20, 20)), Preprocess("central_crop(32)|range(-1,1)"), LIMITS)
    assert refusal.status == 422
    assert "32" in refusal.error


@given(
    content=st.sampled_from([picture(), picture(format="JPEG"), picture(format="GIF"), picture(format="WEBP")]), data=st.data()
)
def test_a_damaged_image_is_read_or_refused(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert raw_pixels(bytes(damaged), PREPROCESS, LIMITS).shape == (3, 32, 32)
    except ErrorResponse as refusal:
        assert refusal.status in (413, 422)
