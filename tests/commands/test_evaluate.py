"""`vitreous evaluate` on the real digits, from the command line: numbers, folder, comparison, and what goes wrong."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from two_processes import in_two_processes
from vitreous.cli import main
from vitreous.evaluation.evaluation_result import confusion_matrix
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint

SHAPE: dict[str, Any] = dict(image_size=8, channels=1, width=32, depth=1, heads=2, mlp=32)
DIGITS = tuple(map(str, range(10)))


def checkpoint(folder: Path, names: tuple[str, ...] | None = DIGITS, learnt: bool = False, **changes: Any) -> str:
    """A random tiny ViT; `learnt`: with a head fitted to digits, so that its answers differ from chance."""
    made = random_checkpoint("ViT-Ti/4", names=names, **{"classes": len(names or ()), **SHAPE, **changes})
    if learnt:
        clf = vitreous.Classifier(made)
        train = vitreous.open_data("builtin:digits").source("train").subset(range(600))
        values = clf.features(torch.stack([clf.preprocess(train.read(i)) for i in range(600)]))
        values = torch.cat([values, torch.ones(600, 1)], dim=1)
        targets = torch.nn.functional.one_hot(torch.tensor(train.targets()), 10).float() * 10
        weights = torch.linalg.lstsq(values, targets).solution
        tensors = {**made.tensors, "head.weight": weights[:-1].T.contiguous(), "head.bias": weights[-1]}
        made = dataclasses.replace(made, tensors=tensors)
    write_checkpoint(made, folder)
    return str(folder)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("learnt") / "model", learnt=True)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten files of each digit."""
    folder, source = tmp_path_factory.mktemp("digits"), vitreous.open_data("builtin:digits").source("test")
    for label in range(10):
        (folder / str(label)).mkdir()
        for index in np.flatnonzero(source.targets() == label)[:10].tolist():
            Image.fromarray(source.read(index)).save(folder / str(label) / f"{index}.png")
    return str(folder)


