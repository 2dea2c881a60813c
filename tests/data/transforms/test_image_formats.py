"""Which files are tried, and what is said of the others."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from vitreous.data.open import open_data
from vitreous.data.transforms.decode import BadImage, decode
from vitreous.data.transforms.image_formats import describe_left_out, formats, is_image_name, suffixes
from vitreous.inference.image_list import image_list

PHOTO = Image.linear_gradient("L").resize((24, 16)).convert("RGB")


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The formats are found anew, here and behind the test."""
    formats.cache_clear()
    suffixes.cache_clear()
    yield
    formats.cache_clear()
    suffixes.cache_clear()


@pytest.mark.filterwarnings("ignore:IM image format")
def test_every_format_that_pillow_writes_and_reads_is_tried() -> None:
    """By experiment: what Pillow has written under an extension, and opens, is an image by its name and decodes."""
    Image.init()
    tried = set()
    for suffix, name in Image.registered_extensions().items():
        for mode in ("RGB", "L", "1", "P"):
            written = io.BytesIO()
            try:
                PHOTO.convert(mode).save(written, name)
                with Image.open(io.BytesIO(written.getvalue())) as opened:
                    opened.load()
            except Exception:  # it has no writer, or not for this mode, or reads it with another program
                continue
            if name == "EPS":
                break
            assert is_image_name(f"photo{suffix.upper()}"), suffix
            assert decode(written.getvalue()).mode == "RGB"
            tried.add(suffix)
            break
    assert tried >= {".dds", ".mpo", ".jp2", ".tif", ".tga", ".pcx", ".sgi", ".icns", ".webp", ".avif", ".qoi", ".jpg"}


def test_what_pillow_only_reads_and_what_other_programs_read() -> None:
    assert all(map(is_image_name, ("a.psd", "a.fits", "a.xpm", "a.cur", "a.ras", "a.blp", "a.b.PcX")))
    for name in ("a.eps", "a.ps", "a.wmf", "a.h5", "a.grib", "a.mpg", "a.pdf", "a.txt", "jpg", "a", ".jpgs"):
        assert not is_image_name(name), name


def _fill(folder: Path) -> None:
    (folder / "cat").mkdir(parents=True)
    for name in ("1.dds", "2.mpo", "3.jpg"):
        PHOTO.save(folder / "cat" / name)
    for name in ("a.heic", "b.HEIC", "c.txt", "notes"):
        (folder / "cat" / name).write_bytes(b"x")


def test_a_search_counts_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    _fill(tmp_path / "set")
    for word in (tmp_path / "set", f"{tmp_path}/set/**", f"{tmp_path}/set/cat/*"):
        left_out: list[str] = []
        found = [Path(image.path).name for image in image_list([str(word)], left_out=left_out)]
        assert found == ["1.dds", "2.mpo", "3.jpg"]
        note = describe_left_out(left_out, len(left_out))
        assert "4 files (.heic 2, .txt 1, no extension 1)" in note
        assert f"{tmp_path}/set/cat/a.heic" in note
        assert "pip install pillow-heif" in note
    dataset = open_data(tmp_path / "set")
    assert len(dataset.source("all")) == 3  # type: ignore[arg-type]
    assert "4 files (.heic 2, .txt 1, no extension 1): cat/a.heic" in dataset.summary()[-1]
    assert "pip install pillow-heif" in dataset.summary()[-1]


def test_heic_is_read_where_its_package_is_installed(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_image_name("photo.heic")
    formats.cache_clear()
    suffixes.cache_clear()
    for registry in ("ID", "OPEN", "EXTENSION"):
        monkeypatch.setattr(Image, registry, type(getattr(Image, registry))(getattr(Image, registry)))
    package = types.ModuleType("pillow_heif")

    def register_heif_opener() -> None:
        Image.register_open("HEIF", Image.OPEN["PNG"][0])
        Image.register_extension("HEIF", ".heic")

    package.register_heif_opener = register_heif_opener  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    assert is_image_name("photo.heic")


def test_libtiff_prints_nothing(capfd: pytest.CaptureFixture[str], forgotten: None) -> None:
    written = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(written, "TIFF", compression="tiff_lzw")
    damaged = bytearray(written.getvalue())
    damaged[200:260] = b"\xff" * 60
    with pytest.raises(BadImage, match="broken image"):
        decode(bytes(damaged))
    assert capfd.readouterr().err == ""


def test_pillows_own_log_prints_nothing() -> None:
    """In a process of its own: pytest has handlers, and what has none is printed."""
    written = io.BytesIO()
    PHOTO.save(written, "TIFF")
    data = written.getvalue().replace(struct.pack("<HHIHH", 277, 3, 1, 3, 0), struct.pack("<HHIHH", 277, 3, 1, 255, 0))
    assert data != written.getvalue()
    code = (
        "import sys; from vitreous.data.transforms.decode import BadImage, decode\n"
        "try: decode(sys.stdin.buffer.read())\n"
        "except BadImage: print('bad')"
    )
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert (run.stdout.strip(), run.stderr) == (b"bad", b"")
