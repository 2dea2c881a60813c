"""Shards: what webdataset writes is read, what is written webdataset reads, and no fault loses or repeats a sample unseen."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import random
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import braceexpand
import fsspec
import numpy as np
import pytest
import webdataset
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.shards import byte_stream as shard_bytes
from vitreous.data.shards import reader as shards
from vitreous.data.shards import samples as shard_samples
from vitreous.data.shards import writer as shard_writer
from vitreous.data.shards.index import expand_braces
from vitreous.data.shards.reader import Shards, open_shards
from vitreous.data.shards.writer import write_shards
from vitreous.data.source import Dataset, Item, Source
from vitreous.data.sources.arrays import Arrays


def make_image(number: int, form: str = "PNG", size: int = 8) -> bytes:
    """An image whose bytes no other number's share."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


class Listed(Source):
    """Encoded images in memory, by name."""

    def __init__(self, split: str, classes: Sequence[str], items: Sequence[tuple[str, tuple[int, ...], bytes]]) -> None:
        self.where, self.split, self.classes, self.entries = "listed", split, tuple(classes), items

    def __len__(self) -> int:
        return len(self.entries)

    def id(self, index: int) -> str:
        return self.entries[index][0]

    def labels(self, index: int) -> tuple[int, ...]:
        return self.entries[index][1]

    def read(self, index: int) -> bytes:
        return self.entries[index][2]


CLASSES = ("cat", "dog", "eel")


def listed(count: int = 30) -> Dataset:
    train = [(f"train/{CLASSES[n % 3]}/{n}.png", (n % 3,), make_image(n)) for n in range(count)]
    test = [(f"test/{CLASSES[n % 3]}/{n}.jpg", (n % 3,), make_image(1000 + n, "JPEG")) for n in range(7)]
    return Dataset("listed", CLASSES, {"train": Listed("train", CLASSES, train), "test": Listed("test", CLASSES, test)})


def tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A tar file, written by the standard library alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def samples(count: int, start: int = 0, classes: int = 3) -> list[tuple[str, bytes]]:
    found = []
    for n in range(start, start + count):
        found += [(f"{n:04d}.png", make_image(n)), (f"{n:04d}.cls", str(n % classes).encode())]
    return found


def folder(path: Path, *, index: bool = True, **contents: bytes) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in contents.items():
        (path / f"{name.replace('_', '-')}.tar").write_bytes(content)
    if index:
        (path / "index.json").write_text(json.dumps({"classes": CLASSES}))
    return path


def stream(dataset: Dataset, split: str = "all") -> Shards:
    found = dataset.splits[split]
    assert isinstance(found, Shards)
    return found


def seen(items: Iterator[Item]) -> list[tuple[str, tuple[int, ...], str]]:
    return [(item.id, item.labels, hashlib.sha256(item.content).hexdigest()) for item in items]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shard_bytes, "DELAY", 0.001)
    yield
    MemoryFileSystem.store.clear()


# Side by side with webdataset ---------------------------------------------------------------------------------------------


def test_webdataset_reads_what_is_written(tmp_path: Path) -> None:
    dataset = listed()
    report = write_shards(dataset, tmp_path / "out", shard_bytes=9000)
    assert [entry.count for entry in report.shards if entry.split == "train"][:2] != [30]
    for split in ("train", "test"):
        paths = [str(tmp_path / "out" / entry.name) for entry in report.shards if entry.split == split]
        theirs = {}
        for sample in webdataset.WebDataset(paths, shardshuffle=False, empty_check=False):
            suffix = "png" if split == "train" else "jpg"
            theirs[sample["__key__"]] = (int(sample["cls"]), sample[suffix])
        source = dataset.splits[split]
        assert isinstance(source, Source)
        assert theirs == {item.id.rpartition(".")[0]: (item.labels[0], item.content) for item in source.items()}


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_what_webdataset_writes_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"theirs.{suffix}"
    with webdataset.TarWriter(str(path)) as writer:
        for n in range(12):
            writer.write({"__key__": f"a/b{n}", "jpg": make_image(n, "JPEG"), "cls": n % 5, "json": {"note": n}})
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == "tar.gz")
    dataset = open_shards(str(path))
    assert dataset.classes == ("0", "1", "2", "3", "4")
    assert "no index.json" in dataset.notes[0]
    items = list(stream(dataset).items())
    assert [(item.id, item.labels) for item in items] == [(f"theirs.{suffix}/a/b{n}", (n % 5,)) for n in range(12)]
    assert [item.content for item in items] == [make_image(n, "JPEG") for n in range(12)]
    assert items[3].place == f"{path}: a/b3.jpg"
    assert stream(dataset).count() == 12


