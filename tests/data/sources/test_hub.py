"""Hugging Face data sets, offline: saved to disk, parquet files, folders of images."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.data.source import Source
from vitreous.data.sources.hub import open_hub
from vitreous.data.transforms.decode import BadImage, decode

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def split(count: int, label: Any = None, first: int = 0, **columns: Any) -> datasets.Dataset:
    label = label or datasets.ClassLabel(names=CLASSES)
    data: dict[str, Any] = {
        "image": [{"bytes": png(first + n), "path": None} for n in range(count)],
        "label": [(2 * n + 1) % 3 for n in range(count)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": label})
    for name, (values, feature) in columns.items():
        data[name] = values
        features[name] = feature
    return datasets.Dataset.from_dict(data, features=features)


def source(data: Any, name: str) -> Source:
    found = data.source(name)
    assert isinstance(found, Source)
    return found


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_a_directory(form: str, tmp_path: Path) -> None:
    made = datasets.DatasetDict({"test": split(4, first=50), "train": split(7)})
    if form == "saved":
        made.save_to_disk(str(tmp_path / "data"))
    else:
        (tmp_path / "data").mkdir()
        for name, part in made.items():
            part.to_parquet(str(tmp_path / "data" / f"{name}-00000-of-00001.parquet"))
    data = open_hub(f"hf:{tmp_path / 'data'}")
    assert data.classes == ("ant", "bee", "cat")
    assert list(data.splits) == ["train", "test"]
    train = source(data, "train")
    for index, row in enumerate(made["train"]):  # decoded by the library itself
        item = train[index]
        assert isinstance(item.content, bytes)
        assert np.array_equal(np.asarray(decode(item.content)), np.asarray(row["image"]))
        assert item.labels == (row["label"],)
        assert item.id == f"train/{index:06d}"
    assert train.targets().tolist() == made["train"]["label"][:]
    assert train.counts().tolist() == [2, 3, 2]
    sent = pickle.dumps(train)
    assert pickle.loads(sent)[6].content == png(6)
    assert source(data, "test")[3].content == png(53)
    with pytest.raises(IndexError):
        source(data, "test").parent.table[4]  # type: ignore[attr-defined]


def test_one_split_saved_by_itself(tmp_path: Path) -> None:
    split(3).save_to_disk(str(tmp_path / "data"))
    assert list(open_hub(f"hf:{tmp_path / 'data'}").splits) == ["train"]


def test_a_folder_of_images_whose_files_are_read_where_they_lie(tmp_path: Path) -> None:
    for part in ("train", "validation"):
        for number, name in enumerate(CLASSES):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            (tmp_path / "data" / part / name / "1.png").write_bytes(png(number + 10 * (part == "train")))
    data = open_hub(f"hf:{tmp_path / 'data'}")
    assert list(data.splits) == ["train", "validation"]
    assert [(item.labels, item.content) for item in source(data, "train").items()] == [((n,), png(10 + n)) for n in range(3)]
    (tmp_path / "data" / "train" / "ant" / "1.png").unlink()
    with pytest.raises(BadImage, match="train/000000"):
        source(data, "train").read(0)


def test_other_labels(tmp_path: Path) -> None:
    several = datasets.List(datasets.ClassLabel(names=CLASSES))
    made = split(3, label=datasets.Value("string")).remove_columns("label")
    variants = {
        "several": (several, [[0, 2], [], [1]], ("ant", "bee", "cat"), [(0, 2), (), (1,)]),
        "words": (datasets.Value("string"), ["dog", "cow", None], ("cow", "dog"), [(1,), (0,), ()]),
        "numbers": (datasets.Value("int64"), [30, 10, 30], ("10", "30"), [(1,), (0,), (1,)]),
        "unknown": (datasets.ClassLabel(names=CLASSES), [2, -1, 0], ("ant", "bee", "cat"), [(2,), (), (0,)]),
    }
    for name, (feature, values, classes, labels) in variants.items():
        made.add_column("label", values, feature=feature).save_to_disk(str(tmp_path / name))
        data = open_hub(f"hf:{tmp_path / name}")
        assert data.classes == classes
        found = source(data, "train")
        assert [found.labels(index) for index in range(3)] == labels
        assert found.targets().tolist() == [several[0] if several else -1 for several in labels]
        assert found.counts().sum() == sum(map(len, labels))
    made.save_to_disk(str(tmp_path / "none"))
    data = open_hub(f"hf:{tmp_path / 'none'}")
    assert (data.classes, source(data, "train").labels(0)) == ((), ())
    assert data.notes == (f"hf:{tmp_path / 'none'}: no column of labels",)


def test_the_column_of_labels_can_be_chosen(tmp_path: Path) -> None:
    coarse = ([0, 1, 0], datasets.ClassLabel(names=["small", "large"]))
    split(3, coarse=coarse).rename_column("label", "fine").save_to_disk(str(tmp_path / "data"))
    address = f"hf:{tmp_path / 'data'}"
    with pytest.raises(VitreousError, match=r"several columns of labels \(fine, coarse\); choose one with #fine"):
        open_hub(address)
    assert open_hub(f"{address}#coarse").classes == ("small", "large")
    assert open_hub(f"{address}#fine").classes == tuple(CLASSES)
    with pytest.raises(VitreousError, match="'corse'; did you mean 'coarse'"):
        open_hub(f"{address}#corse")
    with pytest.raises(VitreousError, match="column 'image' holds neither classes"):
        open_hub(f"{address}#image")


def test_a_table_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(1))
    plain = datasets.Features({"image": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}})
    rows = {"image": [{"bytes": None, "path": str(tmp_path / "secret.png")}, {"bytes": None, "path": None}]}
    made = datasets.Dataset.from_dict(rows, features=plain).cast_column("image", datasets.Image())
    (tmp_path / "data").mkdir()
    pq.write_table(made.data.table, tmp_path / "data" / "train.parquet")  # the library's own writers would put the file in
    found = source(open_hub(f"hf:{tmp_path / 'data'}"), "train")
    with pytest.raises(BadImage, match="instead of holding the image; refused"):
        found.read(0)
    with pytest.raises(BadImage, match="has no image"):
        found.read(1)


def test_code_in_a_directory_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(VitreousError, match="cannot be opened"):
        open_hub(f"hf:{tmp_path / 'data'}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["hf:", "hf:a/b/c", "hf:../x", "hf:a b", "hf:a/b:c:d"])
def test_addresses_that_are_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where nothing lies that could be meant
    with pytest.raises(VitreousError, match=r"expected hf:OWNER/NAME\[:CONFIG\]"):
        open_hub(text)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("hf:uoft-cs/cifar10", ("uoft-cs/cifar10", None, None)),
        ("hf:mnist", ("mnist", None, None)),
        ("hf:ufldl-stanford/svhn:cropped_digits", ("ufldl-stanford/svhn", "cropped_digits", None)),
        ("hf:a/b:c@refs/pr/1#label", ("a/b", "c", "refs/pr/1")),
        ("hf:a/b@v1", ("a/b", None, "v1")),
    ],
)
def test_what_the_library_is_asked_for(text: str, asked: tuple[str, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(path: str, name: str | None = None, revision: str | None = None) -> Any:
        calls.append((path, name, revision))
        return datasets.DatasetDict({"train": split(3), "valid": split(2)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(open_hub(text).splits) == ["train", "validation"]
    assert calls == [asked]


def test_what_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitreousError) as caught:
        open_hub("hf:nobody/nothing")
    assert "hf:nobody/nothing: cannot be opened" in str(caught.value)
    assert "\n" not in str(caught.value)
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(tmp_path / "text"))
    with pytest.raises(VitreousError, match="no column of images, only text"):
        open_hub(f"hf:{tmp_path / 'text'}")
    split(3).save_to_disk(str(tmp_path / "broken"))
    next((tmp_path / "broken").glob("*.arrow")).write_bytes(b"cut")
    with pytest.raises(VitreousError, match="cannot be opened"):
        open_hub(f"hf:{tmp_path / 'broken'}")


def test_without_the_library_or_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(VitreousError, match=r"may run code.*pip install -U 'vitreous\[hub\]'"):
        open_hub("hf:a/b")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(VitreousError, match=r"pip install 'vitreous\[hub\]'"):
        open_hub("hf:a/b")