def photos(folder: Path, names: str = "abc", each: int = 3) -> str:
    for at, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.fromarray(np.full((8, 8), 60 * at + 5 * number, np.uint8)).save(folder / name / f"{number}.png")
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["evaluate", *words, "--workers", "0", "--device", "cpu"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_digits(learnt: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = learnt
    code, out, err = run(capsys, model, "builtin:digits", "--json")
    assert code == 0
    assert "measured on test; it has train, validation too" in err
    (line,) = out.splitlines()
    found = json.loads(line)
    clf, test = vitreous.load(model), vitreous.open_data("builtin:digits").source("test")
    predicted = clf.predict([test.read(i) for i in range(len(test))], top=5)
    truth = [DIGITS[label] for label in test.targets()]
    right = np.mean([one.classes[0] == own for one, own in zip(predicted, truth, strict=True)])
    assert right > 0.3  # the head has learnt something
    assert found["n"] == len(test) == 500
    assert found["split"] == "test"
    assert found["top1"] == pytest.approx(right)
    assert found["top5"] == pytest.approx(np.mean([own in one.classes for one, own in zip(predicted, truth, strict=True)]))
    low, high = found["interval"]
    assert low < found["top1"] < high
    assert np.array(found["confusion"]).sum() == 500
    assert np.trace(found["confusion"]) == round(right * 500)
    assert {"per_class", "ece", "seconds", "reliability", "images_per_second"} <= set(found)
    code, out, _ = run(capsys, model, "builtin:digits:validation", "--batch-size", "7", "--interval", "bootstrap")
    assert code == 0
    for word in ("builtin:digits validation", "top-1", "lowest F1", "confusion matrix", "ECE", "on the whole"):
        assert word in out


def numbers_of(confusion: Any, names: tuple[str, ...]) -> dict[str, Any]:
    there = np.sum(confusion, axis=1)
    rows = [{"n": int(n), "recall": own[k] / max(1, n)} for k, (own, n) in enumerate(zip(confusion, there, strict=True))]
    return {"classes": names, "confusion": np.array(confusion).tolist(), "per_class": rows}


@pytest.mark.parametrize(
    ("names", "heads"),
    [
        (("cat", "dog"), ["cat", "dog"]),
        (tuple(f"warbler number {k}" for k in range(12)), [str(k + 1) for k in range(12)]),  # alike where they are cut off
        (("ant", "a\x1b[31mb\nc", *"defghijklm"), None),
    ],
)
def test_the_matrix_fits_a_terminal_and_says_what_was_counted(names: tuple[str, ...], heads: list[str] | None) -> None:
    confusion = np.random.default_rng(0).integers(0, 4, (len(names), len(names))) + 9000 * np.eye(len(names), dtype=int)
    shown = confusion_matrix(numbers_of(confusion, names))
    assert shown is not None
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    _, _, head, _, *lines = shown.splitlines()
    assert heads is None or head.split() == [*heads, "acc.", "%"]
    cells = [line.replace("·", "0").split()[-len(names) - 1 :] for line in lines[: len(names)]]
    assert [[int(cell) for cell in row[:-1]] for row in cells] == confusion.tolist()
    assert [float(row[-1]) for row in cells] == [round(100 * own[k] / own.sum(), 1) for k, own in enumerate(confusion)]


def test_the_matrix_leaves_out_classes_that_do_not_occur_and_is_not_shown_of_many() -> None:
    confusion = np.zeros((1000, 1000), int)
    confusion[7, 7], confusion[7, 9], confusion[8, 8] = 12345, 1, 2
    names = tuple(f"n{k}" for k in range(1000))
    shown = confusion_matrix(numbers_of(confusion, names))
    assert shown is not None
    assert [line.split() for line in shown.splitlines()[2:6] if "─" not in line] == [
        ["n7", "n8", "n9", "acc.", "%"],
        ["n7", "12k", "·", "1", "100.0"],
        ["n8", "·", "2", "·", "100.0"],
    ]
    assert confusion_matrix(numbers_of(np.eye(13, dtype=int), names[:13])) is None


def test_the_majority_class_beside_the_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that always says `b`, where two thirds are `a`: that is said, and nothing on the page is green."""
    folder = Path(photos(tmp_path / "photos", "ab", 2))
    for number in range(2, 4):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / "a" / f"{number}.png")
    made = random_checkpoint("ViT-Ti/4", names=("a", "b"), classes=2, **SHAPE)
    tensors = {**made.tensors, "head.weight": torch.zeros(2, 32), "head.bias": torch.tensor([0.0, 1.0])}
    write_checkpoint(dataclasses.replace(made, tensors=tensors), tmp_path / "model")
    code, out, _ = run(capsys, str(tmp_path / "model"), str(folder), "--json", "--out", str(tmp_path / "out"))
    assert code == 0
    found = json.loads(out)
    assert (found["top1"], found["majority"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "always predicting the largest class: 66.67 %" in page
    assert 'class="verdict bad"' in page
    code, out, _ = run(capsys, str(tmp_path / "model"), str(folder))
    assert "66.67 %; the model is no better" in out


def test_a_folder_and_another_checkpoint(tmp_path: Path, learnt: str, digits: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = checkpoint(tmp_path / "old"), learnt
    out = tmp_path / "out"
    code, text, _ = run(capsys, old, digits, "--compare", new, "--out", str(out))
    assert code == 0
    assert f"{new} is better than {old} by" in text
    assert {path.name for path in out.iterdir()} == {"evaluation.json", "predictions.csv", "report.html", "relabel.csv"}
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".part", ".old"))]
    found = json.loads((out / "evaluation.json").read_text())
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["n"] == 100
    assert sum(row["correct"] == "yes" for row in rows) == round(found["top1"] * 100)
    assert all((row["label"] == row["prediction"]) == (row["correct"] == "yes") for row in rows)
    assert np.mean([float(row["loss"]) for row in rows]) == pytest.approx(found["loss"], rel=1e-4)
    pair = found["compare"]["paired"]
    assert pair["both"] + pair["first_only"] == round(found["top1"] * 100)
    assert pair["both"] + pair["second_only"] == round(found["compare"]["top1"] * 100)
    assert pair["p"] < 1e-6

    code, _, _ = run(capsys, old, digits, "--out", str(out))  # an earlier evaluation may be replaced
    assert code == 0
    assert "compare" not in json.loads((out / "evaluation.json").read_text())
    with (out / "relabel.csv").open("a") as file:
        file.write("mine\n")
    code, _, err = run(capsys, old, digits, "--out", str(out))
    assert code == 2
    assert "relabel.csv was changed" in err


def test_other_names_and_a_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(tmp_path / "model", ("A", "b", "x", "y", "z"))
    data = photos(tmp_path / "photos", "abc")
    code, out, err = run(capsys, model, data)
    assert code == 2
    assert not out
    assert "does not know: 'c'; say which" in err
    assert "--mapping" in err
    mapping = tmp_path / "map.json"
    mapping.write_text('{"a": "A", "b": ["b", "x"], "c": []}')
    code, out, err = run(capsys, model, data, "--mapping", str(mapping), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["n"] == 6
    assert found["mapped_to_nothing"] == 3
    assert "left out (c)" in err
    code, out, _ = run(capsys, model, data, "--mapping", str(mapping), "--json", "--among", "mapped")
    few = json.loads(out)
    assert code == 0
    assert few["top5"] is None
    assert (few["mapping"], few["among"], few["seed"], few["precision"]) == (str(mapping), "mapped", 0, "float32")
    named = [row["class"] for row, column in zip(few["per_class"], np.sum(few["confusion"], axis=0), strict=True) if column]
    assert set(named) <= {"A", "b", "x"}


def test_what_goes_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, out = checkpoint(tmp_path / "model", tuple("abc")), photos(tmp_path / "photos"), tmp_path / "out"
    one = photos(tmp_path / "one", "a")
    bare = checkpoint(tmp_path / "bare", None)
    alone = checkpoint(tmp_path / "alone", ("a",))
    broken = photos(tmp_path / "broken")
    (Path(broken) / "b" / "1.png").write_bytes(b"\x89PNG no")
    (tmp_path / "empty").mkdir()
    half = tmp_path / "half"  # its test split has class folders and no images: the training images are no substitute
    photos(half / "train")
    (half / "test" / "a").mkdir(parents=True)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    for words, said in (
        ((str(tmp_path / "none"), data), "none"),
        ((model, str(tmp_path / "nowhere")), "nowhere"),
        ((model, str(tmp_path / "empty")), "empty"),
        ((model, data, "--split", "test"), "there is no split 'test'"),
        ((model, str(half)), "its test split has no images.*--split"),
        ((model, str(half), "--split", "test"), "no images in its split 'test'"),
        ((model, f"{half}:test"), "no images in its split 'test'"),
        ((bare, data), "has no head.*fewshot`, whose --save gives it a head"),
        ((alone, data), "knows one class only"),
        ((model, broken), r"b/1\.png"),
        ((model, data, "--real", str(tmp_path / "real.json")), "1,000 classes"),
        ((model, data, "--compare", bare), "has no head"),
        ((model, data, "--nearest", data), "give --out"),
        ((model, data, "--batch-size", "0"), "--batch-size 0"),
        ((model, data, "--robustness", "--robustness-images", "0"), "--robustness-images 0"),
        ((model, data, "--preprocess", "flip|range(-1,1)"), "size|random|crop"),
        ((model, data, "--preprocess", "resize(8)|range(-1,1)", "--image-size", "16"), "two different sizes"),
    ):
        code, printed, err = run(capsys, *words, "--out", str(out)) if "--nearest" not in words else run(capsys, *words)
        assert code == 2, words
        assert not printed, words
        lines = [line for line in err.splitlines() if line.startswith("vitreous: ")]
        assert len(lines) == 1, err
        assert "Traceback" not in err
        assert re.search(said, lines[0]), (said, lines)
        assert not out.exists(), words
    assert run(capsys, model, one)[0] == 2
    assert run(capsys, model, str(half), "--split", "train")[0] == 0
    code, _, err = run(capsys, model, f"{half}:train")
    assert code == 0
    assert "left out" not in err
    code, _, err = run(capsys, model, data, "--out", str(full))
    assert code == 2
    assert "thesis.txt" in err
    assert (full / "thesis.txt").read_text() == "mine"
    code, _, err = run(capsys, model, data, "--out", f"{data}/inside")
    assert code == 2
    assert "inside the data" in err
    code, printed, err = run(capsys, model, broken, "--bad-images", "skip", "--json")
    assert code == 0
    assert json.loads(printed)["n"] == 8
    assert len(json.loads(printed)["bad"]) == 1
    assert "1.png" in err


def test_another_size_and_preprocessing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = checkpoint(tmp_path / "model", tuple("abc")), photos(tmp_path / "photos")
    code, out, _ = run(capsys, model, data, "--image-size", "16", "--json")
    assert code == 0
    assert "16" in json.loads(out)["preprocess"]
    string = "resize(12,bilinear)|range(-1,1)"
    code, out, _ = run(capsys, model, data, "--preprocess", string, "--json")
    assert code == 0
    assert json.loads(out)["preprocess"] == string
    code, out, _ = run(capsys, model, data, "--preprocess", string, "--compare", model, "--json")
    assert code == 0
    assert json.loads(out)["compare"]["preprocess"] == str(vitreous.load(model).preprocess) != string  # has its own


def test_robustness_and_the_nearest(tmp_path: Path, learnt: str, digits: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--robustness", "--robustness-images", "20", "--nearest", digits, "--out", str(tmp_path / "out"))
    code, out, err = run(capsys, learnt, digits, *words)
    assert code == 0, err
    assert "robustness (20 images)" in out
    assert "JPEG quality" in out
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())["robustness"]
    assert found["n"] == found["clean"]["n"] == 20
    assert {point["n"] for curve in found["curves"] for point in curve["points"]} == {20}


def test_a_training_image_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, training = (
        checkpoint(tmp_path / "model", tuple("abc")), photos(tmp_path / "photos"), photos(tmp_path / "training"),
    )  # fmt: skip
    (Path(training) / "b" / "1.png").write_bytes(b"\x89PNG no")
    code, _, err = run(capsys, model, data, "--nearest", training, "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert re.search(r"note: --nearest: left out what could not be read: .*b/1\.png", err)


def test_names_that_a_spreadsheet_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(tmp_path / "model", ("=cmd()", "b"))
    for name in ("=cmd()", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), len(name), np.uint8)).save(tmp_path / "photos" / name / "@x.png")
    code, _, err = run(capsys, model, str(tmp_path / "photos"), "--out", str(tmp_path / "out"))
    assert code == 0, err
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=cmd()" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]


def test_two_processes_write_one_folder(tmp_path: Path, learnt: str, digits: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = learnt

    def work(rank: int) -> int:
        words = ["evaluate", model, digits, "--workers", "0", "--device", "cpu", "--out", str(tmp_path / "two")]
        return main([*words, "--batch-size", "9", "--quiet"])

    in_two_processes(work)
    assert run(capsys, model, digits, "--out", str(tmp_path / "one"))[0] == 0
    one, two = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two"))
    assert (two["n"], two["top1"], two["confusion"]) == (one["n"], one["top1"], one["confusion"])
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["ece"] == pytest.approx(one["ece"], abs=1e-4)
    rows = []
    for name in ("one", "two"):
        with (tmp_path / name / "predictions.csv").open(newline="") as file:
            rows.append([(row["id"], row["prediction"], row["correct"]) for row in csv.DictReader(file)])
    assert rows[0] == rows[1]
