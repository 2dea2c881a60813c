"""`vitreous fewshot --save`: the head that is measured is the checkpoint that is written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.classifier import Classifier
from vitreous.cli import main

from conftest import random_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    sizes = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1, representation=60)
    made = random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **sizes)
    Classifier(dataclasses.replace(made, outputs="sigmoid")).save(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


def photos(path: Path, **counts: dict[str, int]) -> str:
    """Images of each class around a shade of its own."""
    rng = np.random.default_rng(0)
    for split, classes in counts.items():
        for name, count in classes.items():
            (path / split / name).mkdir(parents=True)
            for number in range(count):
                shade = 30 + 50 * (ord(name[0]) - ord("a"))
                pixels = np.clip(rng.normal(shade, 25, (9, 12)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(path / split / name / f"{number}.png")
    return str(path)


def test_what_was_measured_is_what_was_saved(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = tmp_path / "head"
    words = ["fewshot", checkpoint, "builtin:digits", "--shots", "all", "--workers", "0", "--save", str(head)]
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (result,), saved = record["results"], record["saved"]
    assert sorted(path.name for path in head.iterdir()) == [
        "README.md", "features.safetensors", "model.json", "model.safetensors",
    ]  # fmt: skip
    document = json.loads((head / "model.json").read_text())
    assert document["head"] | {"folder": str(head), "classes": document["classes"]} == {
        name: saved[name] for name in saved if name not in ("ece", "confidence")
    }
    described = document["head"]
    assert (described["fit"], described["calibration"]) == ("ridge", "leave-one-out temperature")
    assert (described["l2"], described["left_out"], described["n_train"]) == (result["l2"], result["left_out"], 1097)
    assert (described["preprocess"], described["shots"], described["seed"]) == ("resize(8,bilinear)|range(-1,1)", "all", None)
    assert document["outputs"] == "softmax"  # of the new labels; the old head had sigmoid outputs
    assert document["architecture"]["representation"] == 60  # features are taken behind it
    assert document["parent"]["source"] == checkpoint
    assert "leave-one-out temperature" in (head / "README.md").read_text()

    found = vitreous.evaluate(head, "builtin:digits", workers=0)
    (measured,) = found.records()
    assert measured["top1"] == pytest.approx(result["accuracy"], abs=1e-9)
    assert measured["ece"] == pytest.approx(saved["ece"], abs=1e-5)
    assert measured["ece"] < 0.1
    assert main(["fewshot", checkpoint, "builtin:digits", "--shots", "all", "--workers", "0", "--save", str(head)]) == 0
    assert "calibrated by a leave-one-out temperature" in capsys.readouterr().out


def test_a_subset_is_the_first_seeds_and_the_string_is_kept(checkpoint: str, tmp_path: Path) -> None:
    data = photos(tmp_path / "x", train=dict(a=9, b=9), test=dict(a=4, b=4))
    string = "resize(10,bilinear)|central_crop(8)|range(-1,1)"
    options = dict(shots="5", seeds=2, seed=3, preprocess=string, workers=0)
    found = vitreous.fewshot(checkpoint, data, save=str(tmp_path / "head"), **options)  # type: ignore[arg-type]
    clf = vitreous.load(tmp_path / "head")
    described = clf.checkpoint.head
    assert (described["shots"], described["seed"], described["n_train"]) == (5, 3, 10)
    assert described["left_out"] == found.rounds[0].left_out
    assert str(clf.preprocess) == described["preprocess"] == string
    assert clf.predict(str(next((tmp_path / "x" / "test" / "b").iterdir()))).classes[0] == "b"


def test_the_head_travels_with_conversion_and_goes_with_a_new_one(checkpoint: str, tmp_path: Path) -> None:
    data = photos(tmp_path / "x", train=dict(a=4, b=4), test=dict(a=2, b=2))
    vitreous.fewshot(checkpoint, data, shots="all", save=str(tmp_path / "head"), workers=0)
    clf = vitreous.load(tmp_path / "head")
    clf.save(tmp_path / "copy")
    assert vitreous.load(tmp_path / "copy").checkpoint.head == clf.checkpoint.head
    assert not vitreous.load(tmp_path / "head", classes=3).checkpoint.head


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shots", "1,2"], "--save: a head is fitted to one number of --shots"),
        (["--shots", "1"], "--save: a head is fitted to one number of --shots, of 2 or more"),
        (["--save", "DATA/train/head"], "lies inside the data"),
        (["--save", "DATA"], "lies inside the data"),
        (["--save", "full"], "--save full: holds other files ('notes.txt'), which would be lost"),
        (["--save", "checkpoint"], "--save checkpoint: holds other files"),  # a checkpoint that was trained
    ],
)
def test_refusals(
    words: list[str],
    message: str,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = photos(tmp_path / "x", train=dict(a=4, b=4), test=dict(a=2, b=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    words = [word.replace("DATA", data) for word in words]
    own = words if "--save" in words else [*words, "--save", "head"]
    assert main(["fewshot", checkpoint, data, "--workers", "0", *own]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "head").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_classes_with_one_image_and_broken_features(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    data = photos(tmp_path / "x", train=dict(a=1, b=1), test=dict(a=2, b=2))
    assert main(["fewshot", checkpoint, data, "--workers", "0", "--save", str(head)]) == 2
    assert "class 'a' has 1 training image; a head that is saved needs 2 or more" in capsys.readouterr().err.replace("\n", " ")
    data = photos(tmp_path / "y", train=dict(a=3, b=3), test=dict(a=2, b=2))
    clf = vitreous.load(checkpoint)
    clf.model.embedding.weight.data.fill_(1e38)  # type: ignore[union-attr]  # finite, unlike what comes out
    clf.save(tmp_path / "broken")
    assert main(["fewshot", str(tmp_path / "broken"), data, "--workers", "0", "--save", str(head)]) == 2
    assert "features that are not finite" in capsys.readouterr().err.replace("\n", " ")
    assert not head.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
