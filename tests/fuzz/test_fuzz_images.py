"""Mutated images of every format that Pillow writes, through the one way that decodes them: pixels or a BadImage, in bounded
time and memory, and not a word on the terminal."""

from __future__ import annotations

import io
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.decode import BadImage, decode
from vitreous.data.transforms.image import open_image_data, resize, size_of, to_bytes

from conftest import Budget, mutate


def _seeds() -> dict[str, bytes]:
    """A small file of each format, mode and compression that this Pillow writes."""
    Image.init()
    photo = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    notes = Image.Exif()
    notes[0x0112], notes[0x010E] = 6, "a description"
    more = {"save_all": True, "append_images": [photo.rotate(180)]}
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        (format, mode, {}) for format in Image.SAVE if format not in ("EPS", "PDF") for mode in ("RGB", "RGBA", "L", "1", "P")
    ]
    wanted += [("TIFF", mode, {}) for mode in ("F", "I", "I;16", "CMYK", "LAB", "YCbCr")]
    wanted += [
        ("TIFF", mode, {"compression": name})
        for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group3", "group4", "lzma", "webp", "zstd")
        for mode in ("RGB", "L", "1")
    ]
    wanted += [("JPEG", "RGB", {"progressive": True}), ("JPEG", "CMYK", {}), ("JPEG", "RGB", {"exif": notes})]
    wanted += [("PNG", "I;16", {}), ("PNG", "RGB", {"exif": notes}), ("PNG", "P", {"transparency": 3}), ("PNG", "RGB", more)]
    wanted += [("WEBP", "RGB", {"lossless": True}), ("WEBP", "RGB", more), ("GIF", "P", more), ("TIFF", "RGB", more)]
    wanted += [("DDS", "RGBA", {"pixel_format": name}) for name in ("DXT1", "DXT3", "DXT5", "BC3")]
    wanted += [("TGA", "RGB", {"compression": "tga_rle"}), ("MPO", "RGB", more)]
    made = {}
    for format, mode, options in wanted:
        file = io.BytesIO()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                photo.convert(mode).save(file, format, **options)
        except Exception:  # the writer does not take this mode, or this Pillow was built without it
            continue
        made[f"{format} {mode} {sorted(options)}{options.get('compression', '')}"] = file.getvalue()
    return made


def _read(data: bytes) -> bool:
    """Both ways: exact, and the quick one of training. Whether it is an image."""
    good = True
    try:
        assert decode(data, place="x").mode == "RGB"
    except BadImage as error:
        assert str(error).startswith("x: ")
        assert "\n" not in str(error)
        good = False
    if data[:2] == b"\xff\xd8":
        try:
            image = open_image_data(data, 3, "x", True)
            assert min(size_of(image)) > 0
            assert to_bytes(resize(image, 8, 8, "bilinear")).shape == (8, 8, 3)
        except VitreousError:
            pass
    return good


def test_mutated_images(rounds: Callable[[int, int], range], capfd: pytest.CaptureFixture[str]) -> None:
    seeds = _seeds()
    names = sorted(seeds)
    capfd.readouterr()  # what the writers said
    assert len({name.split()[0] for name in names}) > 20
    for name in names:
        assert _read(seeds[name]) or name.split()[0] in ("BUFR", "GRIB", "HDF5", "WMF", "PALM", "XBM"), name
    seen: Counter[bool] = Counter()
    faults = []
    for number in rounds(150, 10_000):
        rng = random.Random(number)
        name = rng.choice(names)
        data = mutate(seeds[name], rng)
        try:
            with Budget():
                seen[_read(data)] += 1
        except Exception:  # all are wanted, not the first
            faults.append(f"{number} ({name}): {traceback.format_exc(limit=-3)}")
    assert not faults, f"{len(faults)} of them, the first: {faults[:5]}"
    assert min(seen[True], seen[False]) > 10
    assert capfd.readouterr().err == ""
