"""Over mutated files: what `predict` refuses the doctor reports, and it calls nothing unreadable that `predict` takes."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.transforms.decode import BadImage, decode
from vitreous.doctor import examine as module
from vitreous.doctor.examine import examine

from conftest import Budget, mutate

REFUSED = {"missing", "empty-file", "not-an-image", "unreadable", "truncated", "too-large"}


def _encoded() -> dict[str, bytes]:
    """Small files of every common format, with and without EXIF, several frames, palettes and progressive scans."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((40, 30), Image.Resampling.BICUBIC)
    notes = Image.Exif()
    notes[0x0112], notes[0x010E] = 6, "a description"
    more = {"save_all": True, "append_images": [image.rotate(180)]}
    made = {}
    for name, format, source, options in (
        ("png", "PNG", image, {}),
        ("png exif", "PNG", image, {"exif": notes}),
        ("png palette", "PNG", image.convert("P"), {"transparency": 3}),
        ("png alpha", "PNG", image.convert("RGBA"), {}),
        ("apng", "PNG", image, more),
        ("jpeg", "JPEG", image, {}),
        ("jpeg exif", "JPEG", image, {"exif": notes}),
        ("jpeg progressive", "JPEG", image, {"progressive": True}),
        ("gif", "GIF", image, more),
        ("tiff", "TIFF", image, {"exif": notes}),
        ("tiff lzw", "TIFF", image, {"compression": "tiff_lzw", **more}),
        ("webp", "WEBP", image, {"exif": notes}),
        ("webp frames", "WEBP", image, more),
        ("bmp", "BMP", image, {}),
    ):
        file = io.BytesIO()
        source.save(file, format, **options)
        made[name] = file.getvalue()
    return made


@pytest.mark.parametrize("decoder", ["simplejpeg", "Pillow alone"])
def test_the_doctor_reports_what_predict_refuses(
    rounds: Callable[[int, int], range], tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "Pillow alone":
        monkeypatch.setattr(module, "simplejpeg", None)
    elif module.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    good = _encoded()
    names = list(good) if decoder == "simplejpeg" else [name for name in good if "jpeg" in name]
    seen: Counter[bool] = Counter()
    path = tmp_path / "image"
    for number in rounds(110, 2000):
        rng = random.Random(number)
        name = names[number % len(names)]
        data = mutate(good[name], rng)
        path.write_bytes(data)
        with Budget():
            found = examine(data, "image")
            try:
                decode(path)
                refused = ""
            except BadImage as bad:
                refused = bad.why
        assert (found.problem in REFUSED) == bool(refused), f"case {number} ({name}): {found.problem or 'sound'}, {refused}"
        seen[bool(refused)] += 1
    assert min(seen[True], seen[False]) > 10  # both happen, or nothing was tried
