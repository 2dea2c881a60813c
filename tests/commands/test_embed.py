"""`vitreous embed`: features of every image in every format, the same bytes after a kill, nothing half-written."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from embedding import embed, make_world
from vitreous.cli import main
from vitreous.data.shards.writer import write_shards
from vitreous.inference import feature_export
from vitreous.inference.embed_run import PartialFile
from vitreous.inference.feature_file import FeatureFile
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_world(tmp_path, monkeypatch)


def test_every_image_of_every_split_in_the_order_of_the_data(world: Path) -> None:
    found = vitreous.embed("tiny", "photos", "f.safetensors", batch_size=2, workers=0)
    file, clf = found.open(), vitreous.load("tiny")
    assert (found.images, found.shape, found.exit_code, file.splits) == (15, (12,), 0, {"train": 10, "test": 5})
    dataset = vitreous.open_data("photos")
    items = [item for split in file.splits for item in dataset.source(split).items()]
    assert [file.id(row) for row in range(15)] == [item.id for item in items]
    assert [file.labels(row) for row in range(15)] == [item.labels for item in items]
    assert file.numbers.tolist() == [*range(10), *range(5)]
    expected = clf.features([world / "photos" / item.id for item in items]).numpy()
    np.testing.assert_allclose(file.values, expected, atol=1e-5)
    assert file.about["checkpoint"] == "tiny"
    assert sorted(path.name for path in world.iterdir()) == ["f.safetensors", "other", "photos", "tiny"]


@pytest.mark.parametrize("options", [["--pool", "token"], ["--pool", "mean"], ["--tokens"]])
def test_tokens_are_those_of_the_encoder(options: list[str], world: Path) -> None:
    assert embed(*options) == 0
    clf, file = vitreous.load("tiny"), FeatureFile(world / "f.safetensors")
    images = clf.prepare([world / "photos" / file.id(row) for row in range(15)])
    with torch.no_grad():
        z = clf.model.norm(clf.model.tokens(images))  # type: ignore[union-attr]
    expected = {"token": z[:, 0], "mean": z[:, 1:].mean(dim=1), "--tokens": z[:, 1:]}[options[-1]]
    np.testing.assert_allclose(file.values, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("format", ["safetensors", "csv"])
def test_killed_anywhere_it_resumes_and_gives_the_same_bytes(
    format: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"f.{format}"
    assert embed(out=f"whole.{format}") == 0
    real, ran = PartialFile.append, []

    def killed(self: PartialFile, *args: Any) -> None:
        if len(ran) % 2:
            with self.path.open("ab") as file, self.journal.open("ab") as journal:
                file.write(b"features of a segment")  # whose line was cut by the kill
                journal.write(b'{"split": "tr')
            ran.append(0)
            raise KeyboardInterrupt
        ran.append(1)
        real(self, *args)

    monkeypatch.setattr(PartialFile, "append", killed)
    codes = [embed(out=out) for _ in range(6)]
    assert codes[0] == 130
    assert codes[-1] == 0
    assert sum(ran) == 5  # segments of 4 images: each was computed once and kept
    assert (world / out).read_bytes() == (world / f"whole.{format}").read_bytes()
    assert "resuming after 4 images" in capsys.readouterr().err
    assert not list(world.glob("*.part*"))
    assert embed(out=out) == 0
    assert "finished before, nothing to do: 15 images" in capsys.readouterr().out


def test_shards(world: Path) -> None:
    write_shards(vitreous.open_data("photos"), world / "shards", shard_bytes=1000)
    assert embed() == 0
    words = ["--out", "s.safetensors", "--workers", "0", "--batch-size", "2"]
    assert main(["embed", "tiny", "shards", *words]) == 0
    plain, shards = FeatureFile(world / "f.safetensors"), FeatureFile(world / "s.safetensors").load()
    items = [item for split in ("train", "test") for item in vitreous.open_data("shards").source(split).items()]
    assert (shards.ids, shards.labels) == (tuple(item.id for item in items), tuple(item.labels for item in items))
    assert shards.numbers.tolist() == [*range(10), *range(5)]
    rows = [plain.find(id.partition("/")[2] + ".png") for id in shards.ids]
    np.testing.assert_allclose(shards.values, plain.values[rows], atol=1e-5)


def test_formats_of_other_tools(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_export, "_BLOCK", 4)
    assert embed() == 0
    file = FeatureFile(world / "f.safetensors")
    assert embed("--format", "npy", out="f.npy") == 0
    assert np.array_equal(np.load(world / "f.npy"), file.values)
    known = [[file.id(row), file.split(row), "|".join(file.label_names(row))] for row in range(15)]
    with (world / "f.npy.rows.csv").open() as text:
        assert [*csv.reader(text)] == [["id", "split", "labels"], *known]
    assert embed(out="f.csv") == 0
    with (world / "f.csv").open() as text:
        rows = [*csv.reader(text)][1:]
    assert [row[:3] for row in rows] == known
    assert np.array_equal(np.array([row[3:] for row in rows], np.float32), file.values)


def test_parquet(world: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert embed() == 0
    assert embed(out="f.parquet") == 0
    file, rows = FeatureFile(world / "f.safetensors"), parquet.read_table(world / "f.parquet").to_pylist()
    assert [row["id"] for row in rows] == [file.id(row) for row in range(15)]
    assert [row["labels"] for row in rows] == [[*file.label_names(row)] for row in range(15)]
    assert np.array_equal(np.array([row["features"] for row in rows], np.float32), file.values)


def test_bad_images_stop_or_are_counted(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "photos" / "test" / "cat" / "02.png").write_bytes(b"no image")
    assert embed() == 2
    assert "02.png" in capsys.readouterr().err
    assert embed("--bad-images", "skip") == 0
    assert "14 images, 12 features each; 1 could not be read" in capsys.readouterr().out
    assert len(FeatureFile(world / "f.safetensors").bad) == 1


def test_refused_in_one_line_and_nothing_is_written(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(code: int, *said: str) -> None:
        printed = capsys.readouterr()
        assert code == 2
        assert all(word in printed.err.splitlines()[-1] for word in said), printed.err
        assert not list(world.glob("f.*"))

    refused(embed(out="photos/f.safetensors"), "--out photos/f.safetensors: lies inside the data")
    refused(embed(out="f"), "--out f: give --format")
    refused(embed(out="photos"), "is a folder")
    refused(embed("--tokens", out="f.csv"), "--tokens: a row of csv has room for one vector")
    refused(embed("--tokens", "--pool", "mean"), "leave one out")
    monkeypatch.setattr(feature_export.importlib.util, "find_spec", lambda name: None)
    refused(embed(out="f.parquet"), "pip install pyarrow")
    (world / "empty").mkdir()
    refused(main(["embed", "tiny", "empty", "--out", "f.npy"]), "empty", "no image")
    broken = random_checkpoint("ViT-Ti/4", width=12, depth=1, heads=3, mlp=24, image_size=8, classes=2)
    broken.tensors["norm.weight"].fill_(3e38)  # finite, but it overflows
    write_checkpoint(broken, world / "broken")
    refused(embed(checkpoint="broken"), "broken: the features of train/cat/00.png are not finite")


def test_another_commands_file_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed() == 0
    before = (world / "f.safetensors").read_bytes()
    assert embed(checkpoint="other") == 2
    assert "belongs to another command (weights" in capsys.readouterr().err
    assert (world / "f.safetensors").read_bytes() == before
    (world / "mine.csv").write_text("precious")
    assert embed(out="mine.csv") == 2
    assert "is none of ours" in capsys.readouterr().err
    (world / "mine.safetensors").write_text("precious")
    assert embed(out="mine.safetensors") == 2
    assert "not a file of features" in capsys.readouterr().err
