"""Every kind of file: what comes out is known beforehand, because the images are made here."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_images import encoded, photo, write

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.decode import PIXELS, BadImage, decode, raise_bad_image

PHOTO = photo(20, 30)
RGB = np.asarray(PHOTO)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("PPM", {}),
        ("TGA", {}),
        ("GIF", {}),
    ],
)
def test_lossless_formats(format: str, options: dict[str, object]) -> None:
    image = PHOTO.quantize(64) if format == "GIF" else PHOTO
    content = encoded(image, format, **options)
    assert np.array_equal(np.asarray(decode(content)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(
    ("format", "options"), [("JPEG", {"quality": 98}), ("AVIF", {"quality": 98}), ("WEBP", {"quality": 98})]
)
def test_lossy_formats(format: str, options: dict[str, object]) -> None:
    image = photo(200, 300)
    found = np.asarray(decode(encoded(image, format, **options))).astype(int)
    assert np.abs(found - np.asarray(image)).mean() < 3


def test_from_a_path_bytes_an_array_or_an_image(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    PHOTO.save(path)
    for image in (path, str(path), path.read_bytes(), RGB, PHOTO):
        assert np.array_equal(np.asarray(decode(image)), RGB)


def test_grey_and_palette() -> None:
    grey = np.arange(200, dtype=np.uint8).reshape(10, 20)
    assert np.array_equal(np.asarray(decode(encoded(Image.fromarray(grey), "PNG"))), grey[:, :, None].repeat(3, axis=2))
    assert np.array_equal(np.asarray(decode(encoded(Image.fromarray(grey), "PNG"), channels=1)), grey)
    palette = PHOTO.quantize(16)
    assert np.array_equal(np.asarray(decode(encoded(palette, "PNG"))), np.asarray(palette.convert("RGB")))
    one_bit = Image.fromarray(grey > 99).convert("1")
    assert set(np.unique(np.asarray(decode(encoded(one_bit, "PNG"))))) == {0, 255}


def test_alpha_lies_over_white() -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (255, 0, 0, 255)
    pixels[0, 1] = (255, 0, 0, 0)
    pixels[1, 0] = (0, 0, 0, 128)
    found = np.asarray(decode(encoded(Image.fromarray(pixels), "PNG")))
    assert found[0, 0].tolist() == [255, 0, 0]
    assert found[0, 1].tolist() == [255, 255, 255]
    assert abs(int(found[1, 0, 0]) - 127) <= 1
    see_through = Image.fromarray(np.array([[0, 1]], np.uint8))
    see_through.putpalette([10, 20, 30, 40, 50, 60])
    found = np.asarray(decode(encoded(see_through, "PNG", transparency=1)))
    assert found[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    grey_alpha = Image.new("LA", (2, 1), (100, 0))
    assert np.asarray(decode(encoded(grey_alpha, "PNG"))).tolist() == [[[255] * 3] * 2]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    for format in ("PNG", "TIFF"):
        found = np.asarray(decode(encoded(Image.fromarray(values), format)))[:, :, 0]
        assert np.abs(found - values / 257).max() <= 0.5
    dark = np.full((4, 4), 200, np.uint16)
    assert np.asarray(decode(encoded(Image.fromarray(dark), "PNG"))).max() == 1, "a dark image stays dark"
    assert np.asarray(decode(_png16(np.stack([values] * 3, axis=2)))).max() == 255


def _png16(pixels: np.ndarray) -> bytes:
    """A colour PNG with 16 bits a channel, which Pillow cannot write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_sixteen_bit_colour_keeps_its_high_bits() -> None:
    values = np.linspace(0, 65535, 16 * 16 * 3, dtype=np.uint16).reshape(16, 16, 3)
    found = np.asarray(decode(_png16(values)))
    assert np.abs(found - values / 257).max() <= 1


def test_floating_point_and_thirty_two_bits() -> None:
    unit = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    assert np.abs(np.asarray(decode(encoded(Image.fromarray(unit), "TIFF")))[:, :, 0] - unit * 255).max() <= 0.5
    wide = np.linspace(0, 65535, 64).astype(np.int32).reshape(8, 8)
    assert np.abs(np.asarray(decode(encoded(Image.fromarray(wide), "TIFF")))[:, :, 0] - wide / 257).max() <= 0.5
    odd = np.array([[np.nan, 0.5], [np.inf, -1.0]], np.float32)
    assert decode(encoded(Image.fromarray(odd), "TIFF")).size == (2, 2)


