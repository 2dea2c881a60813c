"""`vitreous fewshot --save`: the head that is measured is the checkpoint that is written."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import linear_model

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


# Adding classes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def head(checkpoint: str, tmp_path: Path) -> str:
    data = photos(tmp_path / "x", train=dict(a=6, b=6), test=dict(a=3, b=3))
    vitreous.fewshot(checkpoint, data, shots="all", save=str(tmp_path / "head"), workers=0)
    return str(tmp_path / "head")


def test_added_classes_give_the_fit_to_all_images_together(head: str, checkpoint: str, tmp_path: Path) -> None:
    more = photos(tmp_path / "more", train=dict(c=3, d=4), test=dict(c=1, d=1))
    added = vitreous.fewshot(head, add=more, save=str(tmp_path / "larger"), workers=0)
    assert added.record()["added"] == ["c", "d"]
    assert added.text().startswith("added c, d")
    clf, old = vitreous.load(tmp_path / "larger"), vitreous.load(head)
    assert clf.classes == ("a", "b", "c", "d")

    folders = [tmp_path / root / "train" / name for root, name in (("x", "a"), ("x", "b"), ("more", "c"), ("more", "d"))]
    files = [(str(path), label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    x = vitreous.load(checkpoint).features([path for path, _ in files]).double().numpy()
    targets = np.array([label for _, label in files])
    described = clf.checkpoint.head
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    rows = np.hstack([(x - mean) / std, np.full((len(x), 1), 100.0)])
    peer = linear_model.Ridge(alpha=described["l2"], fit_intercept=False).fit(rows, 2 * np.eye(4)[targets] - 1)
    images = [path for path, _ in files]
    with torch.no_grad():
        logits = torch.cat([clf.model(batch) for batch in clf.batches(images)]).double().numpy()
    assert logits * described["temperature"] == pytest.approx(peer.predict(rows), abs=1e-4)
    assert (described["n_train"], described["added"]) == (19, [more])
    assert old.classes == ("a", "b")  # the smaller one is as it was

    # The same as with all four classes from the start.
    for name in "cd":
        shutil.copytree(tmp_path / "more" / "train" / name, tmp_path / "x" / "train" / name)
        shutil.copytree(tmp_path / "more" / "test" / name, tmp_path / "x" / "test" / name)
    vitreous.fewshot(checkpoint, str(tmp_path / "x"), shots="all", save=str(tmp_path / "whole"), workers=0)
    whole = vitreous.load(tmp_path / "whole")
    assert torch.allclose(whole.model.head.weight, clf.model.head.weight, rtol=1e-3, atol=1e-4)
    for name in ("l2", "left_out", "n_train"):
        assert whole.checkpoint.head[name] == described[name]
    assert whole.checkpoint.head["temperature"] == pytest.approx(described["temperature"], rel=1e-4)


def test_a_class_after_another_and_in_place(head: str, tmp_path: Path) -> None:
    for name in "cd":
        more = photos(tmp_path / name, train={name: 2})
        vitreous.fewshot(head, add=more, save=head, workers=0)
    clf = vitreous.load(head)
    assert clf.classes == ("a", "b", "c", "d")
    assert clf.checkpoint.head["added"] == [str(tmp_path / "c"), str(tmp_path / "d")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--add", "same"], "class b is in head already; rename it"),
        (["--add", "single"], "single: class 'c' has 1 training image"),
        (["--add", "more", "--shots", "5"], "--shots has no meaning with it"),
        (["x", "--add", "more"], "DATA has no meaning with it"),
        (["--add", "more", "--l2", "joint"], "--l2 joint"),
        (["--add", "more", "--save", "x"], "--save x: holds other files"),
        ([], "DATA is missing"),
    ],
)
def test_refusals_of_added_classes(
    words: list[str],
    message: str,
    head: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, classes in (("same", dict(b=2, c=2)), ("single", dict(c=1)), ("more", dict(c=2))):
        photos(tmp_path / name, train=classes)
    before = (tmp_path / "head" / "model.json").read_bytes()
    own = words if "--save" in words or not words else [*words, "--save", "head"]
    assert main(["fewshot", "head", "--workers", "0", *own]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert (tmp_path / "head" / "model.json").read_bytes() == before


def test_only_a_saved_head_with_its_own_features_can_be_added_to(
    head: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = photos(tmp_path / "more", train=dict(c=2))
    words = ["--add", more, "--save", str(tmp_path / "larger"), "--workers", "0"]
    assert main(["fewshot", checkpoint, *words]) == 2
    assert "has no features.safetensors to fit to again" in capsys.readouterr().err.replace("\n", " ")
    features = tmp_path / "head" / "features.safetensors"
    features.write_bytes(features.read_bytes()[:-1])
    assert main(["fewshot", head, *words]) == 2
    assert "does not match model.json" in capsys.readouterr().err.replace("\n", " ")
    features.unlink()
    assert main(["fewshot", head, *words]) == 2
    assert "has no features.safetensors to fit to again" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "larger").exists()
