"""Scan, findings, copies, the manifest and the page, on folders made for it; every finding is compared exactly."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitreous.core.errors import VitreousError
from vitreous.core.printable import printable
from vitreous.data.open import open_data
from vitreous.data.source import Dataset, Item, LeftOut, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.data.sources.file_source import FileSource
from vitreous.data.splits import choose_training_splits
from vitreous.data.transforms.decode import BadImage, decode
from vitreous.data.transforms.parse import Preprocess
from vitreous.doctor import confirmation as confirmation_module
from vitreous.doctor import diagnosis as diagnosis_module
from vitreous.doctor import duplicate_findings as copies_module
from vitreous.doctor import scan as scan_module
from vitreous.doctor.diagnosis import FILES, check_doctor_dir, diagnose, write_doctor_dir
from vitreous.doctor.duplicate_findings import find_copies
from vitreous.doctor.duplicates import Pair
from vitreous.doctor.finding_types import KINDS, corrupts
from vitreous.doctor.findings import Finding, class_findings, image_findings, left_out_findings, sort_findings
from vitreous.doctor.fix_manifest import check_possible, write_manifest
from vitreous.doctor.header_check import check_headers
from vitreous.doctor.preview import find_required_size, make_previews
from vitreous.doctor.scan import scan_dataset
from vitreous.doctor.thumbnails import make_thumbnails

PLAIN = Preprocess("resize(24)|range(-1,1)")


def make_image(seed: int, width: int = 80, height: int = 60) -> Image.Image:
    """Broad waves of colour with a few shapes on them; two seeds have nothing in common."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    for _ in range(6):
        left, top = random.integers(0, width - 8), random.integers(0, height - 8)
        image.paste(tuple(random.integers(0, 256, 3).tolist()), (left, top, left + 8, top + 8))
    return image


def encoded(image: Image.Image, format: str) -> bytes:
    out = io.BytesIO()
    image.save(out, format)
    return out.getvalue()


def folder(root: Path, files: dict[str, Any]) -> Path:
    """Files by path: a number is an image made from that seed, bytes are bytes, an image is saved."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, Image.Image):
            content.save(path)
        else:
            make_image(content).save(path)
    return root


def told(root: Path, **options: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    found = diagnose(open_data(str(root)), preprocess=PLAIN, **options)
    return [(finding.kind, ",".join(finding.splits), finding.paths) for finding in found.findings]


PLACES = {"train/cat": 0, "train/dog": 50, "test/cat": 100, "test/dog": 150}
SOUND = {f"{place}/{i}.png": seed + i for place, seed in PLACES.items() for i in range(4)}


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return folder(tmp_path / "data", SOUND)


# Findings ---------------------------------------------------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is_wrong(sound: Path) -> None:
    assert told(sound) == []
    assert told(sound, workers=2) == []


def test_every_kind_of_bad_file_is_named_and_nothing_else(sound: Path) -> None:
    content, good = (encoded(make_image(seed, 200, 150), format) for seed, format in ((7, "JPEG"), (8, "PNG")))
    bad = {
        "train/cat/empty.jpg": b"",
        "train/cat/page.jpg": b"<html>not found</html>",
        "train/cat/half.jpg": content[: len(content) // 2],
        "train/cat/spoilt.png": good[:-30] + bytes([good[-30] ^ 255]) + good[-29:],
        "train/cat/text.txt": b"not for us",
        "train/cat/.hidden/x.png": b"never looked at",
    }
    folder(sound, bad)
    (sound / "train/cat/folder.jpg").mkdir()
    (sound / "train/cat/gone.png").symlink_to("nowhere.png")
    (sound / "train/cat/self.png").symlink_to("self.png")
    (sound / "train/cat/round").symlink_to(sound / "train")
    assert told(sound) == [
        ("empty-file", "train", ("train/cat/empty.jpg",)),
        ("not-an-image", "train", ("train/cat/folder.jpg",)),
        ("not-an-image", "train", ("train/cat/page.jpg",)),
        ("unreadable", "train", ("train/cat/gone.png",)),
        ("unreadable", "train", ("train/cat/self.png",)),
        ("truncated", "train", ("train/cat/half.jpg",)),
        ("damaged", "train", ("train/cat/spoilt.png",)),
        ("symlink-loop", "train", ("train/cat/round",)),
        ("left-out", "train", ("train/cat/text.txt",)),
    ]


def test_a_huge_file_is_reported_without_being_read(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GB with an image at its beginning; sparse, so that it takes no room on the disk."""
    for ending, format in ((".png", "PNG"), (".jpg", "JPEG")):
        with (sound / f"train/cat/huge{ending}").open("wb") as file:
            file.write(encoded(make_image(1), format))
            file.truncate(4 << 30)
        with pytest.raises(BadImage, match="too large a file") as refused:
            decode(sound / f"train/cat/huge{ending}")
        assert refused.value.kind == "too-large"
    read_bytes = Path.read_bytes

    def bounded(path: Path) -> bytes:
        assert path.stat().st_size < 1 << 30, "a huge file is read whole"
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", bounded)
    huge = [("too-large", "train", (f"train/cat/huge{ending}",)) for ending in (".jpg", ".png")]
    assert sorted(told(sound)) == huge


def test_what_is_listed_but_not_there_is_missing(sound: Path) -> None:
    dataset = open_data(str(sound))
    (sound / "test/dog/1.png").unlink()
    found = diagnose(dataset, preprocess=PLAIN).findings
    assert [(f.kind, f.splits, f.paths) for f in found] == [("missing", ("test",), ("test/dog/1.png",))]