@pytest.mark.parametrize(
    "text",
    ["a.tar", "a-{000..012}.tar", "{train,val}-{0..3}.tar", "{a,b}{1..3}c-{08..11}.tar", "x{3..0}y", "{,a}b"],
)
def test_braces_as_braceexpand_does_them(text: str) -> None:
    assert expand_braces(text) == list(braceexpand.braceexpand(text))


@pytest.mark.parametrize("text", ["a-{0..", "{a,{b,c}}", "a-{}.tar", "a-{x}.tar", "{0..99999999}", "{0..9999}{0..9999}"])
def test_bad_braces_are_errors(text: str) -> None:
    with pytest.raises(VitreousError, match=r"brace|neither|at most"):
        expand_braces(text)


# Writing and reading ------------------------------------------------------------------------------------------------------


def test_there_and_back(tmp_path: Path) -> None:
    dataset = listed()
    write_shards(dataset, tmp_path / "out", shard_bytes=9000)
    again = open_shards(str(tmp_path / "out"))
    assert again.classes == CLASSES
    assert list(again.splits) == ["train", "test"]
    assert not again.notes
    train = stream(again, "train")
    assert len(train.shards) > 2
    assert train.count() == 30
    assert train.lengths == tuple(len(list(train.read(n))) for n in range(len(train.shards)))
    source = dataset.splits["train"]
    assert isinstance(source, Source)
    expected = sorted((item.id.removesuffix(".png"), item.labels, item.content) for item in source.items())
    assert sorted((item.id.partition("/")[2], item.labels, item.content) for item in train.items()) == expected
    order = [item.id.partition("/")[2] for item in train.items()]
    assert order != [item.id.removesuffix(".png") for item in source.items()]
    assert max(len(list(g)) for g in _runs([item.labels for item in train.items()])) < 10


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][-1] == value:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def test_same_seed_same_bytes_and_the_index_tells_the_truth(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_shards(listed(), tmp_path / name, shard_bytes=9000, seed=seed)
    files = {name: {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"]["train-000000.tar"] != files["c"]["train-000000.tar"]
    index = json.loads(files["a"]["index.json"])
    for shard in index["shards"]:
        content = files["a"][shard["name"]]
        assert (shard["bytes"], shard["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert len(content) <= 9000 + tarfile.RECORDSIZE
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = archive.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
        assert shard["count"] == sum(m.name.endswith(".cls") for m in members)
    assert index["splits"]["train"]["count"] == 30


def test_without_shuffling_the_order_is_kept(tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "out", shuffle=False)
    ids = [item.id for item in stream(open_shards(str(tmp_path / "out")), "train").items()]
    assert ids == [f"train-000000.tar/train/{CLASSES[n % 3]}/{n}" for n in range(30)]


def test_several_labels_none_and_odd_names(tmp_path: Path) -> None:
    names = [
        "a.b.jpg",
        "a_b.jpg",
        "a_b.png",
        "/abs/../x",
        ".hidden.png",
        "ü/é è.webp",
        "bad\udcff.png",
        "a" * 200 + ".png",
        "c\nd",
    ]
    labels = [(0, 2), (), (1,), (2, 1, 0), (0,), (1,), (2,), (0,), (1,)]
    entries = [(name, label, make_image(n)) for n, (name, label) in enumerate(zip(names, labels, strict=True))]
    write_shards(Dataset("x", CLASSES, {"all": Listed("all", CLASSES, entries)}), tmp_path / "out", shuffle=False)
    items = list(stream(open_shards(str(tmp_path / "out"))).items())
    assert [item.labels for item in items] == labels
    assert [item.content for item in items] == [make_image(n) for n in range(len(names))]
    assert len({item.id for item in items}) == len(names)
    assert items[5].id == "all-000000.tar/ü/é è"
    theirs = webdataset.WebDataset(str(tmp_path / "out" / "all-000000.tar"), shardshuffle=False, empty_check=False)
    assert [f"all-000000.tar/{sample['__key__']}" for sample in theirs] == [item.id for item in items]


def test_arrays_become_png_of_the_same_pixels(tmp_path: Path) -> None:
    for name, shape in (("grey", (5, 9, 7)), ("colour", (5, 9, 7, 3)), ("one", (5, 9, 7, 1))):
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        source = Arrays("x", "train", CLASSES, pixels, np.array([0, 1, 2, -1, 0]))
        write_shards(Dataset("x", CLASSES, {"train": source}), tmp_path / name, shuffle=False)
        items = list(stream(open_shards(str(tmp_path / name)), "train").items())
        assert [item.labels for item in items] == [(0,), (1,), (2,), (), (0,)]
        for item, expected in zip(items, pixels, strict=True):
            assert isinstance(item.content, bytes)
            assert np.array_equal(
                np.asarray(Image.open(io.BytesIO(item.content))),
                expected.reshape(shape[1:3] + shape[3:][:1] * (shape[3:] == (3,))),
            )


def test_shards_can_be_sharded_again(tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "small", shard_bytes=5000)
    report = write_shards(open_shards(str(tmp_path / "small")), tmp_path / "large")
    assert [(entry.name, entry.count) for entry in report.shards] == [("train-000000.tar", 30), ("test-000000.tar", 7)]
    assert "keep their order" in report.notes[0]
    contents = [
        {item.content for item in stream(open_shards(str(tmp_path / name)), "train").items()} for name in ("small", "large")
    ]
    assert contents[0] == contents[1]


def test_bad_images_stop_with_all_named_or_are_skipped_and_listed(tmp_path: Path) -> None:
    entries = [(f"{n}.png", (0,), make_image(n)) for n in range(10)]
    entries[3], entries[7] = ("3.png", (0,), b""), ("7.png", (0,), b"no image at all")
    dataset = Dataset("x", CLASSES, {"all": Listed("all", CLASSES, entries)})
    with pytest.raises(VitreousError, match=r"2 bad images.*(3|7)\.png.*(3|7)\.png") as stopped:
        write_shards(dataset, tmp_path / "out")
    assert "\n" not in str(stopped.value)
    assert list(tmp_path.iterdir()) == []
    report = write_shards(dataset, tmp_path / "out", bad_images="skip")
    lines = [json.loads(line) for line in (tmp_path / "out" / "bad_images.jsonl").read_text().splitlines()]
    assert {(line["kind"], line["path"]) for line in lines} == {
        ("empty-file", "listed: 3.png"),
        ("not-an-image", "listed: 7.png"),
    }
    assert len(report.bad) == 2
    assert stream(open_shards(str(tmp_path / "out"))).count() == 8
    many = Dataset("x", CLASSES, {"all": Listed("all", CLASSES, [(f"{n}.png", (0,), b"") for n in range(50)])})
    with pytest.raises(VitreousError, match="20 bad images and perhaps more"):
        write_shards(many, tmp_path / "many")
    with pytest.raises(VitreousError, match="not one image"):
        write_shards(many, tmp_path / "many", bad_images="skip")


def test_a_full_check_finds_an_image_that_is_cut_off(tmp_path: Path) -> None:
    cut = make_image(1, "JPEG", 64)[:-600]
    dataset = Dataset("x", CLASSES, {"all": Listed("all", CLASSES, [("a.jpg", (0,), make_image(0)), ("cut.jpg", (0,), cut)])})
    assert write_shards(dataset, tmp_path / "quick").bad == ()
    with pytest.raises(VitreousError, match=r"1 bad images.*cut\.jpg"):
        write_shards(dataset, tmp_path / "full", full_check=True)


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(VitreousError, match="is there already"):
            write_shards(listed(), tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_writer.tarfile.TarFile, "addfile", full)
    with pytest.raises(VitreousError, match=r"out: cannot write .No space left on device"):
        write_shards(listed(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# Labels, classes and splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "text", "labels"),
    [
        ("cls", "2", (2,)),
        ("cls", " 0 \n", (0,)),
        ("cls", "0 2", (0, 2)),
        ("cls", "0,1, 2", (0, 1, 2)),
        ("cls", "eel", (2,)),
        ("cls", "-1", ()),
        ("cls", "", ()),
        ("json", '{"label": 1}', (1,)),
        ("json", '{"label": "dog"}', (1,)),
        ("json", '{"labels": ["cat", "eel"], "label": null}', (0, 2)),
        ("json", '{"cls": [2, 1]}', (2, 1)),
        ("json", '{"width": 8}', ()),
        ("json", "2", (2,)),
        ("txt", "a caption", ()),
    ],
)
def test_labels_in_every_form(tmp_path: Path, suffix: str, text: str, labels: tuple[int, ...]) -> None:
    where = folder(tmp_path / "x", a=tar([("1.png", make_image(1)), (f"1.{suffix}", text.encode())]))
    assert [item.labels for item in stream(open_shards(str(where))).items()] == [labels]


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("1.png", b"x"), ("1.cls", b"3")], "label 3 is none of the 3 classes"),
        ([("1.png", b"x"), ("1.cls", b"-2")], "label -2 is neither"),
        ([("1.png", b"x"), ("1.cls", b"bird")], "label 'bird' is none"),
        ([("1.png", b"x"), ("1.json", b'{"label": 1.5}')], "label 1.5 is neither"),
        ([("1.png", b"x"), ("1.json", b'{"label": true}')], "label True is neither"),
        ([("1.png", b"x"), ("1.json", b"{")], "not JSON"),
        ([("1.png", b"x"), ("1.json", b"[" * 100_000)], "not JSON"),
        ([("cat.1.jpg", b"x"), ("cat.2.jpg", b"y")], "cat.1.jpg and cat.2.jpg have one key"),
        ([("1.png", b"x"), ("1.jpg", b"y")], "1.png and 1.jpg have one key"),
    ],
)
def test_a_bad_sample_is_named_or_left_out_alone(tmp_path: Path, members: list[tuple[str, bytes]], why: str) -> None:
    where = folder(tmp_path / "x", a=tar([("0.png", b"0"), *members, ("2.png", b"2")]))
    with pytest.raises(VitreousError) as stopped:
        list(stream(open_shards(str(where))).items())
    assert why in str(stopped.value)
    assert "a.tar" in str(stopped.value)
    found = stream(open_shards(str(where), bad_shards="skip"))
    assert [item.content for item in found.items()] == [b"0", b"2"]
    assert [(Path(s.shard).name, why in s.reason, s.delivered) for s in found.skipped] == [("a.tar", True, 2)]


def test_which_member_is_the_image(tmp_path: Path) -> None:
    members = [("1.seg.png", b"mask"), ("1.jpg", b"image"), ("1.depth.png", b"depth"), ("d.ir/2.V2.JPG", b"dotted")]
    members += [("3.a.png", b"a"), ("3.b.png", b"b"), ("3.png", b"exact")]
    members += [("._3.jpg", b"apple"), (".DS_Store", b""), ("README", b""), ("4.txt", b"no image")]
    found = stream(open_shards(str(folder(tmp_path / "x", a=tar(members)))))
    assert [(item.id, item.content) for item in found.items()] == [
        ("a.tar/1", b"image"),
        ("a.tar/d.ir/2", b"dotted"),
        ("a.tar/3", b"exact"),
    ]
    assert [s.reason for s in found.skipped] == ["1 samples without an image"]


def test_a_member_that_is_too_large_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_samples, "MEMBER_BYTES", 1000)
    where = folder(tmp_path / "x", a=tar([("0.png", b"0"), ("1.png", bytes(1001)), ("2.png", bytes(1000))]))
    with pytest.raises(VitreousError, match=r"1\.png has 1,001 bytes; at most 1,000"):
        list(stream(open_shards(str(where))).items())
    assert len(list(stream(open_shards(str(where), bad_shards="skip")).items())) == 2


def test_a_link_is_no_image(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(VitreousError, match=r"1\.png is a link"):
        list(stream(open_shards(str(folder(tmp_path / "x", a=buffer.getvalue())))).items())


def test_splits_from_names_folders_or_not_at_all(tmp_path: Path) -> None:
    one = tar(samples(3))
    where = folder(tmp_path / "a", train_000=one, train_001=one, val_000=one, test_000=one)
    assert {split: len(stream(open_shards(str(where)), split).shards) for split in open_shards(str(where)).splits} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    assert list(open_shards(str(where / "{val,test}-000.tar")).splits) == ["validation", "test"]
    assert list(open_shards(str(where / "*-000.tar")).splits) == ["train", "validation", "test"]
    assert list(open_shards(str(folder(tmp_path / "b", x_0=one, x_1=one))).splits) == ["all"]
    assert list(open_shards(str(folder(tmp_path / "c", imagenet1k_validation_0=one))).splits) == ["validation"]
    (tmp_path / "d").mkdir()
    folder(tmp_path / "d" / "train", s0=one)
    folder(tmp_path / "d" / "val", s0=one)
    nested = open_shards(str(tmp_path / "d" / "*" / "*.tar"))
    assert list(nested.splits) == ["train", "validation"]
    assert next(stream(nested, "validation").items()).id == "val/s0.tar/0000"  # two shards s0.tar: told apart
    with pytest.raises(VitreousError, match=r"x-0\.tar is of no split"):
        open_shards(str(folder(tmp_path / "e", x_0=one, train_0=one)))


def test_names_in_json_are_classes_and_mixtures_are_refused(tmp_path: Path) -> None:
    def shard(*labels: Any) -> bytes:
        return tar(
            [m for n, x in enumerate(labels) for m in ((f"{n}.png", b"x"), (f"{n}.json", json.dumps({"label": x}).encode()))]
        )

    where = folder(tmp_path / "a", index=False, train_0=shard("owl", "bat"), val_0=shard("owl", "owl"))
    dataset = open_shards(str(where))
    assert dataset.classes == ("bat", "owl")
    assert dataset.own_classes == {"train": ("bat", "owl"), "validation": ("owl",)}
    assert [item.labels for item in stream(dataset, "train").items()] == [(1,), (0,)]
    with pytest.raises(VitreousError, match="some labels are numbers"):
        open_shards(str(folder(tmp_path / "b", index=False, a=shard("owl", 3))))
    with pytest.raises(VitreousError, match="is not a class number"):
        open_shards(str(folder(tmp_path / "c", index=False, a=shard(10**9))))


def test_a_scan_is_kept_until_a_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = folder(tmp_path / "x", index=False, a=tar(samples(4)), b=tar(samples(4, 4)))
    scanned: list[str] = []
    real = shards._scan_shard
    monkeypatch.setattr(shards, "_scan_shard", lambda shard, *rest: (scanned.append(shard), real(shard, *rest))[1])
    first, second = open_shards(str(where)), open_shards(str(where))
    assert len(scanned) == 2
    assert (first.classes, stream(first).lengths) == (second.classes, stream(second).lengths) == (("0", "1", "2"), (4, 4))
    (where / "b.tar").write_bytes(tar(samples(6, 4, classes=5)))
    os.utime(where / "b.tar", ns=(0, 12345))
    assert stream(open_shards(str(where))).lengths == (4, 6)
    assert len(open_shards(str(where)).classes) == 5


def test_a_broken_shard_without_an_index_tells_the_classes_it_can(tmp_path: Path) -> None:
    members = [("0.png", b"0"), ("0.cls", b"1"), ("1.png", b"1"), ("1.cls", b"-7"), ("2.png", b"2"), ("2.cls", b"4")]
    where = folder(tmp_path / "x", index=False, a=tar(members), b=tar(samples(6))[:5000])
    with pytest.raises(VitreousError, match=r"a\.tar: 1: label -7"):
        open_shards(str(where))
    dataset = open_shards(str(where), bad_shards="skip")
    assert dataset.classes == ("0", "1", "2", "3", "4")
    assert stream(dataset).count() is None
    assert len(list(stream(dataset).items())) > 2
    assert [Path(s.shard).name for s in stream(dataset).skipped] == ["a.tar", "b.tar"]


def test_two_classes_of_one_name_are_two_classes(tmp_path: Path) -> None:
    entries = [(f"{n}.png", (n,), make_image(n)) for n in range(3)]
    write_shards(
        Dataset("x", ("crane", "owl", "crane"), {"all": Listed("all", CLASSES, entries)}), tmp_path / "out", shuffle=False
    )
    assert [item.labels for item in stream(open_shards(str(tmp_path / "out"))).items()] == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    "document",
    [
        "{",
        "[]",
        "{}",
        '{"classes": "cat"}',
        '{"classes": [1]}',
        '{"classes": ["a"], "shards": [{"name": "../../x.tar", "split": "train", "count": 1}]}',
        '{"classes": ["a"], "shards": [{"name": "/x.tar", "split": "train", "count": 1}]}',
        '{"classes": ["a"], "shards": [{"name": "x.tar", "split": "train", "count": -1}]}',
        '{"classes": ["a"], "shards": [{"name": "x.tar", "split": 3, "count": 1}]}',
        '{"classes": ["a"], "shards": [{"name": "x.tar"}]}',
        '{"classes": ["a"], "shards": 5}',
        '{"classes": ["a"], "own_classes": {"train": [1]}}',
        "[" * 100_000,
    ],
)
def test_an_index_that_is_none(tmp_path: Path, document: str) -> None:
    where = folder(tmp_path / "x", a=tar(samples(1)))
    (where / "index.json").write_text(document)
    with pytest.raises(VitreousError, match=r"index\.json: not an index of shards"):
        open_shards(str(where))


def test_patterns_that_lead_nowhere(tmp_path: Path) -> None:
    one = folder(tmp_path / "x", a_0=tar(samples(1)))
    (tmp_path / "empty").mkdir()
    for pattern, why in (
        (one / "b-*.tar", "no shard matches"),
        (one / "a-{0..1}.tar", r"a-1\.tar: no such shard"),
        (one / "b.tar", r"b\.tar: no such shard"),
        (tmp_path / "empty", "neither shards"),
        ("nosuch://bucket/a.tar", "nosuch"),
        ("http://127.0.0.1/a-*.tar", "does not list"),
        ("memory://nothing/*.tar", "no shard matches"),
    ):
        with pytest.raises(VitreousError, match=why) as stopped:
            list(stream(open_shards(str(pattern))).items())
        assert "\n" not in str(stopped.value)
    skipping = stream(open_shards(str(one / "a-{0..1}.tar"), bad_shards="skip"))
    assert len(list(skipping.items())) == 1
    assert [(Path(s.shard).name, s.reason, s.delivered) for s in skipping.skipped] == [("a-1.tar", "no such file", 0)]


def test_names_with_brackets_and_braces_are_names_if_they_exist(tmp_path: Path) -> None:
    where = tmp_path / "odd[1]{x}"
    write_shards(listed(), where)
    assert stream(open_shards(str(where)), "train").count() == 30
    assert len(list(stream(open_shards(str(where / "test-000000.tar")), "test").items())) == 7
    (where / "index.json").unlink()
    assert stream(open_shards(str(where)), "train").count() == 30


# Broken shards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("remote", [False, True])
def test_a_shard_cut_anywhere_gives_its_beginning_once_and_is_named(tmp_path: Path, packed: bool, remote: bool) -> None:
    whole = tar(samples(6))
    content = gzip.compress(whole, mtime=0) if packed else whole
    where = folder(tmp_path / "x", a=content)
    expected = seen(stream(open_shards(str(where))).items())
    assert len(expected) == 6
    end = len(content) if packed else max(i for i, byte in enumerate(whole) if byte) // 512 * 512 + 512
    chosen = random.Random(0)
    for cut in sorted({0, 1, 511, 512, 513, 1024, end - 1, end - 512, *(chosen.randrange(end) for _ in range(40))}):
        if remote:
            fsspec.filesystem("memory").pipe("/x/a.tar", content[:cut])
            fsspec.filesystem("memory").pipe("/x/index.json", json.dumps({"classes": CLASSES}).encode())
            pattern = "memory://x/a.tar"
        else:
            (where / "a.tar").write_bytes(content[:cut])
            pattern = str(where / "a.tar")
        found = stream(open_shards(pattern, bad_shards="skip"))
        items = seen(found.items())
        assert items == expected[: len(items)]
        assert len(items) < 6
        assert [(s.shard.endswith("x/a.tar"), s.delivered) for s in found.skipped] == [(True, len(items))]
        with pytest.raises(
            VitreousError, match=r"x/a\.tar: (not a tar file|truncated|broken tar file|.*is truncated)"
        ) as stopped:
            list(stream(open_shards(pattern)).items())
        assert "\n" not in str(stopped.value)


def test_a_shard_cut_between_samples_and_closed_again_is_caught_by_the_index(tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "out")
    (tmp_path / "out" / "test-000000.tar").write_bytes(tar(samples(5)))
    with pytest.raises(VitreousError, match=r"test-000000\.tar: 5 samples, where index\.json says 7"):
        list(stream(open_shards(str(tmp_path / "out")), "test").items())


@pytest.mark.parametrize(
    "garbage", [b"", b"x", bytes(range(256)) * 100, b"\x1f\x8b" + b"x" * 5000, b"\x1f\x8b", b"<html>" * 400]
)
def test_garbage_is_no_shard(tmp_path: Path, garbage: bytes) -> None:
    where = folder(tmp_path / "x", a=garbage, b=tar(samples(2)))
    with pytest.raises(VitreousError, match=r"a\.tar: not a tar file"):
        list(stream(open_shards(str(where))).items())
    found = stream(open_shards(str(where), bad_shards="skip"))
    assert [item.id for item in found.items()] == ["b.tar/0000", "b.tar/0001"]
    assert [s.delivered for s in found.skipped] == [0]


def test_damage_in_the_middle_never_passes_for_the_end(tmp_path: Path) -> None:
    """tarfile itself stops in silence at a bad header, and at the first end mark of several archives in one file."""
    whole = tar(samples(6))
    header = whole.index(b"0003.png")
    damaged = whole[:header] + b"\xff" * 512 + whole[header + 512 :]
    for name, content, why, count in (
        ("header", damaged, "broken tar file", 2),
        ("joined", whole + tar(samples(6, 6)), "has data after its end mark", 5),
    ):
        where = folder(tmp_path / name, a=content)
        with pytest.raises(VitreousError, match=why):
            list(stream(open_shards(str(where))).items())
        found = stream(open_shards(str(where), bad_shards="skip"))
        assert len(list(found.items())) == count
        assert why in found.skipped[0].reason
    flipped = bytearray(gzip.compress(whole, mtime=0))
    flipped[len(flipped) // 2] ^= 0x55
    with pytest.raises(VitreousError, match="broken tar file"):
        list(stream(open_shards(str(folder(tmp_path / "gz", a=bytes(flipped))))).items())


def test_a_header_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, 1 << 40
        content = tar(samples(1)).rstrip(b"\0")
        content += bytes(-len(content) % 512) + info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
        with pytest.raises(VitreousError, match=r"header of 1,099,511,627,776 bytes"):
            list(stream(open_shards(str(folder(tmp_path / "x", a=content)))).items())


def test_thousands_of_nested_headers_are_a_broken_shard(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    with pytest.raises(VitreousError, match=r"a\.tar: not a tar file"):
        list(stream(open_shards(str(folder(tmp_path / "x", a=(info.tobuf() + b"a" + bytes(511)) * 5000)))).items())


# Far away -----------------------------------------------------------------------------------------------------------------


class FlakyFile(io.BytesIO):
    """Gives so many bytes, then fails with an error that is no OSError."""

    def __init__(self, content: bytes, budget: int, can_seek: bool) -> None:
        super().__init__(content)
        self.size, self._budget, self._can_seek = len(content), budget, can_seek

    def seek(self, offset: int, whence: int = 0) -> int:
        if not self._can_seek:
            raise ValueError("cannot seek")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        if self._budget <= 0:
            raise RuntimeError("the line went dead")
        data = super().read(min(self._budget, size if size is not None and size >= 0 else self._budget))
        self._budget -= len(data)
        return data


class FlakyFileSystem(MemoryFileSystem):
    """What lies in memory://, each opening of a shard with the next budget of bytes; the last stays."""

    protocol = "flaky"
    budgets: list[int]
    can_seek = True
    opened = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("flaky://", "memory://"))

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        content = self.store[path].getvalue()
        if not path.endswith(".tar"):
            return io.BytesIO(content)
        type(self).opened += 1
        budget = self.budgets.pop(0) if len(self.budgets) > 1 else self.budgets[0]
        return FlakyFile(content, budget, self.can_seek)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[FlakyFileSystem]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    for name, value in (("budgets", [1 << 30]), ("can_seek", True), ("opened", 0)):
        monkeypatch.setattr(FlakyFileSystem, name, value, raising=False)
    fsspec.filesystem("memory").pipe("/d/index.json", json.dumps({"classes": CLASSES}).encode())
    return FlakyFileSystem


@pytest.mark.parametrize("can_seek", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_dropped_line_is_taken_up_again_without_loss_or_repetition(
    flaky: type[FlakyFileSystem], can_seek: bool, packed: bool
) -> None:
    whole = tar(samples(20))
    content = gzip.compress(whole, mtime=0) if packed else whole
    fsspec.filesystem("memory").pipe("/d/a.tar", content)
    flaky.can_seek = can_seek
    third = len(content) // 3
    # Without seeking, what came already is passed over; the third opening does not get as far and brings nothing new.
    flaky.budgets = [third, third, 7, 1 << 30] if can_seek else [third, 2 * third, 7, 1 << 30]
    items = list(stream(open_shards("flaky://d/a.tar")).items())
    assert [item.content for item in items] == [make_image(n) for n in range(20)]
    assert [item.labels for item in items] == [(n % 3,) for n in range(20)]
    assert flaky.opened == 4


def test_retries_are_counted_between_megabytes_not_over_the_whole(
    flaky: type[FlakyFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_bytes, "_ENOUGH", 5_000)
    monkeypatch.setattr(shard_bytes, "RETRIES", 1)
    fsspec.filesystem("memory").pipe("/d/a.tar", tar(samples(20)))
    flaky.budgets = [5_000]
    assert len(list(stream(open_shards("flaky://d/a.tar")).items())) == 20
    assert flaky.opened > 5


def test_a_dead_line_is_named_after_the_retries(flaky: type[FlakyFileSystem], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_bytes, "RETRIES", 2)
    fsspec.filesystem("memory").pipe("/d/a.tar", tar(samples(20)))
    flaky.budgets = [25_000, 0]
    found = stream(open_shards("flaky://d/a.tar"))
    with pytest.raises(VitreousError, match=r"flaky://d/a\.tar: cannot be read \(the line went dead; tried 3 times\)"):
        list(found.items())
    flaky.budgets = [25_000, 0]
    found = stream(open_shards("flaky://d/a.tar", bad_shards="skip"))
    items = list(found.items())
    assert [item.content for item in items] == [make_image(n) for n in range(len(items))]
    assert 0 < len(items) < 20
    assert [s.delivered for s in found.skipped] == [len(items)]


def test_shards_in_a_file_system_of_fsspec(tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "out", shard_bytes=9000)
    expected = seen(stream(open_shards(str(tmp_path / "out")), "train").items())
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "out").iterdir():
        memory.pipe(f"/bucket/{path.name}", path.read_bytes())
    for pattern in ("memory://bucket", "memory://bucket/", "memory://bucket/*.tar", "memory://bucket/train-*.tar"):
        dataset = open_shards(pattern)
        assert dataset.classes == CLASSES
        assert seen(stream(dataset, "train").items()) == expected
        assert stream(dataset, "train").count() == 30
    again = pickle.loads(pickle.dumps(stream(open_shards("memory://bucket"), "train")))
    assert seen(again.items()) == expected


def test_far_and_large_shards_are_not_fetched_for_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/b/a.tar", tar(samples(4)))
    dataset = open_shards("memory://b/*.tar")
    assert (dataset.classes, stream(dataset).count()) == (("0", "1", "2"), 4)
    monkeypatch.setattr(shards, "SCAN_BYTES", 5000)
    with pytest.raises(VitreousError, match=r'put an index\.json with \{"classes"'):
        open_shards("memory://b/*.tar")
    fsspec.filesystem("memory").pipe("/b/index.json", json.dumps({"classes": CLASSES}).encode())
    assert stream(open_shards("memory://b/*.tar")).count() is None


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; each path's first answers are cut off after `server.cut` bytes, `server.cuts` times."""

    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.ranges.append((path, self.headers.get("Range")))
        if self.server.busy.get(path, 0) > 0:
            self.server.busy[path] -= 1
            self.send_error(503)
            return
        if path not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[path]
        begin = 0
        if self.server.honour_ranges and (wanted := self.headers.get("Range")):
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        body = content[begin:]
        if self.server.cuts.get(path, 0) > 0:
            self.server.cuts[path] -= 1
            body = body[: self.server.cut]
            if self.server.replace_after_cut:
                self.server.files[path] = content[:-1] + b"x"
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, int] = {}
        self.busy: dict[str, int] = {}
        self.cut, self.honour_ranges, self.replace_after_cut = 7_000, True, False
        self.ranges: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize("honour_ranges", [True, False])
def test_over_http_with_dropped_connections(server: Server, honour_ranges: bool) -> None:
    content = tar(samples(20))
    server.files = {"/s/train-0.tar": content, "/s/train-1.tar": tar(samples(5, 20))}
    server.files["/s/index.json"] = json.dumps({"classes": CLASSES}).encode()
    server.cuts, server.honour_ranges = {"/s/train-0.tar": 2}, honour_ranges
    server.busy = {"/s/train-1.tar": 2, "/s/index.json": 1}
    dataset = open_shards(f"{server.url}/s/train-{{0..1}}.tar?signature=secret")
    assert "secret" not in dataset.where
    found = stream(dataset, "train")
    items = list(found.items())
    assert [item.content for item in items] == [make_image(n) for n in range(25)]
    assert items[24].id == "train-1.tar/0024"
    assert "secret" not in items[24].place
    asked = [wanted for path, wanted in server.ranges if path == "/s/train-0.tar"]
    assert asked == [None, "bytes=7000-", "bytes=14000-" if honour_ranges else "bytes=7000-"]


def test_over_http_what_is_missing_changed_or_down(server: Server) -> None:
    server.files = {"/s/a.tar": tar(samples(20)), "/s/index.json": json.dumps({"classes": CLASSES}).encode()}
    for pattern, why in (("/s/b.tar", "b.tar: no such file"), ("/s/{a,b}.tar", "b.tar: no such file")):
        with pytest.raises(VitreousError, match=why):
            list(stream(open_shards(server.url + pattern)).items())
    server.busy = {"/s/a.tar": 99}
    with pytest.raises(VitreousError, match=r"a\.tar: cannot be read .*503.*tried 4 times"):
        list(stream(open_shards(f"{server.url}/s/a.tar")).items())
    server.busy, server.cuts, server.replace_after_cut = {}, {"/s/a.tar": 1}, True
    with pytest.raises(VitreousError, match="was changed while it was read"):
        list(stream(open_shards(f"{server.url}/s/a.tar")).items())


def test_a_folder_over_http_by_its_index(server: Server, tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "out", shard_bytes=9000)
    server.files = {f"/deep/er/{path.name}": path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for url in (f"{server.url}/deep/er", f"{server.url}/deep/er/"):
        found = stream(open_shards(url), "train")
        assert found.count() == len(list(found.items())) == 30


def test_a_stream_survives_pickling_and_holds_nothing_open(tmp_path: Path) -> None:
    write_shards(listed(), tmp_path / "out", shard_bytes=9000)
    found = stream(open_shards(str(tmp_path / "out")), "train")
    begun = found.read(0)
    next(begun)
    again = pickle.loads(pickle.dumps(found))
    assert seen(again.items()) == seen(found.items())
    assert (again.split, again.classes, again.lengths) == (found.split, found.classes, found.lengths)
