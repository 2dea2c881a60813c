"""`vitreous choose`: a manifest to fill in, a page, JSON; images that are labelled already are passed over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous
from embedding import make_world
from vitreous.cli import main


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_world(tmp_path, monkeypatch)
    monkeypatch.setenv("VITREOUS_CACHE", str(folder / "cache"))
    rng = np.random.default_rng(7)
    (folder / "pool").mkdir()
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(folder / "pool" / f"{number:02}.png")
    return folder


def choose(*words: str, data: str = "photos", pool: str = "pool") -> int:
    own = [data] if data else []
    return main(["choose", "tiny", *own, "--unlabelled", pool, "--workers", "0", "--device", "cpu", *words])


def test_the_manifest_is_labelled_and_becomes_data(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("--count", "4", "--out", "lists/next.csv") == 0
    out = capsys.readouterr().out
    assert "4 of 12 images, by combined; 10 are labelled already" in out
    lines = (world / "lists" / "next.csv").read_text().splitlines()
    assert lines[0] == "path,label,split"
    assert len(lines) == 5
    page = (world / "lists" / "next.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    labelled = [lines[0], *(line.replace(",,", f",{('cat', 'dog')[n % 2]},") for n, line in enumerate(lines[1:]))]
    (world / "lists" / "next.csv").write_text("\n".join(labelled))
    dataset = vitreous.open_data("lists/next.csv")
    assert dataset.classes == ("cat", "dog")
    assert all(len(item.content) for source in dataset.splits.values() for item in source.items())
    # The next round passes over them.
    assert choose("--count", "8", "--out", "second.csv", data="lists/next.csv") == 0
    assert "8 of 8 images" in capsys.readouterr().out
    assert choose("--count", "9", data="lists/next.csv") == 2
    assert "--count 9: pool has 8 images without a label; choose fewer" in capsys.readouterr().err


def test_json_and_python(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("--count", "3", "--strategy", "uncertainty", "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert set(records[0]) == {"id", "path", "classes", "probabilities", "margin"}
    assert [record["margin"] for record in records] == sorted(record["margin"] for record in records)
    assert records[0]["margin"] == pytest.approx(records[0]["probabilities"][0] - records[0]["probabilities"][1], abs=1e-6)
    found = vitreous.choose("tiny", "photos", unlabelled="pool", count=3, strategy="uncertainty", workers=0)
    assert [image.id for image in found.images] == [record["id"] for record in records]


def test_another_engine_chooses_the_same(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = []
    for engine in ("torch", "onnx"):
        assert choose("--count", "3", "--json", "--no-cache", "--engine", engine) == 0
        captured = capsys.readouterr()
        ids.append([json.loads(line)["id"] for line in captured.out.splitlines()])
        assert ("engine onnx" in captured.err) == (engine == "onnx")
    assert ids[0] == ids[1]
    assert choose("--count", "3", "--engine", "onnx", "--precision", "bfloat16") == 2
    assert "--engine onnx: computes in float32" in capsys.readouterr().err


def test_nothing_is_labelled_yet(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("--count", "3", "--out", "next.jsonl", data="") == 0
    assert "by diversity" in capsys.readouterr().out
    assert all(set(json.loads(line)) == {"path"} for line in (world / "next.jsonl").read_text().splitlines())
    (world / "none.csv").write_text("path,label\npool/01.png,\npool/02.png,\n")
    assert choose("--count", "12", data="none.csv") == 0  # listed without a label: not labelled
    (world / "one.csv").write_text("path,label\npool/01.png,cat\n")
    assert choose("--count", "11", data="one.csv") == 0
    assert "all labelled images are of one class" in capsys.readouterr().err


def test_test_images_are_not_chosen(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("03.png", "07.png")):
        shutil.move(world / "pool" / name, world / "photos" / "test" / ("cat", "dog")[number] / name)
        (world / "pool" / name).symlink_to(world / "photos" / "test" / ("cat", "dog")[number] / name)
    assert choose("--count", "10", "--json") == 0
    names = {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()}
    assert not names & {"03.png", "07.png"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count 0: must be at least 1"),
        (["--out", "next.html"], "--out next.html: a manifest is written; give it a name that ends in .csv"),
        (["--out", "pool/next.csv"], "lies inside the data"),
        (["--out", "old.csv"], "--out old.csv: is there already, and labels in it would be lost"),
        (["--strategy", "best"], "--strategy 'best': must be one of combined, diversity, random, uncertainty"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "old.csv").write_text("path,label\na.jpg,cat\n")
    assert choose(*words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_what_cannot_be_chosen_from_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("--strategy", "uncertainty", data="") == 2
    assert "name them as DATA" in capsys.readouterr().err
    (world / "empty").mkdir()
    assert choose(pool="empty") == 2
    assert choose("--count", "5", "--out", "next.csv", pool="builtin:digits") == 2
    assert "not files of their own" in capsys.readouterr().err
    assert not (world / "next.csv").exists()
    (world / "pool" / "05.png").write_bytes(b"\x89PNG broken")
    assert choose("--count", "5", "--out", "next.csv") == 2
    assert "05.png" in capsys.readouterr().err
    assert not (world / "next.csv").exists()
    assert choose("--count", "5", "--bad-images", "skip", "--out", "next.csv") == 0


def test_what_is_labelled_already_is_known_before_the_model_is_loaded(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(world / "tiny")
    assert choose("--count", "3", pool="photos") == 2
    assert "--unlabelled photos: every image in it has a label in photos already" in capsys.readouterr().err
    assert choose("--count", "13") == 2
    assert "--count 13: pool has 12 images without a label; choose fewer" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["photos", ""])
def test_features_that_are_not_finite_name_the_checkpoint(data: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clf = vitreous.load("tiny")
    clf.model.norm.weight.data.fill_(3e38)  # finite itself
    clf.save("tiny")
    assert choose("--count", "2", "--out", "next.csv", data=data) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "tiny: the features of" in err
    assert "are not finite" in err
    assert not (world / "next.csv").exists()
    assert not (world / "next.html").exists()
