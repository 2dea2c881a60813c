"""A small folder of rendered images with planted faults, for `vitreous doctor` to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.transforms.decode import decode

RENDERED = "builtin:shapes?size=128&count=2000"


@dataclass(frozen=True)
class Fault:
    what: str  # was done to the file
    path: str  # in the folder
    kind: str  # of finding that it should become


def make_faulty_folder(folder: Path) -> list[Fault]:
    """200 rendered images of four classes in train/ and test/, then ten faults."""
    for split, count in (("train", 40), ("test", 10)):
        source = open_data(RENDERED).source(split)
        assert isinstance(source, Source)
        labels = source.targets()
        for label in range(4):
            for index in np.flatnonzero(labels == label)[:count].tolist():
                name = source.classes[label].replace(" ", "-")
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                decode(source.read(index)).save(folder / split / name / f"{index:04d}.jpg", quality=92)
    train, test = (sorted((folder / split).glob("*/*.jpg")) for split in ("train", "test"))
    classes = sorted({path.parent for path in train})

    def in_train(path: Path, name: str) -> Path:
        """In the training folder of the same class."""
        return folder / "train" / path.parent.name / name

    planted: list[tuple[str, Path, str, Callable[[Path], Any]]] = [
        ("truncated in the middle", train[3], "truncated", lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])),
        ("emptied", train[17], "empty-file", lambda p: p.write_bytes(b"")),
        ("a web page saved as an image", train[29], "not-an-image", lambda p: p.write_text("<html>404</html>")),
        ("a test image, resized and saved again", in_train(test[0], "again.jpg"), "near-duplicate",
         lambda p: Image.open(test[0]).resize((96, 96)).save(p, quality=60)),
        ("a test image, mirrored", in_train(test[5], "mirrored.jpg"), "near-duplicate",
         lambda p: ImageOps.mirror(Image.open(test[5])).save(p, quality=85)),
        ("copied within train", in_train(train[8], "copy.jpg"), "duplicate", lambda p: p.write_bytes(train[8].read_bytes())),
        ("copied into another class", classes[3] / "stray.jpg", "label-conflict",
         lambda p: p.write_bytes(train[9].read_bytes())),
        ("rotated, with an EXIF orientation", train[45], "rotated", _rotate),
        ("16 bits of grey", classes[0] / "deep.png", "unusual-mode", _save_16_bits),
        ("a class without images", folder / "train" / "nothing", "empty-class", lambda p: p.mkdir(exist_ok=True)),
    ]  # fmt: skip
    for _, path, _, plant in planted:
        plant(path)
    return [Fault(what, str(path.relative_to(folder)), kind) for what, path, kind, _ in planted]


def _rotate(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(path)
    image.load()
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=92, exif=exif)


def _save_16_bits(path: Path) -> None:
    ramp = np.linspace(0, 65535, 128 * 128).reshape(128, 128)
    Image.fromarray((ramp * (0.5 + 0.5 * np.sin(ramp / 4000))).astype(np.uint16)).save(path)
