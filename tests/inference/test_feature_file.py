"""The file of features: any reader of safetensors understands it, rows come back as they were, damage is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

from vitreous.core.errors import VitreousError
from vitreous.inference.feature_file import FeatureFile, Features, write_features

ABOUT: dict[str, Any] = {
    "checkpoint": "runs/pets",
    "weights": "abc",
    "data": "photos",
    "folder": "/",
    "classes": ["cat", "dög"],
}


def features(count: int = 5, width: int = 3, seed: int = 0) -> Features:
    values = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    labels = tuple(((), (0,), (1, 0))[row % 3] for row in range(count))
    ids = tuple(f"train/{'x' * row}é\udce9.jpg" for row in range(count))
    return Features(values, labels, ids, np.arange(count) * 2, ("cat", "dög"), (("train/bad.jpg", "truncated"),))


def written(path: Path, found: Features) -> FeatureFile:
    write_features(path, found, ABOUT, "train")
    return FeatureFile(path)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_rows_come_back_and_other_readers_agree(count: int, tmp_path: Path) -> None:
    found = features(count)
    file = written(tmp_path / "f.safetensors", found)
    again = file.load()
    assert np.array_equal(again.values, found.values)
    assert np.array_equal(again.numbers, found.numbers)
    assert (again.ids, again.labels, again.classes, again.bad) == (found.ids, found.labels, found.classes, found.bad)
    assert (file.about, file.splits, len(file)) == (ABOUT, {"train": count}, count)
    for load in (safetensors.numpy.load_file, safetensors.torch.load_file):
        arrays = load(file.path)
        assert np.array_equal(np.asarray(arrays["features"]), found.values)
        assert np.asarray(arrays["numbers"]).tolist() == found.numbers.tolist()
    file.check_sum()


def test_an_id_is_found_by_its_whole_name(tmp_path: Path) -> None:
    found = features(5)
    file = written(tmp_path / "f.safetensors", found)
    assert [file.find(id) for id in found.ids] == [0, 1, 2, 3, 4]
    assert [file.find(id) for id in ("train/x", "xé\udce9.jpg", "other")] == [None] * 3
    assert (file.label_names(2), file.split(4)) == (("dög", "cat"), "train")


def test_patch_tokens_have_an_axis_more(tmp_path: Path) -> None:
    plain = features(2)
    tokens = Features(np.ones((2, 4, 3), np.float32), plain.labels, plain.ids, plain.numbers, plain.classes)
    assert written(tmp_path / "f.safetensors", tokens).values.shape == (2, 4, 3)


def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    content = written(path, features()).path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    ends = 8 + size + header["id_ends"]["data_offsets"][0]
    for broken in (b"", content[:5], content[: 8 + size], content[:-1], content[:ends] + b"\xff" * 8 + content[ends + 8 :]):
        path.write_bytes(broken)
        with pytest.raises(VitreousError, match=r"f\.safetensors: not a file of features, or a truncated one"):
            FeatureFile(path)
    safetensors.numpy.save_file({"weight": np.ones(3)}, path)
    with pytest.raises(VitreousError, match="not a file of features"):
        FeatureFile(path)
    with pytest.raises(VitreousError, match="no such file; `vitreous embed` makes one"):
        FeatureFile(tmp_path / "none")
    spoilt = bytearray(content)
    spoilt[8 + size] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(ValueError, match="checksum"):
        FeatureFile(path).check_sum()
