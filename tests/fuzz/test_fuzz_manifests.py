"""Mutated manifests, shards and their index: read to the last item they are data or a VitreousError, within bounds."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.shards.writer import write_shards
from vitreous.data.source import Item, Policy, Source
from vitreous.data.transforms.decode import BadImage, decode

from conftest import Budget, mutate


def _images(root: Path) -> list[tuple[str, str]]:
    """Twelve small files, with their labels."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(12):
        label = ("cat", "dog", "größer, „Ü“")[number % 3]
        path = root / f"images {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).save(path)
        rows.append((str(path.relative_to(root)), label))
    return rows


def _manifests(root: Path) -> dict[str, bytes]:
    rows = [(path, label, ("train", "val", "test")[number % 3]) for number, (path, label) in enumerate(_images(root))]
    csv = "path,label,split\n" + "".join(f'{path},"{label}",{split}\n' for path, label, split in rows)
    lines = [{"path": path, "label": [label, "other"], "split": split, "note": {"deep": [1]}} for path, label, split in rows]
    return {
        "list.csv": csv.encode(),
        "list.tsv": "".join(
            f"{path}\t{label}\n" for path, label in [("path", "label"), *((p, "x") for p, _, _ in rows)]
        ).encode(),
        "list.jsonl": "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(),
    }


def _read_all(data: str, bad: Policy) -> bool:
    """Whether it is data. What cannot be read of it is said in a line, item by item where they are files."""
    try:
        dataset = open_data(data, bad_shards=bad)
        dataset.summary()
        for split in dataset.splits.values():
            for item in _each(split) if isinstance(split, Source) else split.items():
                assert all(0 <= label < len(dataset.classes) for label in item.labels)
                decode(item.content, place=item.place)
    except VitreousError as error:
        assert "\n" not in str(error)
        return False
    return True


def _each(source: Source) -> Iterator[Item]:
    source.counts()
    source.fingerprint()
    for index in range(len(source)):
        try:
            yield source[index]
        except BadImage as error:
            assert "\n" not in str(error)


def _count(cases: range, read: Callable[[random.Random], bool]) -> Counter[bool]:
    seen: Counter[bool] = Counter()
    faults = []
    for number in cases:
        try:
            with Budget():
                seen[read(random.Random(number))] += 1
        except Exception:  # all are wanted, not the first
            faults.append(f"{number}: {traceback.format_exc(limit=-4)}")
    assert not faults, f"{len(faults)} of them, the first: {faults[:3]}"
    return seen


def test_mutated_manifests(rounds: Callable[[int, int], range], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = _manifests(tmp_path)
    for name, content in good.items():
        (tmp_path / name).write_bytes(content)
        assert _read_all(str(tmp_path / name), "stop")

    def read(rng: random.Random) -> bool:
        name = rng.choice(sorted(good))
        (tmp_path / name).write_bytes(mutate(good[name], rng))
        return _read_all(str(tmp_path / name), "stop")

    seen = _count(rounds(40, 1000), read)
    assert min(seen[True], seen[False]) > 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("index", [True, False])
def test_mutated_shards(
    rounds: Callable[[int, int], range], tmp_path: Path, capfd: pytest.CaptureFixture[str], index: bool
) -> None:
    (tmp_path / "list.csv").write_bytes(_manifests(tmp_path)["list.csv"])
    write_shards(open_data(tmp_path / "list.csv").only("train"), tmp_path / "whole", shard_bytes=3000)
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    if not index:
        files = {name: content for name, content in files.items() if name.endswith(".tar")}
        first = min(files)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
            stream.write(files[first])
        files[f"{first}.gz"] = packed.getvalue()
        del files[first]
    folder = tmp_path / "damaged"

    def read(rng: random.Random) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        which = rng.choice(sorted(files))
        for name, content in files.items():
            (folder / name).write_bytes(mutate(content, rng) if name == which else content)
        return _read_all(str(folder), rng.choice(("stop", "skip")))

    seen = _count(rounds(20, 500), read)
    assert seen[True] + seen[False] > 10
    assert capfd.readouterr().err == ""