def test_cmyk() -> None:
    found = np.asarray(decode(encoded(PHOTO.convert("CMYK"), "TIFF"))).astype(int)
    assert np.abs(found - np.asarray(PHOTO.convert("CMYK").convert("RGB"))).max() == 0
    assert np.abs(found - RGB).max() <= 2


@pytest.mark.parametrize("format", ["GIF", "WEBP", "TIFF", "PNG"])
def test_first_frame_of_an_animation(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    content = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert np.asarray(decode(content))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(format: str, orientation: int) -> None:
    """Marked corners: where red, green and blue must come to lie is what EXIF says of each orientation."""
    pixels = np.full((32, 48, 3), 128, np.uint8)
    pixels[:16, :16], pixels[:16, -16:], pixels[-16:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = np.asarray(decode(encoded(Image.fromarray(pixels), format, exif=exif)))
    corners = {"top left": found[4, 4], "top right": found[4, -5], "bottom left": found[-5, 4], "bottom right": found[-5, -5]}
    where = {colour: next(c for c, v in corners.items() if v.argmax() == i and v.max() > 200 and v.min() < 60)
             for i, colour in enumerate(("red", "green", "blue"))}  # fmt: skip
    first_row = {1: "top", 2: "top", 3: "bottom", 4: "bottom", 5: "left", 6: "right", 7: "right", 8: "left"}[orientation]
    first_column = {1: "left", 2: "right", 3: "right", 4: "left", 5: "top", 6: "top", 7: "bottom", 8: "bottom"}[orientation]
    assert first_row in where["red"]
    assert first_row in where["green"], "the stored first row holds red and green"
    assert first_column in where["red"]
    assert first_column in where["blue"], "the stored first column holds red and blue"


# Bad files ------------------------------------------------------------------------------------------------------------


def _bad(path: Path) -> BadImage:
    with pytest.raises(BadImage) as error:
        decode(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(BadImage):
        decode(path.read_bytes() if path.is_file() else path, place=str(path))
    return error.value


def test_every_kind_of_bad(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello, this is not an image")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    whole = write(tmp_path / "whole.jpg", photo(100, 100))
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-300])
    whole_png = write(tmp_path / "whole.png", photo(100, 100))
    (tmp_path / "cut.png").write_bytes(whole_png.read_bytes()[:-3000])
    assert _bad(tmp_path / "empty.jpg").kind == "empty-file"
    assert _bad(tmp_path / "text.jpg").kind == "not-an-image"
    assert _bad(tmp_path / "folder.jpg").kind == "not-an-image"
    assert _bad(tmp_path / "loop.jpg").kind == "unreadable"
    assert _bad(tmp_path / "gone.jpg").kind == "missing"
    assert _bad(tmp_path / "cut.jpg").kind == "unreadable"
    assert _bad(tmp_path / "cut.png").kind == "unreadable"
    if os.getuid():
        whole.chmod(0)
        assert _bad(whole).kind == "unreadable"


def test_a_small_file_that_claims_to_be_huge(tmp_path: Path) -> None:
    side = int(PIXELS**0.5) + 10
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = b"IHDR" + header
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data + struct.pack(">I", zlib.crc32(data))
    (tmp_path / "bomb.png").write_bytes(content + b"\0\0\0\0IDAT" + bytes(20))
    assert _bad(tmp_path / "bomb.png").kind == "too-large"


def _tiff(width: int, height: int, bits: int, strip: bytes, rows: int) -> bytes:
    """A floating-point TIFF whose strips are all the same bytes."""
    strips = -(-height // rows)
    where = 8 + len(strip)
    lists = struct.pack(f"<{2 * strips}I", *([8] * strips), *([len(strip)] * strips))
    tags = (
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, strips, where),
        (277, 3, 1, 1), (278, 4, 1, rows), (279, 4, strips, where + 4 * strips), (339, 3, 1, 3 if bits == 32 else 1),
    )  # fmt: skip
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\0" + struct.pack("<I", where + len(lists)) + strip + lists + directory


def test_a_small_file_takes_bounded_memory_and_time() -> None:
    """The first took 9 s and 5 GB: its pixels fit the limit, their conversion from floating point did not."""
    side, rows = 13_000, 1000
    strip = zlib.compress(b"")  # the header is enough to refuse it
    with pytest.raises(BadImage, match=r"x: \d+ bytes that decode to 13000 x 13000 pixels \(TIFF, F\) and take more than"):
        decode(_tiff(side, side, 32, strip, rows), place="x")
    with pytest.raises(BadImage, match="1,048,576 a side"):
        decode(_tiff(2, 40_000_000, 8, zlib.compress(bytes(100)), 40_000_000))
    header = b"DDS " + struct.pack("<7I44x", 124, 0x1007, 5000, 5000, 15000, 0, 0)
    header += struct.pack("<8I20x", 32, 0x40, 0, 24, 0xFF0000, 0xFF00, 0xFF, 0)
    with pytest.raises(BadImage, match="in a slow format"):
        decode(header)
    progressive = encoded(photo(1500, 1500), "JPEG", progressive=True, quality=1)
    scan = progressive.rindex(b"\xff\xda")
    again = progressive[scan:-2]
    with pytest.raises(BadImage, match="scans of 2,250,000 pixels"):
        decode(progressive[:-2] + (again[:20] + bytes(2)) * 200 + b"\xff\xd9")
    assert decode(progressive).size == (1500, 1500)
    large = _tiff(6000, 5000, 8, zlib.compress(bytes(6000 * 500), 9), 500)
    assert len(large) < 40_000
    assert decode(large).size == (6000, 5000), "a large image of little content is no bomb"


@pytest.mark.parametrize("mode", ["F", "I", "I;16", "RGBA", "LA"])
def test_conversion_in_bands_is_that_of_the_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brightest value lies in the last band, and still scales the first; the memory is that of a band."""
    values = np.linspace(0, 70_000 if mode in "FI" else 65_535, 53 * 40).reshape(53, 40)
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray((values / 257).astype(np.uint8))
        image = Image.merge(mode, [alpha.rotate(90 * turn) for turn in range(len(mode))])
        white = Image.new("RGBA", image.size, "white")
        expected = np.asarray(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))
    else:
        kind = {"F": np.float32, "I": np.int32, "I;16": np.uint16}[mode]
        image = Image.fromarray(values.astype(kind))
        grey = np.round(values.astype(kind) * (255.0 / (70_000 if mode in "FI" else 65_535))).astype(np.uint8)
        expected = np.repeat(grey[:, :, None], 3, axis=2)
    assert image.mode == mode
    monkeypatch.setattr("vitreous.data.transforms.decode._BAND", 130)  # three rows
    assert np.array_equal(np.asarray(decode(image)), expected)


def test_warnings_are_silenced_in_several_threads_and_restored() -> None:
    before = list(warnings.filters)
    barrier = threading.Barrier(2)

    def read() -> None:
        for _ in range(50):
            barrier.wait()
            with raise_bad_image("x"):
                warnings.warn("corrupt EXIF data", stacklevel=1)

    with warnings.catch_warnings(record=True) as heard:
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not heard
    assert list(warnings.filters) == before


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_damage_anywhere_is_named_or_harmless(format: str) -> None:
    """Bytes changed and files cut: an image or a BadImage, never another error."""
    content = encoded(PHOTO, format)
    rng = np.random.default_rng(0)
    for _ in range(120):
        damaged = bytearray(content)
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = rng.integers(0, 256)
        damaged = damaged[: rng.integers(1, len(damaged) + 1)]
        try:
            assert decode(bytes(damaged), place="x").mode == "RGB"
        except BadImage as error:
            assert str(error).startswith("x: ")


def test_a_image_that_is_a_program_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """EPS is PostScript, which Pillow would hand to Ghostscript."""
    content = encoded(PHOTO, "EPS")
    with Image.open(io.BytesIO(content)) as opened:
        assert opened.format == "EPS"
    monkeypatch.setattr("subprocess.check_call", lambda *a, **k: pytest.fail("a program was run"))
    with pytest.raises(BadImage) as error:
        decode(content, place="x.eps")
    assert error.value.kind == "not-an-image"


def test_wrong_calls() -> None:
    with pytest.raises(VitreousError, match="1 or 3 channels, not 4"):
        decode(PHOTO, channels=4)
    with pytest.raises(VitreousError, match="expected uint8"):
        decode(RGB.astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(VitreousError, match="not int"):
        decode(3)  # type: ignore[arg-type]
