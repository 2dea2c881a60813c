"""The quick scan before training: what it names, what it passes over, and that it paints nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.bad_images import write_bad_images
from vitreous.data.open import open_data
from vitreous.data.source import Content, Item, Source, Stream, View
from vitreous.data.synthetic.rendered import Rendered
from vitreous.data.transforms.decode import BadImage
from vitreous.doctor import header_check as module
from vitreous.doctor.header_check import check_headers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, place in enumerate(("cat/0", "cat/1", "cat/2", "dog/0", "dog/1")):
        path = tmp_path / "data" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "data"


def spoil(folder: Path) -> list[tuple[str, str]]:
    data = (folder / "cat/1.png").read_bytes()
    (folder / "cat/0.png").write_bytes(b"")
    (folder / "cat/1.png").write_bytes(b"no image")
    (folder / "dog/0.png").unlink()
    (folder / "dog/1.png").write_bytes(data[: len(data) // 2])  # its header is fine: the doctor's business
    return [("empty-file", "cat/0.png"), ("not-an-image", "cat/1.png"), ("missing", "dog/0.png")]


class Hidden(View):
    """The same, but its files cannot be opened by name; one cannot be had at all."""

    def path(self, index: int) -> str | None:
        return None

    def read(self, index: int) -> Content:
        if self.id(index) == "cat/2.png":
            raise VitreousError(f"{self.place(index)}: the line\nwas cut")
        return super().read(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_headers_are_named(folder: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    source = open_data(str(folder)).source("all")
    assert isinstance(source, Source)
    assert check_headers(source, workers) == ()
    expected = spoil(folder)
    counted: list[int] = []
    bad = check_headers(source, workers, counted.append)
    places = {source.id(index): source.place(index) for index in range(len(source))}
    assert [(one.kind, one.place) for one in bad] == [(kind, places[name]) for kind, name in expected]
    assert sum(counted) == len(source)
    write_bad_images(tmp_path / "bad.jsonl", bad)
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["detail", "kind", "path"]] * 3
    hidden = check_headers(Hidden(source), workers)
    assert [(one.kind, one.place) for one in hidden] == sorted(
        [*((kind, places[name]) for kind, name in expected), ("unreadable", places["cat/2.png"])], key=lambda pair: pair[1]
    )
    assert next(one.why for one in hidden if one.kind == "unreadable") == "the line was cut"


class Shards(Stream):
    where, split, classes, shards = "shards", "train", ("x",), ("a.tar", "b.tar")

    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def read(self, shard: int) -> Iterator[Item]:
        return iter(self._items[shard::2])


def test_streams(folder: Path) -> None:
    (folder / "cat/0.png").write_bytes(b"")
    (folder / "cat/1.png").write_bytes(b"x")
    source = open_data(str(folder)).source("all")
    counted: list[int] = []
    bad = check_headers(Shards(list(source.items())), 0, counted.append)
    assert [one.kind for one in bad] == ["empty-file", "not-an-image"]
    assert counted == [3, 2]


def test_pixels_are_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def painted(*args: Any) -> Any:
        raise AssertionError("painted")

    monkeypatch.setattr(Rendered, "read", painted)
    source = open_data("builtin:shapes?count=100").source("train")
    assert isinstance(source, Source)
    assert check_headers(source) == ()
    assert check_headers(source.subset([3, 1])) == ()


def test_too_little_memory_is_not_the_fault_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*args: Any, **options: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Image, "open", exhausted)
    with pytest.raises(MemoryError):
        check_headers(open_data(str(folder)).source("all"))


def test_what_is_found_travels_between_processes(folder: Path) -> None:
    spoil(folder)
    alone, many = (check_headers(open_data(str(folder)).source("all"), workers) for workers in (0, 2))
    assert all(isinstance(one, BadImage) for one in many)
    assert [str(one) for one in alone] == [str(one) for one in many]
