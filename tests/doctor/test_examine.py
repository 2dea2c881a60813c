"""One item: damage is named, and what is told of a good image agrees with Pillow and numpy."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitreous.data.transforms.decode import PIXELS
from vitreous.doctor import examine as module
from vitreous.doctor.examine import REDUCED, examine


def make_image(seed: int = 0, width: int = 320, height: int = 240) -> Image.Image:
    """Neither flat nor noise: a few broad waves of colour, as a photograph has."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


@pytest.fixture(params=["with simplejpeg", "Pillow alone"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Pillow alone":
        monkeypatch.setattr(module, "simplejpeg", None)
    elif module.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    return str(request.param)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_good_image_is_seen_upright_and_as_it_is(format: str, orientation: int, decoder: str) -> None:
    notes = Image.Exif()
    notes[0x0112] = orientation
    turnable = format in ("JPEG", "PNG", "WEBP", "TIFF")
    data = encoded(make_image(), format, **({"exif": notes} if turnable else {}))
    found = examine(data, f"a.{format.lower()}")
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert (found.problem, found.odd, found.format, found.misnamed) == ("", "", format, False)
    assert (found.width, found.height) == expected.size
    assert found.orientation == (orientation if turnable else 1)
    assert found.image is not None
    assert found.image.mode == "RGB"
    assert REDUCED <= min(found.image.size) < 2 * REDUCED
    pixels = np.asarray(expected, np.float64)
    np.testing.assert_allclose(found.mean, pixels.mean((0, 1)), atol=1.5)
    np.testing.assert_allclose(found.deviation, pixels.std((0, 1)), atol=2.5)
    small = np.asarray(expected.resize(found.image.size, Image.Resampling.BOX), np.float64)
    assert np.abs(np.asarray(found.image, np.float64) - small).mean() < 4


@pytest.mark.parametrize(
    ("mode", "format"),
    [("P", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("I;16", "PNG"), ("CMYK", "JPEG"), ("L", "JPEG")],
)
def test_modes_are_reported_and_converted_to_rgb(mode: str, format: str, decoder: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((np.linspace(0, 65535, 200 * 160).reshape(160, 200)).astype(np.uint16))
    else:
        image = make_image(1, 200, 160).convert(mode)
    found = examine(encoded(image, format), f"a.{format.lower()}")
    assert (found.problem, found.mode, found.width, found.height) == ("", mode, 200, 160)
    if mode == "I;16":
        assert 120 < found.mean[0] < 135  # scaled, not clipped to white


def test_pixels_without_a_file() -> None:
    pixels = np.asarray(make_image(2, 40, 30))
    found = examine(pixels, "train/000001")
    assert (found.mode, found.width, found.height, found.problem) == ("RGB", 40, 30, "")
    np.testing.assert_allclose(found.mean, pixels.astype(float).mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(found.deviation, pixels.astype(float).std((0, 1)), rtol=1e-6)
    assert examine(pixels.copy(), "other").digest == found.digest
    assert examine(pixels.reshape(40, 30, 3), "reshaped").digest != found.digest
    assert examine(pixels[:, :, 0], "grey").mode == "L"


# Damage -----------------------------------------------------------------------------------------------------------------------


def _bomb(side: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")


JPEG, PNG = encoded(make_image(3), "JPEG", quality=90), encoded(make_image(3), "PNG")
WEBP = encoded(make_image(3), "WEBP")


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty-file"),
        (b"<html>404</html>", "not-an-image"),
        (JPEG[: len(JPEG) // 2], "truncated"),
        (JPEG[:-2], "truncated"),  # only the closing mark is gone
        (PNG[: len(PNG) // 2], "truncated"),
        (_flipped(PNG, len(PNG) // 2), "unreadable"),  # the pixels cannot be unpacked, so no command takes it
        (_flipped(PNG, len(PNG) - 20), "unreadable"),  # the checksum of the unpacked pixels
        (_flipped(PNG, len(PNG) - 14), "damaged"),  # of the packed ones, which Pillow passes over
        (_bomb(60_000), "too-large"),
        (_bomb(int(PIXELS**0.5) + 2), "too-large"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "not-an-image"),  # a beginning and nothing behind it
        (WEBP[: len(WEBP) // 2], "unreadable"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_damage_is_named(data: bytes, kind: str, decoder: str) -> None:
    found = examine(data, "x.jpg")
    assert found.problem == kind, found.why
    assert found.why
    assert "\n" not in found.why
    assert (found.image is None) == (kind != "damaged")


def test_damage_inside_a_jpeg_is_heard_where_the_library_tells_it() -> None:
    if module.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    middle = len(JPEG) // 2
    spoilt = JPEG[:middle] + b"\0" * 60 + JPEG[middle + 60 :]
    Image.open(io.BytesIO(spoilt)).load()  # Pillow says nothing
    found = examine(spoilt, "x.jpg")
    assert found.problem == "damaged"
    assert found.image is not None
    assert found.width == 320


def test_data_behind_the_image_is_odd_and_padding_is_not(decoder: str) -> None:
    for data in (JPEG, PNG):
        assert examine(data + b"\0" * 50, "x").odd == ""
        found = examine(data + b"PK\x03\x04 a zip", "x")
        assert (found.problem, found.odd) == ("", "data follow the end of the image")
    assert examine(PNG[:-12], "x.png").odd == "the closing chunk is missing"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}, {"quality": 100}])
def test_a_jpeg_behind_a_jpeg_is_odd_and_one_among_its_notes_is_not(options: dict[str, Any], decoder: str) -> None:
    preview = encoded(make_image(5, 80, 60), "JPEG")
    notes = b"Exif\0\0" + preview + b"\xff\xd9\xff"
    first = encoded(make_image(4), "JPEG", exif=notes, comment=preview, **options)
    assert first.count(b"\xff\xd9") >= 4
    found = examine(first, "x.jpg")
    assert (found.problem, found.odd) == ("", "")
    found = examine(first + preview, "x.jpg")
    assert (found.problem, found.odd) == ("", "data follow the end of the image")
    found = examine(first[:-2] + b"\xff" * 3 + first[-2:], "x.jpg")  # filling before a mark is allowed
    assert found.odd != "data follow the end of the image"


def test_several_images_in_a_file_that_says_so_are_not_odd(decoder: str) -> None:
    data = encoded(make_image(6), "MPO", save_all=True, append_images=[make_image(7)])
    assert (examine(data, "x.jpg").format, examine(data, "x.jpg").odd) == ("MPO", "")
    assert examine(data + b"more", "x.jpg").odd == "data follow the end of the image"


def test_too_little_memory_is_not_the_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*args: Any) -> Any:
        raise MemoryError

    for place in ("open_image", "_reduce"):
        monkeypatch.setattr(module, place, exhausted)
        with pytest.raises(MemoryError):
            examine(PNG, "x.png")
        monkeypatch.undo()
    monkeypatch.setattr(Image.Image, "getexif", exhausted)
    with pytest.raises(MemoryError):
        examine(PNG, "x.png")


def test_frames_names_and_formats() -> None:
    frames = [make_image(seed, 40, 30) for seed in range(3)]
    assert examine(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), "a.gif").frames == 3
    assert examine(encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]), "a.tif").frames == 3
    assert examine(encoded(frames[0], "MPO", save_all=True, append_images=frames[1:]), "a.jpg").frames == 1
    assert examine(PNG, "a.jpg").misnamed
    assert not examine(PNG, "a.PNG").misnamed
    assert not examine(JPEG, "a.jpeg").misnamed
    assert not examine(JPEG, "no suffix").misnamed


def test_any_bytes_give_an_answer() -> None:
    """Bytes changed at random: an examination comes back, whatever the decoders raise."""
    random = np.random.default_rng(0)
    kinds = set()
    for format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        good = encoded(make_image(4, 48, 36), format)
        for _ in range(40):
            data = bytearray(good)
            for at in random.integers(0, len(data), 4):
                data[at] = random.integers(0, 256)
            found = examine(bytes(data[: random.integers(1, len(data) + 1)]), "x")
            kinds.add(found.problem)
            assert (found.image is not None) == (found.width > 0)
    assert kinds <= {"", "unreadable", "truncated", "damaged", "not-an-image", "too-large"}
    assert len(kinds) > 2
