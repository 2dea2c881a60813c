"""`vitreous fewshot` from its words to its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.classifier import Classifier
from vitreous.cli import main
from vitreous.data.open import open_data

from conftest import random_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    sizes = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1, representation=60)
    Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **sizes)).save(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


def photos(path: Path, **counts: dict[str, int]) -> str:
    rng = np.random.default_rng(0)
    for split, classes in counts.items():
        for name, count in classes.items():
            (path / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (9, 12)).astype(np.uint8)).save(path / split / name / f"{number}.png")
    return str(path)


def test_json_table_and_files(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fewshot", checkpoint, "builtin:digits", "--shots", "5,10,all", "--seeds", "2", "--workers", "0"]
    assert main([*words, "--json", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    results = record["results"]
    assert [(r["shots"], r["seed"]) for r in results] == [(5, 0), (5, 1), (10, 0), (10, 1), ("all", None)]
    assert [r["n_train"] for r in results] == [50, 50, 100, 100, 1097]
    assert {r["n_test"] for r in results} == {500}
    assert all(0.2 < r["accuracy"] < 0.95 and r["l2"] > 0 for r in results)
    assert results[-1]["accuracy"] > results[0]["accuracy"]
    assert json.loads((tmp_path / "out" / "fewshot.json").read_text()) == {"made_by": "vitreous fewshot", **record}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["fewshot.json", "learning_curve.png", "learning_curve.svg"]
    assert "validating on test" in printed.err

    assert main([*words, "--seed", "1"]) == 0
    printed = capsys.readouterr()
    assert "features of builtin:digits train" not in printed.err  # kept from the first time
    assert "a doubling of the labels" in printed.out
    assert "1,097" in printed.out


def test_the_function_says_what_the_command_does(checkpoint: str) -> None:
    found = vitreous.fewshot(checkpoint, "builtin:digits", shots="5", l2="1024", draw="first", workers=0, no_cache=True)
    (record,) = found.records()
    assert len(record["results"]) == 1
    digits = open_data("builtin:digits").source("train")
    clf = vitreous.load(checkpoint)
    targets = digits.targets()  # type: ignore[union-attr]
    rows = np.sort(np.concatenate([np.flatnonzero(targets == label)[:5] for label in range(10)]))
    test = open_data("builtin:digits").source("test")
    x, z = clf.features([digits.read(i) for i in rows]).double(), clf.features([i.content for i in test.items()]).double()
    mean, std = x.mean(dim=0), x.std(dim=0, correction=0) + 1e-5
    y = 2 * torch.eye(10).double()[targets[rows]] - 1
    weight = torch.linalg.solve(((x - mean) / std).T @ ((x - mean) / std) + 1024 * torch.eye(60), ((x - mean) / std).T @ y)
    truths = torch.tensor(test.targets())  # type: ignore[union-attr]
    named = (((z - mean) / std) @ weight).argmax(dim=1)  # balanced classes: the constant adds the same to all
    assert record["results"][0]["accuracy"] == pytest.approx(float((named == truths).double().mean()), abs=1e-9)


def test_shots_in_python(checkpoint: str) -> None:
    for shots, wanted in (((2, "all"), [2, "all"]), (3, [3])):
        found = vitreous.fewshot(checkpoint, "builtin:digits", shots=shots, seeds=1, workers=0)
        assert [point.first.shots for point in found.points] == wanted
    with pytest.raises(vitreous.VitreousError, match="--shots 0"):
        vitreous.fewshot(checkpoint, "builtin:digits", shots=[0], workers=0)


def test_several_data_sets_and_one_l2(checkpoint: str, tmp_path: Path) -> None:
    other = photos(tmp_path / "photos", train=dict(a=6, b=7), val=dict(a=4, b=4))
    found = vitreous.fewshot(checkpoint, f"builtin:digits,{other}", shots="1,5", seeds=2, l2="joint", workers=0)
    results = next(iter(found.records()))["results"]
    assert [r["data"] for r in results] == ["builtin:digits", "builtin:digits", other, other] * 2
    assert len({r["l2"] for r in results if r["shots"] == 5}) == 1
    assert any("chosen by the test images" in note for note in found.notes)
    assert found.text().count(other) >= 2
    kept = vitreous.fewshot(checkpoint, other, workers=0)
    assert [point.first.shots for point in kept.points] == [1, 5, "all"]
    assert any("class 'a'" in note and "6 training images" in note for note in kept.notes)


def test_one_split_only_is_divided_and_said(checkpoint: str, tmp_path: Path) -> None:
    found = vitreous.fewshot(checkpoint, photos(tmp_path / "x", train=dict(a=10, b=10)), shots="5", workers=0)
    assert (found.points[0].first.n_train, found.points[0].first.n_test) == (10, 6)
    assert any("held out 6 of 20" in note for note in found.notes)


def test_images_that_cannot_be_read_are_said(checkpoint: str, tmp_path: Path) -> None:
    data = photos(tmp_path / "x", train=dict(a=4, b=4), val=dict(a=4, b=4))
    (tmp_path / "x" / "train" / "a" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    found = vitreous.fewshot(checkpoint, data, shots="3", workers=0, bad_images="skip")
    assert any("a/0.png" in note and "cannot be read" in note for note in found.notes)
    with pytest.raises(vitreous.VitreousError, match=r"a/0\.png"):
        vitreous.fewshot(checkpoint, data, shots="3", workers=0)


def test_subset_and_per_class_choose_the_images_that_training_chooses(checkpoint: str) -> None:
    from vitreous.evaluation.fewshot_tasks import load_task, open_task
    from vitreous.training.build_options import build_options
    from vitreous.training.data_split import choose_images

    clf = vitreous.load(checkpoint)
    for options in ({"subset": 90}, {"per_class": 7, "data_seed": 3}):
        task, said = load_task(clf, open_task("builtin:digits", **options), clf.preprocess, workers=0)
        asked, _ = build_options("pretrain", {"data": "builtin:digits", "out": "x", **options})
        train = choose_images(asked, stop_early=False).train
        assert sorted(task.train.ids) == sorted(train.id(row) for row in range(len(train)))  # type: ignore[union-attr, arg-type]
        assert any(f"data seed {options.get('data_seed', 0)}" in note for note in said)
    found = vitreous.fewshot(checkpoint, "builtin:digits", shots="all", per_class=7, workers=0)
    assert [(point.first.n_train, point.first.n_test) for point in found.points] == [(70, 500)]
    assert found.record()["per_class"] == 7


def test_the_majority_class_is_said(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest class of the training images, whatever is largest among those that are evaluated."""
    data = photos(tmp_path / "x", train=dict(a=3, b=5), test=dict(a=6, b=2))
    assert main(["fewshot", checkpoint, data, "--shots", "1,2", "--workers", "0"]) == 0
    assert "the largest class alone: 25.0%" in capsys.readouterr().out
    assert main(["fewshot", checkpoint, data, "--shots", "1,2", "--workers", "0", "--json"]) == 0
    assert {row["majority"] for row in json.loads(capsys.readouterr().out)["results"]} == {0.25}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--subset", "0"], "--subset 0: must be at least 1"),
        (["--subset", "1098"], "--subset 1098: there are only 1,097 training images"),
        (["--subset", "9", "--per-class", "9"], "--subset and --per-class both choose images"),
        (["--shots", "1,x"], "--shots 1,x: write numbers"),
        (["--shots", "5,5"], "--shots 5,5: write numbers"),
        (["--shots", "0"], "--shots 0: write numbers"),
        (["--shots", "500"], "--shots 500: class '"),
        (["--l2", "much"], "--l2 much: give a number above 0"),
        (["--l2", "-1"], "--l2 -1: give a number above 0"),
        (["--l2", "joint"], "--l2 joint: chosen over several"),
        (["--seeds", "0"], "--seeds 0"),
        (["--seed", "-1"], "--seed -1: must be at least 0"),
        (["--workers", "-1"], "--workers -1"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--preprocess", "resize(9)|range(-1,1)"], "gives images of 9 x 9 pixels"),
        (["--device", "abacus"], "--device abacus"),
    ],
)
def test_refusals(checkpoint: str, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["fewshot", checkpoint, "builtin:digits", "--out", str(out), *words]) == 2
    printed = capsys.readouterr()
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("vitreous: ")
    assert message in last
    assert "features of" not in printed.err  # before the work
    assert not out.exists()
    assert not printed.out


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (dict(train=dict(a=5), val=dict(a=5)), "one class only (a)"),
        (dict(train=dict(a=5, b=5), val=dict(a=2, c=2)), "different classes"),
        (dict(train=dict(a=5, b=3), val=dict(a=2, b=2)), "class 'b'"),
        (dict(val=dict(a=5, b=5)), "no train split"),
        (dict(train=dict(a=9, b=9), test=dict(a=0, b=0)), "its test split has no images"),
    ],
)
def test_refusals_of_data(
    checkpoint: str, splits: dict[str, dict[str, int]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(tmp_path / "x", **splits)
    assert main(["fewshot", checkpoint, data, "--shots", "5", "--workers", "0"]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_the_same_data_twice_and_a_file_in_the_way(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fewshot", checkpoint, "builtin:digits,builtin:digits"]) == 2
    assert "is named twice" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert main(["fewshot", checkpoint, "builtin:digits", "--out", str(tmp_path / "file")]) == 2
    assert "must be a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    assert main(["fewshot", checkpoint, "builtin:digits", "--out", str(tmp_path / "folder")]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "folder" / "file").read_text() == "mine"


def test_no_result_among_the_data(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos(tmp_path / "x", train=dict(a=5, b=5), val=dict(a=2, b=2))
    (tmp_path / "file").write_text("mine")
    for out, said in ((f"{data}/train", "lies inside the data"), (str(tmp_path / "file/out"), "is not a folder")):
        assert main(["fewshot", checkpoint, data, "--shots", "5", "--workers", "0", "--out", out]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert "to do" not in printed  # before the work
    assert sorted(path.name for path in (tmp_path / "x" / "train").iterdir()) == ["a", "b"]


def test_a_split_in_which_nothing_can_be_read(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos(tmp_path / "x", train=dict(a=5, b=5), val=dict(a=1, b=1))
    for name in "ab":
        (tmp_path / "x" / "val" / name / "0.png").write_bytes(b"no image")
    assert main(["fewshot", checkpoint, data, "--shots", "5", "--workers", "0", "--bad-images", "skip"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "none of its 2 validation images can be read" in last
    assert "0.png" in last
