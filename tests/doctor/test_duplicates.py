"""Near duplicates: copies are found and named, other images are not, and the search misses nothing that brute force finds."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from scipy import ndimage

from vitreous.doctor import duplicates
from vitreous.doctor import vector_search as neighbours
from vitreous.doctor.alignment import Windows, align
from vitreous.doctor.border import remove_border
from vitreous.doctor.description import CENTRAL, LONG, WINDOWS, Window, describe_images, tangents
from vitreous.doctor.duplicates import SAME, Pair, confirm, find_near_duplicates, search
from vitreous.doctor.fingerprint import LENGTH, SIZE, Fingerprints, compute_fingerprint, compute_fingerprints, greys, is_flat

COUNT = 40


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Like a photograph in what matters here: less of a frequency the higher it is, edges, a few colours."""
    random = np.random.default_rng(seed)
    width, height = size
    pixels = np.zeros((height, width, 3))
    for coarse, strength in ((4, 60), (9, 40), (22, 25), (60, 15)):
        layers = [Image.fromarray(random.standard_normal((coarse, coarse)).astype(np.float32)) for _ in range(4)]
        light, *tints = (np.asarray(layer.resize(size, Image.Resampling.BICUBIC)) for layer in layers)
        pixels += strength * (light[:, :, None] + 0.4 * np.stack(tints, axis=2))
    image = Image.fromarray(np.clip(110 + 0.6 * pixels, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(5):
        x, y = random.uniform(0, width), random.uniform(0, height)
        w, h = random.uniform(8, width / 3), random.uniform(8, height / 3)
        colour = tuple(int(c) for c in random.integers(20, 235, 3))
        (pen.ellipse if random.random() < 0.5 else pen.rectangle)((x, y, x + w, y + h), fill=colour)
    return image


def prints_of(images: list[Image.Image]) -> NDArray[np.uint8]:
    return np.stack([compute_fingerprint(image) for image in images])


def pairs_of(prints: NDArray[np.uint8], others: NDArray[np.uint8] | None = None) -> list[Pair]:
    return search(prints, others).pairs


@pytest.fixture(scope="module")
def scenes() -> list[Image.Image]:
    return [scene(seed) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def prints(scenes: list[Image.Image]) -> NDArray[np.uint8]:
    return prints_of(scenes)


def encoded(kind: str, quality: int) -> Callable[[Image.Image], Image.Image]:
    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, kind, quality=quality)
        return Image.open(file).convert("RGB")

    return change


def cut(left: float, top: float, right: float, bottom: float) -> Callable[[Image.Image], Image.Image]:
    return lambda p: p.crop(
        (round(p.width * left), round(p.height * top), round(p.width * (1 - right)), round(p.height * (1 - bottom)))
    )


CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], str]] = {
    "jpeg": (encoded("JPEG", 30), "same image"),
    "webp": (encoded("WEBP", 50), "same image"),
    "smaller": (lambda p: p.resize((40, 30), Image.Resampling.BICUBIC), "same image"),
    "larger": (lambda p: p.resize((320, 240), Image.Resampling.BICUBIC), "same image"),
    "wider": (lambda p: p.resize((180, 120), Image.Resampling.BICUBIC), "same image"),
    "off the left": (cut(0.05, 0, 0, 0), "cropped"),
    "off every side": (cut(0.05, 0.05, 0.05, 0.05), "cropped"),
    "off the top and the right": (cut(0, 0.05, 0.05, 0), "cropped"),
    "mirrored": (ImageOps.mirror, "mirrored"),
    "brighter": (lambda p: ImageEnhance.Brightness(p).enhance(1.3), "same image"),
    "darker": (lambda p: ImageEnhance.Brightness(p).enhance(0.7), "same image"),
    "contrast": (lambda p: ImageEnhance.Contrast(p).enhance(1.3), "same image"),
    "grey": (lambda p: p.convert("L"), "turned grey"),
    "mirrored, cut": (lambda p: cut(0.05, 0.02, 0.01, 0.05)(ImageOps.mirror(p)), "mirrored, cropped"),
    "turned left": (lambda p: p.transpose(Image.Transpose.ROTATE_90), "turned by 90 degrees"),
    "upside down": (lambda p: p.transpose(Image.Transpose.ROTATE_180), "turned by 180 degrees"),
    "flipped": (ImageOps.flip, "mirrored, turned by 180 degrees"),
    "turned, jpeg": (lambda p: encoded("JPEG", 40)(p.transpose(Image.Transpose.ROTATE_270)), "turned by 90 degrees"),
    "cut, jpeg": (lambda p: encoded("JPEG", 40)(cut(0.03, 0.05, 0.04, 0)(p)), "cropped"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_are_found_and_other_images_are_not(change: str, scenes: list[Image.Image], prints: NDArray[np.uint8]) -> None:
    make, how = CHANGES[change]
    copies = [make(image) for image in scenes]
    found = pairs_of(prints, prints_of(copies))
    assert [(p.first, p.second) for p in found if p.first != p.second] == []
    assert len(found) >= 0.97 * COUNT
    assert sum(p.how == how for p in found) >= 0.8 * COUNT
    sure = [confirm(scenes[p.first], copies[p.second]) >= SAME for p in found]
    assert sum(sure) >= 0.97 * COUNT


FRAMES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "white": lambda p: ImageOps.expand(p, 40, "white"),
    "black, narrow": lambda p: ImageOps.expand(p, 3, "black"),
    "black, wide": lambda p: ImageOps.expand(p, 120, "black"),
    "bars, jpeg": lambda p: encoded("JPEG", 40)(ImageOps.expand(p, (0, 20), "black")),
    "two, turned": lambda p: ImageOps.expand(ImageOps.expand(p.transpose(Image.Transpose.ROTATE_90), 9, "red"), 20, "white"),
}


def all_prints_of(images: list[Image.Image]) -> Fingerprints:
    rows = [(item, row) for item, image in enumerate(images) for row in compute_fingerprints(image)]
    return Fingerprints(np.stack([row for _, row in rows]), np.array([item for item, _ in rows]))


@pytest.mark.parametrize("frame", FRAMES)
def test_copies_with_a_border_are_found_and_other_images_are_not(frame: str, scenes: list[Image.Image]) -> None:
    copies = [FRAMES[frame](image) for image in scenes]
    found = find_near_duplicates(all_prints_of(scenes), all_prints_of(copies))
    assert [(p.first, p.second) for p in found if p.first != p.second] == []
    assert len(found) >= 0.97 * COUNT
    if "narrow" not in frame:  # such a copy may agree with its border, too, and is then told as a crop
        assert sum(p.how.startswith("border") for p in found) >= 0.97 * COUNT
    sure = [confirm(scenes[p.first], copies[p.second], p.trimmed) >= SAME for p in found]
    assert sum(sure) >= 0.97 * COUNT
    assert find_near_duplicates(all_prints_of(copies)) == []  # a border alone is no likeness, nor an image its own inside


def test_a_border_is_taken_off_to_the_pixel() -> None:
    inside = scene(1)
    for sides in ((40, 40, 40, 40), (0, 30, 0, 30), (0, 0, 0, 25), (9, 0, 0, 0)):
        for colour in ("white", "black", (200, 30, 90)):
            trimmed = remove_border(ImageOps.expand(inside, sides, colour))
            assert trimmed is not None
            assert trimmed.tobytes() == inside.tobytes()
    twice = ImageOps.expand(ImageOps.expand(inside, 10, "white"), 10, "black")
    assert (remove_border(twice) or twice).tobytes() == inside.tobytes()
    assert remove_border(inside) is None
    assert remove_border(Image.new("RGB", (80, 60), "white")) is None
    assert remove_border(ImageOps.expand(inside.resize((20, 15)), 60, "white")) is None  # too little to go by


def test_a_set_without_copies_has_none(prints: NDArray[np.uint8]) -> None:
    assert pairs_of(prints) == []


def test_pairs_are_ordered_and_named_from_the_callers_side(prints: NDArray[np.uint8]) -> None:
    twice = np.concatenate([prints[:20], prints[5:10]])
    assert sorted((p.first, p.second) for p in pairs_of(twice)) == [(5 + i, 20 + i) for i in range(5)]
    few = prints[[7, 3]]  # the smaller set is looked up in the larger one, whichever was given first
    assert sorted((p.first, p.second) for p in pairs_of(prints, few)) == [(3, 1), (7, 0)]
    assert sorted((p.first, p.second) for p in pairs_of(few, prints)) == [(0, 7), (1, 3)]
    similar = [p.similarity for p in pairs_of(twice)]
    assert similar == sorted(similar, reverse=True)
    assert min(similar) > 0.999


def test_the_forest_finds_what_comparing_all_finds(scenes: list[Image.Image], monkeypatch: pytest.MonkeyPatch) -> None:
    more = scenes + [scene(seed, (80, 60)) for seed in range(1000, 1060)]
    copies = [cut(0.04, 0.01, 0.0, 0.05)(encoded("JPEG", 50)(image)) for image in more]
    both = prints_of(more + copies)
    hashed = search(both)
    monkeypatch.setattr(neighbours, "CROWD", 10**9)  # one leaf: everything is compared with everything
    monkeypatch.setattr(duplicates, "MANY", 10**9)
    monkeypatch.setattr(duplicates, "TREES", 1)
    brute = search(both)
    assert brute.compared == len(WINDOWS) * len(both) * (len(both) - 1) // 2
    expected = {(p.first, p.second) for p in brute.pairs}
    assert len(expected) >= 0.97 * len(more)
    assert len(expected & {(p.first, p.second) for p in hashed.pairs}) >= 0.99 * len(expected)


def test_work_grows_far_slower_than_the_product_of_the_sizes(prints: NDArray[np.uint8]) -> None:
    random = np.random.default_rng(0)

    def blends(count: int) -> NDArray[np.uint8]:
        out = prints[random.integers(COUNT, size=count)]
        mixed = sum(greys(prints[random.integers(COUNT, size=count)]) * s for s in random.uniform(-1, 1, (4, count, 1, 1)))
        mixed *= 127 / np.abs(mixed).max(axis=(1, 2), keepdims=True)
        out[:, : SIZE * SIZE] = (128 + mixed).reshape(count, -1)
        return out

    small, large = (search(blends(n), blends(n // 10)).compared for n in (500, 4000))
    assert large < 14 * small  # the product grows 64 times, the number of look-ups 8 times
    assert large < len(WINDOWS) * 4000 * 400 / 20


def test_flat_images_are_counted_and_left_out() -> None:
    random = np.random.default_rng(1)
    plain = [Image.new("RGB", (50, 40), tuple(int(c) for c in random.integers(0, 255, 3))) for _ in range(30)]
    noisy = [Image.fromarray(random.integers(127, 130, (60, 60, 3)).astype(np.uint8)) for _ in range(30)]
    result = search(prints_of(plain + noisy))
    assert result.pairs == []
    assert search(prints_of(plain), prints_of(noisy)).pairs == []
    assert confirm(plain[0], plain[0]) == 0.0


def test_tiny_images_of_one_kind_are_not_copies_but_their_copies_are() -> None:
    from sklearn.datasets import load_digits

    digits = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in load_digits().images[:150]]
    own = prints_of(digits)
    assert len(pairs_of(own)) <= 1
    brighter = prints_of([Image.fromarray((np.asarray(p) * 0.8).astype(np.uint8)) for p in digits])
    found = pairs_of(own, brighter)
    assert sum(p.first == p.second for p in found) >= 148
    assert sum(p.first != p.second for p in found) <= 3


def test_the_same_outline_is_not_the_same_image() -> None:
    def garment(seed: int) -> Image.Image:
        """A shirt on a white ground, cut alike, of another cloth."""
        random = np.random.default_rng(seed)
        cloth = ndimage.gaussian_filter(random.standard_normal((200, 160)), random.uniform(1, 6))
        cloth = np.clip(90 + 35 * cloth / cloth.std(), 0, 255).astype(np.uint8)
        outline = Image.new("L", (160, 200), 0)
        points = [(30, 30), (60, 20), (100, 20), (130, 30), (155, 70), (130, 85), (125, 180), (35, 180), (30, 85), (5, 70)]
        moved = [(x + random.uniform(-2, 2), y + random.uniform(-2, 2)) for x, y in points]
        ImageDraw.Draw(outline).polygon(moved, fill=255)
        return Image.composite(Image.fromarray(cloth), Image.new("L", (160, 200), 250), outline).convert("RGB")

    shirts = [garment(seed) for seed in range(30)]
    found = pairs_of(prints_of(shirts))
    assert [p for p in found if confirm(shirts[p.first], shirts[p.second]) >= SAME] == []
    copies = [encoded("JPEG", 40)(cut(0.02, 0.02, 0, 0.03)(shirt)) for shirt in shirts]
    again = pairs_of(prints_of(shirts), prints_of(copies))
    sure = [p for p in again if confirm(shirts[p.first], copies[p.second]) >= SAME]
    assert all(p.first == p.second for p in sure)
    assert len(sure) >= 29


def test_another_colour_is_another_image(scenes: list[Image.Image], prints: NDArray[np.uint8]) -> None:
    def tinted(image: Image.Image, blue: int, red: int) -> Image.Image:
        grey = image.convert("L")
        bands = [grey, *(Image.new("L", image.size, value) for value in (blue, red))]
        return Image.merge("YCbCr", bands).convert("RGB")

    reddish, bluish = (prints_of([tinted(p, *tint) for p in scenes]) for tint in ((110, 165), (165, 110)))
    assert pairs_of(reddish, bluish) == []
    assert len(pairs_of(reddish, reddish)) == COUNT


def test_very_many_equal_images_are_chained(prints: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100
    monkeypatch.setattr(duplicates, "MANY", 8)
    found = pairs_of(np.repeat(prints[:1], count, axis=0))
    reached = list(range(count))
    for pair in found:
        root, other = sorted((reached[pair.first], reached[pair.second]))
        reached = [root if r == other else r for r in reached]
    assert set(reached) == {0}  # one group
    assert len(found) <= count * 8


def test_empty_sets_and_progress(prints: NDArray[np.uint8]) -> None:
    nothing = np.empty((0, LENGTH), np.uint8)
    assert pairs_of(nothing) == pairs_of(nothing, prints) == pairs_of(prints, nothing) == []
    with_flat = np.concatenate([prints, compute_fingerprint(Image.new("RGB", (50, 50)))[None]])
    for asked, others, expected in ((with_flat, None, COUNT + 1), (with_flat, prints[:7], 7), (nothing, prints, 0)):
        done: list[int] = []
        search(asked, others, advance=done.append)
        assert sum(done) == expected
        assert min(done) >= 0


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (3, 900), (20_000, 10), (400, 300)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_image_has_a_fingerprint(size: tuple[int, int], mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    print_ = compute_fingerprint(Image.fromarray(noise).convert(mode))
    assert print_.shape == (LENGTH,)
    assert print_.dtype == np.uint8
    assert bool(is_flat(print_[None])[0]) == (size in [(1, 1), (20_000, 10)])  # 500 columns of noise average out to grey


def test_alignment_recovers_a_crop(scenes: list[Image.Image]) -> None:
    left, top, right, bottom = 8 / 160, 0.0, 4 / 160, 6 / 120
    first = greys(prints_of(scenes))
    second = greys(prints_of([cut(left, top, right, bottom)(image) for image in scenes]))
    start = Windows(np.zeros((COUNT, 2), np.float32), np.ones((COUNT, 2), np.float32))
    result = align(first, second, start)
    assert np.abs(np.median(result.windows.shift, axis=0) - [(top - bottom) / 2, (left - right) / 2]).max() < 0.002
    assert np.abs(np.median(result.windows.scale, axis=0) - [1 - top - bottom, 1 - left - right]).max() < 0.003
    assert (result.detail > 0.95).mean() > 0.95


def test_description_of_a_window_is_that_of_the_cut_image(prints: NDArray[np.uint8]) -> None:
    images = greys(prints)
    flipped = np.ascontiguousarray(images[:, :, ::-1])
    window = Window((0.05, 0.05), (0.025, 0.075), False)
    mirrored = Window(window.rows, window.columns, True)
    assert np.allclose(describe_images(flipped, (window,)), describe_images(images, (mirrored,)), atol=1e-5)
    whole = Window((0.0, 0.0), (0.0, 0.0), False)  # two pixels less on every side are exactly the central window
    assert np.allclose(describe_images(images, (CENTRAL,)), describe_images(images[:, 2:-2, 2:-2], (whole,)), atol=1e-5)


def test_tangents_are_orthonormal_and_hold_the_description(prints: NDArray[np.uint8]) -> None:
    images = greys(prints)
    planes = tangents(images, WINDOWS[7])
    assert np.allclose(planes @ planes.swapaxes(1, 2), np.eye(5), atol=0.02)
    seen = describe_images(images, (WINDOWS[7],), LONG)[:, 0]
    assert (np.linalg.norm(np.einsum("nkd,nd->nk", planes, seen), axis=1) > 0.999).all()