def test_unusual_images_are_advice(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [make_image(50 + i, 200, 150).convert("P") for i in range(2)]
    root = folder(
        tmp_path / "flat",
        {f"{i}.png": make_image(i, 400, 300) for i in range(5)}
        | {"alpha.png": make_image(10, 400, 300).convert("RGBA"), "blank.png": Image.new("RGB", (400, 300), "red")}
        | {"long.png": make_image(11, 400, 70), "tiny.png": make_image(12, 20, 18)},
    )
    make_image(13, 400, 300).save(root / "turned.jpg", exif=turned)
    make_image(14, 400, 300).save(root / "named.jpg", "PNG")
    frames[0].save(root / "moving.gif", save_all=True, append_images=frames[1:])
    (root / "more.jpg").write_bytes((root / "turned.jpg").read_bytes()[:-2] + b"\xff\xd9trailing")
    found = told(root)
    assert found == [
        ("near-duplicate", "all", ("more.jpg", "turned.jpg")),
        ("rotated", "all", ("more.jpg", "turned.jpg")),
        ("unusual-mode", "all", ("alpha.png",)),
        ("unusual-mode", "all", ("moving.gif",)),
        ("animated", "all", ("moving.gif",)),
        ("blank", "all", ("blank.png",)),
        ("tiny", "all", ("tiny.png",)),
        ("extreme-aspect", "all", ("long.png",)),
        ("upscaled", "all", ("tiny.png",)),
        ("misnamed", "all", ("named.jpg",)),
        ("suspicious", "all", ("more.jpg",)),
    ]
    assert not any(corrupts(kind, (split,)) for kind, split, _ in found)


def test_classes_that_differ_are_named(tmp_path: Path) -> None:
    files = {f"train/cat/{i}.png": i for i in range(20)} | {"train/dog/0.png": 90, "train/eel/1.png": 91}
    files |= {"test/cat/0.png": 92, "test/dog/0.png": 93, "test/fox/0.png": 94}
    root = folder(tmp_path / "data", files)
    (root / "train/gnu").mkdir()
    (root / "train/fox").mkdir()
    seen = scan_dataset(open_data(str(root)))
    found = sort_findings(class_findings(seen))
    assert [(f.kind, f.splits, f.classes, f.corrupts) for f in found] == [
        ("class-mismatch", ("test",), ("eel",), True),
        ("class-mismatch", ("train",), ("fox",), True),
        ("imbalance", ("train",), ("cat", "dog"), False),
    ]
    assert [line for line in told(root) if line[0] == "empty-class"] == [("empty-class", "", ("gnu",))]


def test_a_class_of_the_list_that_no_split_has_is_reported_once() -> None:
    classes = ("a", "b", "c")

    def pixels(split: str, labels: list[int]) -> Arrays:
        return Arrays("pixels", split, classes, np.zeros((len(labels), 8, 8), np.uint8), np.array(labels))

    def found(**splits: list[int]) -> list[tuple[str, tuple[str, ...], tuple[str, ...], bool]]:
        dataset = Dataset("pixels", classes, {split: pixels(split, labels) for split, labels in splits.items()})
        return [(f.kind, f.splits, f.classes, f.corrupts) for f in class_findings(scan_dataset(dataset, near=False))]

    assert found(train=[0, 1], test=[0, 1]) == [("empty-class", ("train",), ("c",), True)]
    assert found(all=[0, 1]) == [("empty-class", ("all",), ("c",), False)]
    assert found(train=[0, 1], test=[2, 0]) == [
        ("class-mismatch", ("train",), ("c",), True),
        ("class-mismatch", ("test",), ("b",), True),
    ]
    assert found(test=[0, 1]) == []  # a test set may have a part of the classes


def test_what_was_left_out_goes_by_its_kind_not_by_its_words(sound: Path) -> None:
    folder(sound, {"train/cat/without images in a circle.txt": b"", "notes/name of an image.txt": b""})
    (sound / "val").mkdir()
    dataset = open_data(str(sound))
    assert {(f.kind, f.paths) for f in left_out_findings(dataset)} == {
        ("left-out", ("train/cat/without images in a circle.txt",)),
        ("left-out", ("notes",)),
        ("left-out", ("validation",)),
    }
    many = replace(dataset, left_out=(LeftOut("x", "why", "left-out"),), left_out_count=30)
    assert [(f.paths, f.count) for f in left_out_findings(many)] == [(("x",), 1), ((), 29)]


def test_copies_are_reported_in_groups_conflicts_first(sound: Path) -> None:
    def copy(old: str, new: str) -> None:
        shutil.copy(sound / old, sound / new)

    copy("test/cat/0.png", "train/cat/leak.png")
    copy("test/cat/1.png", "train/dog/wrong.png")
    copy("train/dog/0.png", "train/dog/again.png")
    copy("train/dog/0.png", "train/dog/and again.png")
    ImageOps.mirror(make_image(150)).save(sound / "train/dog/mirrored.jpg", quality=90)  # of test/dog/0.png
    make_image(51).resize((160, 120), Image.Resampling.BICUBIC).save(sound / "train/dog/larger.webp", quality=90)
    found = diagnose(open_data(str(sound)), preprocess=PLAIN).findings
    assert [(f.kind, f.splits, set(f.paths), f.corrupts) for f in found] == [
        ("label-conflict", ("train", "test"), {"test/cat/1.png", "train/dog/wrong.png"}, True),
        ("duplicate", ("train", "test"), {"test/cat/0.png", "train/cat/leak.png"}, True),
        ("near-duplicate", ("train", "test"), {"train/dog/mirrored.jpg", "test/dog/0.png"}, True),
        ("duplicate", ("train",), {"train/dog/0.png", "train/dog/again.png", "train/dog/and again.png"}, False),
        ("near-duplicate", ("train",), {"train/dog/1.png", "train/dog/larger.webp"}, False),
    ]
    conflict = found[0].record()
    assert dict(zip(conflict["paths"], conflict["labels"], strict=True)) == {
        "train/dog/wrong.png": ["dog"],
        "test/cat/1.png": ["cat"],
    }
    assert found[2].similarity is not None
    assert [f.kind for f in diagnose(open_data(str(sound)), preprocess=PLAIN, near=False).findings] == [
        "label-conflict",
        "duplicate",
        "duplicate",
    ]


def test_a_copy_of_a_copy_in_another_split_is_not_lost(sound: Path) -> None:
    """b is near a, and a has an equal twin in test: so b leaks too."""
    shutil.copy(sound / "test/cat/0.png", sound / "train/cat/a.png")
    make_image(100).save(sound / "train/cat/b.jpg", quality=92)
    found = list(find_copies(scan_dataset(open_data(str(sound)))))
    assert sorted((f.kind, f.splits, set(f.paths)) for f in found) == [
        ("duplicate", ("train", "test"), {"train/cat/a.png", "test/cat/0.png"}),
        ("near-duplicate", ("train", "test"), {"train/cat/a.png", "train/cat/b.jpg", "test/cat/0.png"}),
    ]


def test_copies_across_splits_that_were_turned_or_framed(sound: Path) -> None:
    """The copies that were missed: 90 and 180 degrees, 40 pixels of white and 120 of black around."""
    large = {seed: make_image(seed, 320, 240) for seed in (900, 901, 902, 903)}
    for seed, image in large.items():
        image.save(sound / f"train/cat/{seed}.png")
    large[900].transpose(Image.Transpose.ROTATE_90).save(sound / "test/cat/900.jpg", quality=90)
    large[901].transpose(Image.Transpose.ROTATE_180).save(sound / "test/cat/901.jpg", quality=90)
    ImageOps.expand(large[902], 40, "white").save(sound / "test/cat/902.jpg", quality=90)
    ImageOps.expand(large[903], 120, "black").save(sound / "test/cat/903.jpg", quality=90)
    found = [f for f in diagnose(open_data(str(sound)), preprocess=PLAIN).findings if f.kind == "near-duplicate"]
    assert all(f.corrupts for f in found)
    assert {f.paths: f.detail.split(";")[0] for f in found} == {
        ("train/cat/900.png", "test/cat/900.jpg"): "turned by 90 degrees",
        ("train/cat/901.png", "test/cat/901.jpg"): "turned by 180 degrees",
        ("train/cat/902.png", "test/cat/902.jpg"): "border",
        ("train/cat/903.png", "test/cat/903.jpg"): "border",
    }


def test_what_fingerprints_propose_the_images_decide(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is wrong in three of four cases: only the true pair is told, also when pairs are looked at in parts."""
    make_image(2).save(sound / "train/cat/near.jpg", quality=90)  # of train/cat/2.png
    (sound / "train/dog/0.png").unlink()
    seen = scan_dataset(open_data(str(sound)))
    number = {seen.id(item): item for item in range(len(seen))}
    names = [("0", "1"), ("2", "near"), ("1", "2"), ("0", "3")]
    proposed = [
        Pair(number[f"train/cat/{a}.png"], number.get(f"train/cat/{b}.png", number["train/cat/near.jpg"]), 0.99, "cropped")
        for a, b in names
    ]
    monkeypatch.setattr(copies_module, "find_near_duplicates", lambda *args, **options: proposed)
    monkeypatch.setattr(confirmation_module, "TOGETHER", 3)
    for workers in (0, 2):
        (found,) = find_copies(seen, workers=workers)
        assert set(found.paths) == {"train/cat/2.png", "train/cat/near.jpg"}
        assert found.similarity is not None
        assert found.similarity != 0.99  # what was seen on the images, not what was proposed
    (sound / "train/cat/3.png").unlink()  # in the meantime: nobody can look at it any more, so what was said stands
    told = sorted(sorted(finding.paths) for finding in find_copies(seen))
    assert told == [["train/cat/0.png", "train/cat/3.png"], ["train/cat/2.png", "train/cat/near.jpg"]]


def test_many_copies_do_not_take_a_look_at_every_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{label}/{i}.png": make_image(1).resize((80 + i, 60 + i + (label == "b"))) for label in "ab" for i in range(12)}
    seen = scan_dataset(open_data(str(folder(tmp_path / "data", files | {"b/other.png": 2}))))
    looked = []
    real = confirmation_module.confirm
    monkeypatch.setattr(confirmation_module, "confirm", lambda *pair: looked.append(1) or real(*pair))  # type: ignore[func-returns-value]
    monkeypatch.setattr(confirmation_module, "TOGETHER", 20)
    everyone = [Pair(a, b, 0.99, "same image") for a in range(24) for b in range(a + 1, 24)]
    monkeypatch.setattr(copies_module, "find_near_duplicates", lambda *args, **options: everyone)
    done: list[int] = []
    monkeypatch.setattr(copies_module, "progress_bar", lambda title, total: nullcontext(done.append))
    found = [f for f in find_copies(seen) if f.similarity is not None]
    assert sum(done) == len(everyone)  # also those that need no look are done with
    assert [(finding.kind, finding.count) for finding in found] == [("label-conflict", 24)]
    assert len(looked) < 80 < len(everyone)


def test_every_long_part_shows_its_progress_to_the_end(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_image(2).save(sound / "train/cat/near.jpg", quality=90)
    Image.new("RGB", (80, 60)).save(sound / "train/cat/flat.png")  # never compared
    other = folder(tmp_path / "other", {"x/near.jpg": 51, "x/fresh.png": 900, "x/flat.png": Image.new("RGB", (80, 60))})
    monkeypatch.setattr(confirmation_module, "TOGETHER", 1)
    shown: list[list[Any]] = []

    def show(title: str, total: int | None) -> AbstractContextManager[Any]:
        entry: list[Any] = [title, total, 0]
        shown.append(entry)

        def advance(more: int) -> None:
            entry[2] += more

        return nullcontext(advance)

    for module in (diagnosis_module, copies_module):
        monkeypatch.setattr(module, "progress_bar", show)
    diagnose(open_data(str(sound)), open_data(str(other)), preprocess=PLAIN)
    assert shown == [
        [f"examining {sound}", 18, 18],
        ["comparing images", 18, 18],
        ["looking at likely copies again", 1, 1],
        [f"examining {other}", 3, 3],
        ["comparing the two", 3, 3],
        ["looking at likely copies again", 1, 1],
    ]


def test_no_label_contradicts_nothing(tmp_path: Path) -> None:
    folder(tmp_path, {"1.png": 1, "2.png": 1, "3.png": 1})
    lines = [{"path": "1.png", "label": "cat"}, {"path": "2.png"}, {"path": "3.png", "label": ["dog", "cat"]}]
    manifest = tmp_path / "list.jsonl"
    manifest.write_text("\n".join(json.dumps(line) for line in lines[:2]))
    assert [kind for kind, _, _ in told(manifest)] == ["duplicate", "unlabelled"]
    manifest.write_text("\n".join(json.dumps(line) for line in lines[1:] + lines[:1]))
    assert next(kind for kind, _, _ in told(manifest)) == "label-conflict"


def test_against_another_set(sound: Path, tmp_path: Path) -> None:
    other = folder(
        tmp_path / "other", {"test/x/same.png": 0, "test/x/fresh.png": 900, "test/y/near.jpg": make_image(51).resize((120, 90))}
    )
    found = diagnose(open_data(str(sound)), open_data(str(other)), preprocess=PLAIN)
    assert [(f.kind, f.splits, f.paths) for f in found.findings] == [
        ("duplicate", ("train", "against:test"), ("train/cat/0.png", f"{other}/test/x/same.png")),
        ("near-duplicate", ("train", "against:test"), ("train/dog/1.png", f"{other}/test/y/near.jpg")),
    ]
    assert found.corrupt
    assert found.summary["against"] == {"data": str(other), "images": 3, "usable": 3}
    same_classes = folder(tmp_path / "third", {"cat/a.png": 51, "dog/b.png": 901})
    found = diagnose(open_data(str(sound)), open_data(str(same_classes)), preprocess=PLAIN)
    assert [(f.kind, f.labels) for f in found.findings] == [("label-conflict", (("dog",), ("cat",)))]
    cleaned = write_manifest(tmp_path / "clean.csv", found.scan, found.findings)
    assert (cleaned.kept, cleaned.left_out) == (15, {"copies with different labels": 1})


def test_groups_of_alike_images_list_a_bounded_number_of_paths() -> None:
    images = np.zeros((1500, 8, 8), np.uint8)
    images[:, 2:5, 1:7] = np.random.default_rng(0).integers(0, 255, (1500, 3, 6))
    dataset = Dataset("pixels", ("a",), {"train": Arrays("pixels", "train", ("a",), images, np.zeros(1500))})
    seen = scan_dataset(dataset, near=False)
    (finding,) = image_findings(seen, find_required_size(Preprocess("resize(16)")))
    assert (finding.kind, finding.count, len(finding.paths)) == ("upscaled", 1500, 1000)


def test_what_the_preprocessing_cannot_use_is_corrupting(sound: Path) -> None:
    seen = scan_dataset(open_data(str(sound)), near=False)
    found = list(image_findings(seen, find_required_size(Preprocess("central_crop(70)|range(0,1)"))))
    assert {(f.kind, f.splits, f.count, f.corrupts) for f in found} == {
        ("too-small", ("train",), 8, True),
        ("too-small", ("test",), 8, True),
    }
    assert find_required_size(Preprocess("resize_small(64)|central_crop(48)")) == find_required_size(Preprocess("resize(64)"))


def test_the_table_of_kinds_is_what_the_docs_and_the_contract_say() -> None:
    contract = (
        "unreadable not-an-image empty-file too-large rotated unusual-mode empty-class class-mismatch imbalance duplicate"
    )
    assert {*contract.split(), "near-duplicate", "label-conflict"} <= set(KINDS)
    assert corrupts("duplicate", ("train", "test"))
    assert not corrupts("duplicate", ("train",))
    assert corrupts("empty-class", ("train",))
    assert not corrupts("empty-class", ())
    documented = (Path(__file__).parents[2] / "docs" / "how-to" / "check-data.md").read_text(encoding="utf-8")
    section = documented.split("## Kinds of findings")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{kind.name}` | {kind.corrupts} | {kind.meaning} | {kind.remedy} |" for kind in KINDS.values()]


# Streams and arrays -----------------------------------------------------------------------------------------------------------


class Shards(Stream):
    """Shards in memory; one may break off."""

    def __init__(self, split: str, shards: Sequence[Sequence[Item]], classes: tuple[str, ...], breaks: int = -1) -> None:
        self.where, self.split, self.classes = "shards", split, classes
        self.shards = tuple(f"{split}-{i}.tar" for i in range(len(shards)))
        self._items, self._breaks, self.skipped = shards, breaks, []

    def read(self, shard: int) -> Iterator[Item]:
        yield from self._items[shard]
        if shard == self._breaks:
            raise VitreousError(f"{self.shards[shard]}: broken off")


def test_shards_are_examined_like_folders(sound: Path, tmp_path: Path) -> None:
    shutil.copy(sound / "test/cat/0.png", sound / "train/cat/leak.png")
    (sound / "train/dog/empty.png").write_bytes(b"")
    dataset = open_data(str(sound))
    splits = {}
    for split, source in dataset.splits.items():
        items = list(source.items())
        splits[split] = Shards(split, [items[:3], [], items[3:]], dataset.classes)
    found = diagnose(Dataset("shards", dataset.classes, splits), preprocess=PLAIN, workers=2)
    assert [(f.kind, f.paths) for f in found.findings] == [
        ("duplicate", ("train/cat/leak.png", "test/cat/0.png")),
        ("empty-file", ("train/dog/empty.png",)),
    ]
    of_folder = diagnose(dataset, preprocess=PLAIN)
    assert found.summary["splits"] == of_folder.summary["splits"]
    assert make_thumbnails(found.scan, range(len(found.scan))) == make_thumbnails(of_folder.scan, range(len(of_folder.scan)))
    write_doctor_dir(tmp_path / "out", found)
    with pytest.raises(VitreousError, match="no image files"):
        check_possible(tmp_path / "clean.csv", found.scan.dataset, tmp_path / "out")


def test_a_broken_shard_is_a_finding_and_the_rest_is_examined(sound: Path) -> None:
    items = list(open_data(str(sound)).splits["train"].items())  # type: ignore[union-attr]
    stream = Shards("train", [items[:3], items[3:]], ("cat", "dog"), breaks=0)
    found = diagnose(Dataset("shards", ("cat", "dog"), {"train": stream}), preprocess=PLAIN)
    assert [(f.kind, f.detail) for f in found.findings] == [("broken-shard", "train-0.tar: broken off")]
    assert len(found.scan) == len(items)
    with pytest.raises(VitreousError, match="broken off"):
        check_headers(stream)


def test_arrays(tmp_path: Path) -> None:
    images = np.stack([np.asarray(make_image(i, 32, 32)) for i in range(6)])
    images[5] = images[0]
    source = Arrays("pixels", "train", ("a", "b"), images, np.array([0, 0, 0, 1, 1, 1]))
    found = diagnose(Dataset("pixels", ("a", "b"), {"train": source}), preprocess=PLAIN)
    assert [(f.kind, f.paths) for f in found.findings] == [("label-conflict", ("train/000000", "train/000005"))]
    assert check_headers(source) == ()
    write_doctor_dir(tmp_path / "out", found)
    with pytest.raises(VitreousError, match="no image files"):
        check_possible(tmp_path / "clean.csv", found.scan.dataset, tmp_path / "out")


# Faults on the way ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_file_that_crashes_its_process_is_a_finding(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = signal.SIGUSR1  # ends a process as a crash does, but pytest prints no stack for it
    real = scan_module.examine

    def deadly(content: Any, name: str) -> Any:
        if name in ("train/dog/2.png", "test/cat/1.png"):
            os.kill(os.getpid(), how)
        return real(content, name)

    monkeypatch.setattr(scan_module, "examine", deadly)
    monkeypatch.setattr(scan_module, "CHUNK", 3)
    assert told(sound, workers=2) == [
        ("unreadable", "test", ("test/cat/1.png",)),
        ("unreadable", "train", ("train/dog/2.png",)),
    ]
    how = signal.SIGKILL  # what the system does when memory runs out: the file need not be to blame
    with pytest.raises(VitreousError, match="fewer --workers"):
        told(sound, workers=2)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")
def test_a_crash_while_reading_is_blamed_on_what_was_read(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FileSource.read

    def deadly(self: FileSource, index: int) -> Any:
        if self.id(index) == "train/dog/2.png":
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(self, index)

    monkeypatch.setattr(FileSource, "read", deadly)
    assert told(sound, workers=2) == [("unreadable", "train", ("train/dog/2.png",))]


class DeadlyShards(Stream):
    """The second shard ends the process that reads it, after its first item."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.where, self.split, self.classes, self.shards = "shards", "train", ("cat", "dog"), ("a.tar", "b.tar", "c.tar")
        self._items, self.skipped = items, []

    def read(self, shard: int) -> Iterator[Item]:
        yield self._items[2 * shard]
        if shard == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        yield self._items[2 * shard + 1]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")
def test_a_shard_that_crashes_its_reader_is_a_finding_and_no_member_is_blamed(sound: Path) -> None:
    source = open_data(str(sound)).source("train")
    stream = DeadlyShards(list(source.items()))
    found = diagnose(Dataset("shards", ("cat", "dog"), {"train": stream}), preprocess=PLAIN, workers=2)
    assert [(f.kind, f.detail.split(";")[0]) for f in found.findings if f.corrupts] == [
        ("broken-shard", "b.tar: the process that read it crashed")
    ]
    assert len(found.scan) == 4


def test_the_order_and_the_findings_do_not_depend_on_the_workers(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 3)
    alone, many = (scan_dataset(open_data(str(sound)), workers=workers) for workers in (0, 3))
    np.testing.assert_array_equal(alone.records, many.records)
    assert alone.prints is not None
    assert many.prints is not None
    np.testing.assert_array_equal(alone.prints.rows, many.prints.rows)
    np.testing.assert_array_equal(alone.prints.items, many.prints.items)
    assert [alone.id(i) for i in range(len(alone))] == sorted(SOUND, key=lambda name: (not name.startswith("train"), name))


def test_a_full_disk_leaves_nothing(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnose(open_data(str(sound)), preprocess=PLAIN)
    real = Path.write_text

    def full(self: Path, *args: Any, **options: Any) -> int:
        if self.name == "report.html":
            raise OSError(28, "No space left on device")
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    before = set(tmp_path.iterdir())
    with pytest.raises(VitreousError, match="No space left"):
        write_doctor_dir(tmp_path / "out", found)
    assert set(tmp_path.iterdir()) == before
    monkeypatch.undo()
    write_doctor_dir(tmp_path / "out", found)
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)


def test_only_its_own_folder_is_replaced(sound: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_doctor_dir(out)
    write_doctor_dir(out, diagnose(open_data(str(sound)), preprocess=PLAIN))
    check_doctor_dir(out)
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(VitreousError, match="thesis"):
        check_doctor_dir(out)
    for strange in ({"summary.json": b"{}"}, {"summary.json": b"[1]"}, {"report.html": b""}):
        with pytest.raises(VitreousError, match="other files"):
            check_doctor_dir(folder(tmp_path / f"strange{len(list(tmp_path.iterdir()))}", strange))
    with pytest.raises(VitreousError, match="inside the data"):
        check_doctor_dir(sound / "report", sound)
    (tmp_path / "file").write_text("")
    with pytest.raises(VitreousError, match="must be a folder"):
        check_doctor_dir(tmp_path / "file")
    with pytest.raises(VitreousError, match="is not a folder"):
        check_doctor_dir(tmp_path / "file" / "report")
    with pytest.raises(VitreousError, match="holds other files"):
        check_doctor_dir(Path("/"))


def test_what_somebody_puts_there_during_the_work_is_not_lost(sound: Path, tmp_path: Path) -> None:
    found = diagnose(open_data(str(sound)), preprocess=PLAIN, near=False)
    out = tmp_path / "out"
    check_doctor_dir(out)
    folder(out, {"thesis.txt": b"years of work"})
    with pytest.raises(VitreousError, match="thesis"):
        write_doctor_dir(out, found)
    assert [path.read_bytes() for path in out.iterdir()] == [b"years of work"]
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}


# The manifest -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_the_manifest_leaves_the_bad_ones_out_and_can_be_read(sound: Path, tmp_path: Path, ending: str) -> None:
    shutil.copy(sound / "test/cat/0.png", sound / "train/cat/leak.png")
    shutil.copy(sound / "test/cat/1.png", sound / "train/dog/wrong.png")
    shutil.copy(sound / "train/dog/0.png", sound / 'train/dog/again, and "again".png')
    make_image(152).save(sound / "train/dog/near.jpg", quality=92)  # of test/dog/2.png
    make_image(53).save(sound / "train/dog/near within.jpg", quality=92)  # of train/dog/3.png: both stay
    (sound / "test/dog/empty.png").write_bytes(b"")
    before = {path: path.read_bytes() for path in sorted(sound.rglob("*.*"))}
    found = diagnose(open_data(str(sound)), preprocess=PLAIN)
    target = tmp_path / "lists" / f"clean{ending}"
    remedy = write_manifest(target, found.scan, found.findings)
    assert remedy.left_out == {
        "copies with different labels": 2,
        "duplicates of another split": 1,
        "duplicates within a split": 1,
        "near duplicates of another split": 1,
        "bad files": 1,
    }
    assert {path: path.read_bytes() for path in sorted(sound.rglob("*.*"))} == before
    again = open_data(str(target))
    kept = {
        os.path.relpath(source.path(i), sound): (split, again.classes[source.labels(i)[0]])  # type: ignore[union-attr]
        for split, source in again.splits.items()
        for i in range(len(source))  # type: ignore[arg-type]
    }
    gone = {"train/cat/leak.png", "train/dog/wrong.png", "test/cat/1.png", "train/dog/near.jpg", "test/dog/empty.png"}
    names = {str(path.relative_to(sound)) for path in before} - gone
    twins = {"train/dog/0.png", 'train/dog/again, and "again".png'}
    assert len(set(kept) & twins) == 1
    assert set(kept) | twins == names
    assert all(value == (name.split("/")[0], name.split("/")[1]) for name, value in kept.items())
    clean = diagnose(again, preprocess=PLAIN)
    assert not clean.corrupt
    assert [f.kind for f in clean.findings] == ["near-duplicate"]


def test_class_names_that_look_the_same_are_reported(tmp_path: Path) -> None:
    files = {"Hat/1.png": 1, "hat/2.png": 2, "caf\u00e9/3.png": 3, "cafe\u0301/4.png": 4, "A/5.png": 5, "a/6.png": 6}
    found = diagnose(open_data(str(folder(tmp_path / "data", files))), preprocess=PLAIN)
    assert {(f.kind, frozenset(f.classes), f.splits) for f in found.findings} == {
        ("similar-class-names", frozenset({"Hat", "hat"}), ("all",)),
        ("similar-class-names", frozenset({"caf\u00e9", "cafe\u0301"}), ("all",)),
    }
    assert found.corrupt
    assert any("'caf\\xe9'" in f.detail and "'cafe\\u0301'" in f.detail for f in found.findings)  # not by their looks


def test_no_manifest_is_written_that_training_refuses(tmp_path: Path) -> None:
    """A class spelt in two ways, and one whose training images are all copies of test images."""
    names = ("train/Hat/1.png", "train/cat/3.png", "test/hat/2.png", "test/cat/4.png", "train/Hat/5.png")
    spelt = folder(tmp_path / "spelt", {name: number for number, name in enumerate(names)})
    leaking = folder(tmp_path / "leaking", {"train/a/1.png": 1, "train/b/2.png": 2, "test/a/3.png": 3, "test/b/4.png": 2})
    for data, said in ((spelt, "only in test: hat; only in train: Hat"), (leaking, "only in test: b")):
        found = diagnose(open_data(str(data)), preprocess=PLAIN)
        target = tmp_path / f"{data.name}.csv"
        remedy = str(write_manifest(target, found.scan, found.findings))
        assert "not written, because training would refuse it" in remedy
        assert said in remedy
        assert remedy.endswith("rename or merge those classes, or add images to them")
        assert not target.exists()
    # Told apart from what is refused by asking training itself, with the manifest that an earlier version wrote.
    rows = "".join(f"spelt/{name},{name.split('/')[1]},{name.split('/')[0]}\n" for name in names)
    (tmp_path / "old.csv").write_text("path,label,split\n" + rows)
    with pytest.raises(VitreousError, match="different classes"):
        choose_training_splits(open_data(str(tmp_path / "old.csv")))


def test_what_a_manifest_cannot_be(sound: Path, tmp_path: Path) -> None:
    dataset = open_data(str(sound))
    (tmp_path / "there.csv").mkdir()
    (tmp_path / "full.csv").write_text("dear to somebody")
    (tmp_path / "link.csv").symlink_to("nowhere.csv")
    for target, why in (
        ("x.txt", "must end in .csv, .tsv, .jsonl or .ndjson"),
        ("out/x.csv", "every run replaces"),
        ("there.csv", "is a folder"),
        ("full.csv", "exists already; choose another name or remove it"),
        ("link.csv", "exists already"),
        ("full.csv/x.csv", "is not a folder"),
    ):
        with pytest.raises(VitreousError, match=why) as error:
            check_possible(tmp_path / target, dataset, tmp_path / "out")
        assert str(error.value).startswith(f"--fix {tmp_path / target}: ")
    manifest = tmp_path / "own.csv"
    manifest.write_text("path,label,split\ndata/train/cat/0.png,cat,train\n")
    for name in (str(manifest), f"{manifest}:train"):
        with pytest.raises(VitreousError, match="own manifest"):
            check_possible(manifest, open_data(name), tmp_path / "out")
        with pytest.raises(VitreousError, match="own manifest"):
            check_possible(manifest, dataset, tmp_path / "out", open_data(name))
    odd = folder(tmp_path / "odd", {"a;b/1.png": 1, "c/2.png": 2})
    with pytest.raises(VitreousError, match=r"'a;b'.*jsonl"):
        check_possible(tmp_path / "odd.csv", open_data(str(odd)), tmp_path / "out")
    check_possible(tmp_path / "odd.jsonl", open_data(str(odd)), tmp_path / "out")
    found = diagnose(open_data(str(odd)), preprocess=PLAIN)
    assert write_manifest(tmp_path / "odd.jsonl", found.scan, found.findings).kept == 2
    with pytest.raises(VitreousError, match="exists already"):
        write_manifest(tmp_path / "full.csv", found.scan, found.findings)
    assert (tmp_path / "full.csv").read_text() == "dear to somebody"
    empty = folder(tmp_path / "all bad", {"a.png": b"", "b.png": b"x"})
    found = diagnose(open_data(str(empty)), preprocess=PLAIN)
    assert "not written, because nothing is left" in str(write_manifest(tmp_path / "none.csv", found.scan, found.findings))
    assert not (tmp_path / "none.csv").exists()
    write_doctor_dir(tmp_path / "all bad report", found)


# The page ---------------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what stands there; fails on tags that do not match."""

    VOID = frozenset({"meta", "br", "img", "line", "circle", "path", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


ODD = [
    "<script>alert(1)<\\script>.png",
    "quote\"'&amp;.png",
    "new\nline.png",
    "\x1b[31mred.png",
    "dots {x} %s $y.png",
    "ü漢.png",
]


def test_the_page_is_whole_and_needs_nothing(tmp_path: Path) -> None:
    files: dict[str, Any] = {f"train/<b>class</b>/{name}": 1 for name in ODD} | {f"train/x/{name}": b"" for name in ODD}
    files |= {f"train/x/fine{i}.png": 10 + i for i in range(3)}
    files |= {f"test/x/{i}.png": 20 + i for i in range(2)} | {"test/<b>class</b>/1.png": make_image(30, 300, 200)}
    root = folder(tmp_path / "data <i>", files)
    (root / os.fsdecode(b"train/x/bytes\xff\xfe.png")).write_bytes(b"no image")
    found = diagnose(open_data(str(root)), preprocess=Preprocess("inception_crop(32)|flip|range(-1,1)"))
    write_doctor_dir(tmp_path / "out", found)
    text = (tmp_path / "out" / "report.html").read_bytes().decode("utf-8")
    page = Page(text)
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "iframe", "i", "b", "object", "base", "form"}
    for tag, attributes in page.seen:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name == "src":
                assert str(value).startswith("data:image/jpeg;base64,"), tag
            if name == "href":
                assert str(value).startswith("#")
    assert "://" not in text
    assert "url(" not in text
    anchors = {attributes["id"] for _, attributes in page.seen if "id" in attributes}
    assert {str(a["href"])[1:] for tag, a in page.seen if tag == "a"} <= anchors
    assert all(attributes.get("alt") for tag, attributes in page.seen if tag == "img")
    words = "".join(page.words)
    for name in [*ODD, "bytes\udcff\udcfe.png"]:
        assert printable(name) in words
    assert "<b>class</b>" in words
    lines = (tmp_path / "out" / "findings.jsonl").read_text(encoding="ascii").splitlines()
    paths = {path for line in lines for path in json.loads(line)["paths"]}
    assert {f"train/x/{name}" for name in [*ODD, "bytes\udcff\udcfe.png"]} <= paths
    remedy = write_manifest(tmp_path / "clean.csv", found.scan, found.findings)
    assert remedy.kept == len(open_data(str(tmp_path / "clean.csv")).splits["train"]) + 3  # type: ignore[arg-type]


def test_the_page_stays_small(tmp_path: Path) -> None:
    files: dict[str, Any] = {f"{i:04}.png": b"" for i in range(400)}
    pair = [np.asarray(make_image(i, 32, 32)) for i in range(150)]
    for i, pixels in enumerate(pair):
        for copy in "ab":
            files[f"x{i}{copy}.png"] = Image.fromarray(pixels)
    found = diagnose(open_data(str(folder(tmp_path / "data", files))), preprocess=PLAIN, near=False, workers=2)
    write_doctor_dir(tmp_path / "out", found, workers=2)
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert text.count("<img") == 2 * 100 + 2  # pairs shown, and a preview with its original
    assert "50 more in findings.jsonl" in text
    assert "300 more in findings.jsonl" in text
    assert len((tmp_path / "out" / "findings.jsonl").read_text().splitlines()) == 550


def test_thumbnails_show_the_images(sound: Path) -> None:
    seen = scan_dataset(open_data(str(sound)))
    made = make_thumbnails(seen, [0, 3, 9], workers=2)
    assert set(made) == {0, 3, 9}
    for item, data in made.items():
        shown, real = Image.open(io.BytesIO(data)), Image.open(seen.path(item) or "")
        assert shown.size == real.size
        assert np.abs(np.asarray(shown, float) - np.asarray(real, float)).mean() < 12
        assert len(data) < 5000


def test_previews(tmp_path: Path) -> None:
    root = folder(
        tmp_path / "data", {"small.png": make_image(0, 20, 16), "large.png": make_image(1, 300, 200), "mid.png": make_image(2)}
    )
    seen = scan_dataset(open_data(str(root)), near=False)
    random = Preprocess("inception_crop(40)|flip|range(-1,1)")
    small, large = make_previews(seen, random)
    assert (seen.id(small.item), seen.id(large.item)) == ("small.png", "large.png")
    assert {outcome.size for outcome in (*small.outcomes, *large.outcomes)} == {(40, 40)}
    assert len(small.outcomes) == 4
    assert small.scale == "×2.24 to ×10, by the part that is cut"  # 40 / sqrt(320), and that over sqrt(0.05)
    small, large = make_previews(seen, Preprocess("central_crop(100)|range(0,1)"))
    assert "does not fit" in small.failure
    assert len(large.outcomes) == 1
    assert large.outcomes[0].tobytes() == Image.open(root / "large.png").crop((100, 50, 200, 150)).tobytes()


def test_the_numbers_of_the_summary(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", {f"a/{i}.png": i for i in range(3)} | {"b/9.png": make_image(9, 80, 60).convert("L")})
    found = diagnose(open_data(str(root)), preprocess=PLAIN, near=False)
    about = found.summary["splits"]["all"]
    assert about["classes"] == {"a": 3, "b": 1}
    assert about["modes"] == {"RGB": 3, "L": 1}
    assert about["sizes"]["width"] == {"smallest": 80, "median": 80, "largest": 80}
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB"), float) for path in sorted(root.rglob("*.png"))]) / 255
    np.testing.assert_allclose(about["channels"]["mean"], pixels.mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(about["channels"]["deviation"], pixels.std((0, 1, 2)), atol=1e-4)


# Names and records ------------------------------------------------------------------------------------------------------------


def test_readable_names() -> None:
    assert printable("plain ü.jpg") == "plain ü.jpg"
    assert printable("a\nb\x1b[0m") == r"a\nb\x1b[0m"
    assert printable("x\udcff") == r"x\xff"


def test_findings_are_records() -> None:
    line = Finding("blank", "all of one colour", ("train",), ("a.png",), (0,), count=1).record()
    assert line == {
        "kind": "blank",
        "paths": ["a.png"],
        "split": "train",
        "detail": "all of one colour",
        "corrupts": False,
        "count": 1,
    }
