"""The demo's steps on data: a folder with planted faults and the doctor's answer, batches in one order, images."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from vitreous.commands.demo.model_steps import save_figure
from vitreous.core.progress import silence
from vitreous.data.loading.loader import Loader
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.transforms.decode import decode
from vitreous.data.transforms.image import to_bytes
from vitreous.data.transforms.parse import Preprocess
from vitreous.doctor.diagnosis import diagnose, write_doctor_dir

RENDERED = "builtin:shapes?size=128&count=2000"
TRAINING = "inception_crop(96)|flip|range(-1,1)"


def faulty_folder(folder: Path) -> list[tuple[str, str, str]]:
    """A small folder of rendered images with faults in it: what was done, to which file, and what it should be called."""
    for split, count in (("train", 40), ("test", 10)):
        source = _source(RENDERED, split)
        labels = source.targets()
        for label in range(4):
            for index in np.flatnonzero(labels == label)[:count].tolist():
                name = source.classes[label].replace(" ", "-")
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                decode(source.read(index)).save(folder / split / name / f"{index:04d}.jpg", quality=92)
    train, test = (sorted((folder / split).glob("*/*.jpg")) for split in ("train", "test"))
    classes = sorted({path.parent for path in train})
    first = Image.open(test[0])

    def beside(path: Path, name: str) -> Path:
        """In the training folder of the same class."""
        return folder / "train" / path.parent.name / name

    planted: list[tuple[str, Path, str, Callable[[Path], Any]]] = [
        ("cut off in the middle", train[3], "truncated", lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])),
        ("emptied", train[17], "empty-file", lambda p: p.write_bytes(b"")),
        ("a web page saved as an image", train[29], "not-an-image", lambda p: p.write_text("<html>404</html>")),
        ("a test image, saved again and smaller", beside(test[0], "again.jpg"), "near-duplicate",
         lambda p: first.resize((96, 96)).save(p, quality=60)),
        ("a test image, mirrored", beside(test[5], "mirrored.jpg"), "near-duplicate",
         lambda p: ImageOps.mirror(Image.open(test[5])).save(p, quality=85)),
        ("copied within train", beside(train[8], "copy.jpg"), "duplicate", lambda p: p.write_bytes(train[8].read_bytes())),
        ("copied into another class", classes[3] / "stray.jpg", "label-conflict",
         lambda p: p.write_bytes(train[9].read_bytes())),
        ("lying on its side, with a note", train[45], "rotated", _turned),
        ("16 bits of grey", classes[0] / "deep.png", "unusual-mode", _deep),
        ("a class without images", folder / "train" / "nothing", "empty-class", lambda p: p.mkdir(exist_ok=True)),
    ]  # fmt: skip
    for _, path, _, plant in planted:
        plant(path)
    return [(what, str(path.relative_to(folder)), kind) for what, path, kind, _ in planted]


def _turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(path)
    image.load()
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=92, exif=exif)


def _deep(path: Path) -> None:
    ramp = np.linspace(0, 65535, 128 * 128).reshape(128, 128)
    Image.fromarray((ramp * (0.5 + 0.5 * np.sin(ramp / 4000))).astype(np.uint16)).save(path)


def doctor_finds(folder: Path, out: Path, planted: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Each planted fault beside what the doctor says of that file; and all else that it says would corrupt a result."""
    with silence():
        found = diagnose(open_data(folder), preprocess=Preprocess(TRAINING), workers=2)
    write_doctor_dir(out, found)
    rows = []
    for what, path, kind in planted:
        said = [f for f in found.findings if path in f.paths or (f.kind == "empty-class" and Path(path).name in f.paths)]
        kinds = ", ".join(dict.fromkeys(f.kind for f in said)) or "nothing"
        rows.append({"planted": what, "file": path, "the doctor says": kinds, "found": any(f.kind == kind for f in said)})
    known = {path for _, path, _ in planted}
    others = [f for f in found.findings if f.corrupts and not known & set(f.paths) and f.kind != "empty-class"]
    alarms = f"{len(others)} false alarms"
    rows.append({"planted": "nothing else", "file": f"{len(found.scan)} files", "the doctor says": alarms, "found": not others})
    return rows


def batches(folder: Path) -> list[dict[str, Any]]:
    """The same training batches whatever the number of workers, and begun anywhere: the others are compared with the first."""
    dataset = open_data(folder)
    source, rows = dataset.source("train"), []
    expected: list[torch.Tensor] = []
    for what, workers, start in (("no workers", 0, 0), ("2 workers", 2, 0), ("2 workers, begun at step 7", 2, 7)):
        begin = time.perf_counter()
        loader = Loader(source, TRAINING, 32, workers=workers, bad_images="skip")
        found = [batch.images for batch in islice(loader.training(start), 10 - start)]
        seconds = time.perf_counter() - begin
        same = None if not expected else len(found) == len(expected) - start and all(map(torch.equal, found, expected[start:]))
        expected = expected or found
        images = sum(map(len, found))
        rows.append({"batches": what, "images": images, "equal": same, "images/s": round(images / seconds)})
    return rows


# Images -----------------------------------------------------------------------------------------------------------


def draw_augmentations(path: Path) -> Path:
    """One image through the strings for training: each column another epoch."""
    content = _source("builtin:shapes?size=256", "validation").read(11)
    strings = ("inception_crop(224)|flip", "resize(256)|random_crop(224)|flip", "inception_crop(224)|flip|randaug(2,10)")
    figure = Figure(figsize=(12, 4.3), layout="constrained")
    axes = figure.subplots(len(strings), 9)
    for row, text in zip(axes, strings, strict=True):
        row[0].imshow(content)
        row[0].set_title(text, fontsize=8, loc="left")
        for epoch, axis in enumerate(row[1:]):
            axis.imshow(to_bytes(Preprocess(text).transform(content, random.Random(epoch))))
    for axis in axes.flat:
        axis.axis("off")
    figure.suptitle("The original, and what training sees of it in eight epochs", fontsize=11)
    return save_figure(figure, None, path)


def draw_rendered(path: Path) -> Path:
    """What the rendered sets look like, with their labels."""
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    axes = figure.subplots(4, 9)
    for row, task in zip(axes, ("shapes", "count", "position", "orientation"), strict=True):
        source = _source(f"builtin:{task}", "train")
        for index, axis in enumerate(row):
            axis.imshow(source.read(index), interpolation="nearest")
            axis.set_title(", ".join(source.classes[label] for label in source.labels(index)), fontsize=8)
            axis.axis("off")
        row[0].text(-0.12, 0.5, task, rotation=90, va="center", ha="right", transform=row[0].transAxes, fontsize=10)
    figure.suptitle(
        "Rendered, unlimited, each image a function of (seed, number): four questions about such images", fontsize=11
    )
    return save_figure(figure, None, path)


def _source(data: str, split: str) -> Source:
    source = open_data(data).source(split)
    assert isinstance(source, Source)
    return source
