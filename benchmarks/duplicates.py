"""Near duplicates: how many made copies are found, how many found pairs are none, and how the search grows.

    python benchmarks/duplicates.py FOLDER [--pairs 500] [--growth 1000,10000,100000] [--sheet PAIRS.png]

FOLDER holds images, at any depth. Copies are made of --pairs of them by each change and looked for among all. A pair that
was found is right if it is a picture and its own copy; the confirmed pairs that the folder has in itself are left out of
the count and drawn on --sheet to be judged by eye. The growth table looks for N / 10 pictures in N; beyond the
folder's size the fingerprints are made by blending those of two pictures, half of each, which gives no copies.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from vitreous.data.transforms.decode import BadImage, decode
from vitreous.doctor import fingerprint
from vitreous.doctor.description import WINDOWS
from vitreous.doctor.duplicates import SAME, Pair, confirm, find_near_duplicates, search
from vitreous.doctor.examine import examine

Change = Callable[[Image.Image], Image.Image]


def encoded(kind: str, quality: int) -> Change:
    def change(picture: Image.Image) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, kind, quality=quality)
        return Image.open(file).convert("RGB")

    return change


def resized(width: float, height: float) -> Change:
    return lambda p: p.resize((max(1, round(p.width * width)), max(1, round(p.height * height))), Image.Resampling.BICUBIC)


def cropped(left: float, top: float, right: float, bottom: float) -> Change:
    def change(p: Image.Image) -> Image.Image:
        box = (
            round(p.width * left),
            round(p.height * top),
            p.width - round(p.width * right),
            p.height - round(p.height * bottom),
        )
        return p.crop(box)

    return change


def cropped_anyhow(picture: Image.Image) -> Image.Image:
    chance = random.Random(f"{picture.size}{picture.getpixel((picture.width // 2, picture.height // 2))}")
    return cropped(*(chance.uniform(0, 0.05) for _ in range(4)))(picture)


def central(share: float) -> Change:
    """The middle: `share` of each side."""
    edge = (1 - share) / 2
    return cropped(edge, edge, edge, edge)


def framed(width: int, colour: str) -> Change:
    return lambda p: ImageOps.expand(p, width, colour)


def letterboxed(picture: Image.Image) -> Image.Image:
    return ImageOps.expand(picture, (0, round(0.15 * picture.height)), "black")


def together(*changes: Change) -> Change:
    def change(picture: Image.Image) -> Image.Image:
        for each in changes:
            picture = each(picture)
        return picture

    return change


SINGLE: dict[str, Change] = {
    "JPEG 30": encoded("JPEG", 30),
    "JPEG 95": encoded("JPEG", 95),
    "WebP 50": encoded("WEBP", 50),
    "x 0.25": resized(0.25, 0.25),
    "x 0.5": resized(0.5, 0.5),
    "x 2": resized(2, 2),
    "10 % wider": resized(1.1, 1),
    "10 % narrower": resized(0.9, 1),
    "5 % off the left": cropped(0.05, 0, 0, 0),
    "5 % off the top": cropped(0, 0.05, 0, 0),
    "5 % off two sides": cropped(0.05, 0.05, 0, 0),
    "5 % off every side": cropped(0.05, 0.05, 0.05, 0.05),
    "0 to 5 % off each side": cropped_anyhow,
    "mirrored": ImageOps.mirror,
    "brightness + 30 %": lambda p: ImageEnhance.Brightness(p).enhance(1.3),
    "brightness - 30 %": lambda p: ImageEnhance.Brightness(p).enhance(0.7),
    "contrast + 30 %": lambda p: ImageEnhance.Contrast(p).enhance(1.3),
    "contrast - 30 %": lambda p: ImageEnhance.Contrast(p).enhance(0.7),
    "turned by 90 degrees": lambda p: p.transpose(Image.Transpose.ROTATE_90),
    "turned by 180 degrees": lambda p: p.transpose(Image.Transpose.ROTATE_180),
    "turned by 270 degrees": lambda p: p.transpose(Image.Transpose.ROTATE_270),
    "border of 8 px, white": framed(8, "white"),
    "border of 8 px, black": framed(8, "black"),
    "border of 40 px, white": framed(40, "white"),
    "border of 40 px, red": framed(40, "red"),
    "border of 120 px, black": framed(120, "black"),
    "black bars, 15 % above and below": letterboxed,
    "middle 90 %": central(0.9),
    "middle 85 %": central(0.85),
    "middle 80 %": central(0.8),
    "middle 70 %": central(0.7),
    "middle 60 %": central(0.6),
    "10 % off the left": cropped(0.1, 0, 0, 0),
    "20 % off the left": cropped(0.2, 0, 0, 0),
    "turned by 5 degrees": lambda p: p.rotate(5, Image.Resampling.BICUBIC),
    "grey": lambda p: p.convert("L").convert("RGB"),
}
COMBINED = [
    ("mirrored", "0 to 5 % off each side"),
    ("5 % off every side", "JPEG 30"),
    ("x 0.25", "JPEG 30"),
    ("x 0.5", "0 to 5 % off each side"),
    ("0 to 5 % off each side", "brightness + 30 %"),
    ("0 to 5 % off each side", "contrast + 30 %"),
    ("grey", "mirrored"),
    ("x 0.25", "mirrored"),
    ("brightness + 30 %", "JPEG 30"),
    ("turned by 90 degrees", "mirrored"),
    ("turned by 90 degrees", "x 0.5", "JPEG 30"),
    ("turned by 270 degrees", "0 to 5 % off each side"),
    ("turned by 180 degrees", "0 to 5 % off each side"),
    ("border of 40 px, white", "JPEG 30"),
    ("border of 120 px, black", "x 0.5"),
    ("turned by 90 degrees", "border of 40 px, white"),
    ("border of 40 px, white", "border of 8 px, black"),
    ("10 % wider", "0 to 5 % off each side"),
    ("mirrored", "0 to 5 % off each side", "x 0.5", "brightness - 30 %", "JPEG 30"),
]


def reduced(picture: Image.Image) -> Image.Image:
    """As the doctor sees it."""
    seen = examine(np.asarray(picture.convert("RGB")), "").image
    assert seen is not None
    return seen


def prints_of(pictures: list[Image.Image]) -> fingerprint.Fingerprints:
    found = [(item, one) for item, picture in enumerate(pictures) for one in fingerprint.compute_fingerprints(picture)]
    return fingerprint.Fingerprints(np.stack([one for _, one in found]), np.array([item for item, _ in found]))


def read(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    random.Random(0).shuffle(paths)
    return paths


def pictures(paths: list[Path]) -> list[Image.Image]:
    out = []
    for path in paths:
        try:
            out.append(decode(path))
        except BadImage:
            continue
    return out


def confirmed(pairs: list[Pair], first: list[Image.Image], second: list[Image.Image]) -> list[Pair]:
    return [pair for pair in pairs if confirm(first[pair.first], second[pair.second], pair.trimmed) >= SAME]


def recall(paths: list[Path], count: int, sheet: Path | None, rows: str = "") -> fingerprint.Prints:
    originals = pictures(paths)
    small = [reduced(picture) for picture in originals]
    prints = prints_of(small)
    own = find_near_duplicates(prints)
    real = confirmed(own, small, small)
    borders = len(prints.rows) - len(small)
    print(f"{len(small):,} images, {borders:,} with a border; {len(own)} pairs of their own, {len(real)} of them confirmed")
    if sheet:
        draw(real[:60], small, sheet)
    if not count:
        return prints.rows
    known = {frozenset((pair.first, pair.second)) for pair in real}
    print("| change | found | confirmed | wrong pairs found | wrong pairs confirmed |\n| --- | ---: | ---: | ---: | ---: |")
    right = [0, 0]
    wrong = [0, 0]
    for names in itertools.chain(((name,) for name in SINGLE), COMBINED):
        if not re.search(rows, " + ".join(names)):
            continue
        change = together(*(SINGLE[name] for name in names))
        copies = [reduced(change(picture)) for picture in originals[:count]]
        found = find_near_duplicates(prints, prints_of(copies))
        found = [pair for pair in found if frozenset((pair.first, pair.second)) not in known]
        stages = (found, confirmed(found, small, copies))
        good = [sum(pair.first == pair.second for pair in stage) for stage in stages]
        bad = [len(stage) - hits for stage, hits in zip(stages, good, strict=True)]
        right, wrong = [a + b for a, b in zip(right, good, strict=True)], [a + b for a, b in zip(wrong, bad, strict=True)]
        shares = " | ".join(f"{hits / len(copies):.3f}" for hits in good)
        print(f"| {' + '.join(names)} | {shares} | {bad[0]} | {bad[1]} |", flush=True)
    precision = [f"{good / max(1, good + bad):.4f}" for good, bad in zip(right, wrong, strict=True)]
    print(f"precision over all rows: {precision[0]} found, {precision[1]} confirmed\n")
    return prints.rows


def more(prints: fingerprint.Prints, count: int, seed: int) -> fingerprint.Prints:
    """Fingerprints of pictures that do not exist but might: real ones first, then blends of two."""
    chance = np.random.default_rng(seed)
    out = [prints[:count]]
    missing = count - len(out[0])
    for begin in range(0, missing, 4096):
        size = min(4096, missing - begin)
        a, b = prints[chance.integers(len(prints), size=size)], prints[chance.integers(len(prints), size=size)]
        grey = fingerprint.greys(a) + fingerprint.greys(b)[:, :, ::-1]
        grey *= 127 / np.maximum(np.abs(grey).max(axis=(1, 2), keepdims=True), 1)
        blend: NDArray[np.uint8] = a.copy()
        blend[:, : fingerprint.SIZE**2] = np.rint(128 + grey).reshape(size, -1)
        out.append(blend)
    return np.concatenate(out)


def growth(prints: fingerprint.Prints, sizes: list[int]) -> None:
    """Processor seconds, of all threads together: those on the clock depend on what else the machine does."""
    windows = len(WINDOWS)
    print("| looked up | in | all pairs and windows | compared | aligned | processor seconds |\n|" + " ---: |" * 6)
    for within in (False, True):
        for size in sizes:
            large, few = more(prints, size, 1), None if within else more(prints[::-1], size // 10, 2)
            start = time.process_time()
            result = search(large, few)
            spent = time.process_time() - start
            pairs = size * (size - 1) // 2 if few is None else size * len(few)
            asked = "itself" if few is None else f"{len(few):,}"
            print(
                f"| {asked} | {size:,} | {pairs * windows:,} | {result.compared:,} | {result.aligned:,} | {spent:.1f} |",
                flush=True,
            )


def draw(pairs: list[Pair], small: list[Image.Image], target: Path, side: int = 120, columns: int = 6) -> None:
    rows = max(1, -(-len(pairs) // columns))
    sheet = Image.new("RGB", (columns * (2 * side + 8), rows * (side + 16)), "grey")
    pen = ImageDraw.Draw(sheet)
    for number, pair in enumerate(pairs):
        x, y = number % columns * (2 * side + 8), number // columns * (side + 16)
        pen.text((x, y), f"{pair.similarity:.3f} {pair.how}", fill="white")
        for offset, index in ((0, pair.first), (side, pair.second)):
            sheet.paste(small[index].resize((side, side)), (x + offset, y + 14))
    sheet.save(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=500, help="pictures of which copies are made; 0 for the growth table only")
    parser.add_argument("--rows", default="", help="only changes whose name this regular expression finds")
    parser.add_argument("--growth", default="1000,10000,100000", help="sizes of the larger set; empty for none")
    parser.add_argument("--sheet", type=Path, help="where to draw the folder's own pairs")
    options = parser.parse_args()
    prints = recall(read(options.folder), options.pairs, options.sheet, options.rows)
    if sizes := [int(size) for size in options.growth.split(",") if size]:
        growth(prints, sizes)


if __name__ == "__main__":
    main()
