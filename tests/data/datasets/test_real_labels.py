"""ReaL labels: the original file, and what is not."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.real_labels import apply_real_labels, read_real_labels
from vitreous.data.source import Source
from vitreous.data.sources.arrays import Arrays
from vitreous.data.sources.relabelled import Relabelled

THOUSAND = tuple(f"class {number}" for number in range(1000))


def images(ids: list[str], classes: tuple[str, ...] = THOUSAND) -> Source:
    pixels = np.arange(len(ids), dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    return Arrays("imagenet", "validation", classes, pixels, np.zeros(len(ids)), ids)


def test_the_original_file() -> None:
    """timm carries a copy of it; the figures are those of the literature."""
    import timm.data

    labels = read_real_labels(Path(timm.data.__file__).parent / "_info" / "imagenet_real_labels.json")
    assert len(labels) == 50_000
    assert sum(bool(several) for several in labels) == 46_837
    assert sum(map(len, labels)) == 57_553


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([[1], []], "2 entries, where the ReaL labels have 3"),
        ({"a": [1]}, "no list"),
        ([[1], [], [1000]], r"entry 3 is \[1000\]"),
        ([[1], [-1], []], "entry 2"),
        ([[1], [True], []], "entry 2"),
        ([[1], [1.0], []], "entry 2"),
        ([[1], 5, []], "entry 2 is 5"),
    ],
)
def test_other_files(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    path.write_text(json.dumps(content))
    with pytest.raises(VitreousError, match=said) as caught:
        read_real_labels(path, 3)
    assert str(caught.value).startswith(str(path))


def test_files_that_are_no_json(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"[[1], [", b"\xff\xfe", b"[" * 100_000)):
        path = tmp_path / f"{number}.json"
        path.write_bytes(content)
        with pytest.raises(VitreousError, match=r"original real\.json"):
            read_real_labels(path)
    with pytest.raises(VitreousError, match=r"gone\.json: cannot be read"):
        read_real_labels(tmp_path / "gone.json")


def test_labels_follow_the_number_in_the_name_whatever_the_order(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[number % 1000] if number % 7 else [] for number in range(50_000)]))
    ids = ["val/n01/ILSVRC2012_val_00000012.JPEG", "val/ILSVRC2012_val_00000008.JPEG", "val/n02/ILSVRC2012_val_00050000.JPEG"]
    found = apply_real_labels(images(ids), path)
    assert [found.labels(index) for index in range(3)] == [(11,), (), (999,)]
    assert found.targets().tolist() == [11, -1, 999]
    assert [item.id for item in found.items()] == ids
    for wrong in ("val/1.jpg", "val/ILSVRC2012_val_00050001.JPEG", "val/ILSVRC2012_val_00000000.JPEG"):
        with pytest.raises(VitreousError, match="not one of ImageNet's validation images"):
            apply_real_labels(images([wrong]), path)
    with pytest.raises(VitreousError, match="1,000 classes, not 10"):
        apply_real_labels(images(ids, THOUSAND[:10]), path)


def test_other_labels_for_the_same_items() -> None:
    source = images(["a", "b", "c", "d"], ("x", "y", "z"))
    found = Relabelled(source, [(2, 0), (), (1,), (2,)])
    assert [found.labels(index) for index in range(4)] == [(2, 0), (), (1,), (2,)]
    assert found.targets().tolist() == Source.targets(found).tolist() == [2, -1, 1, 2]
    assert found.counts().tolist() == Source.counts(found).tolist() == [1, 1, 2]
    assert np.array_equal(found.read(3), source.read(3))
    assert found.fingerprint() != source.fingerprint()
    assert pickle.loads(pickle.dumps(found)).labels(0) == (2, 0)
    with pytest.raises(VitreousError, match="3 labels for 4 images"):
        Relabelled(source, [(0,), (1,), (2,)])
    with pytest.raises(VitreousError, match="label 3 of 3 classes"):
        Relabelled(source, [(0,), (3,), (2,), ()])
    assert len(Relabelled(images([]), [])) == 0
    assert Relabelled(images([]), []).targets().tolist() == []
