"""--coverage from the command line: a saved head is calibrated, others by one command; what is not is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import vitreous
from embedding import make_world
from vitreous.cli import main
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint

CLASSES = ("blue", "green", "red")
HERE = ("--workers", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours that are hard to tell: 120 images to train on, 90 to calibrate on, 150 to test on."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in (("train", 40), ("validation", 30), ("test", 50)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.normal(110 + 25 * (np.arange(3) == 2 - label) + rng.normal(0, 22, 3), 15, (8, 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / split / name / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def head(photos: Path) -> str:
    folder = photos.parent / "heads"
    checkpoint = random_checkpoint("ViT-Ti/4", width=12, depth=2, heads=3, mlp=24, image_size=8, classes=2)
    write_checkpoint(checkpoint, folder / "tiny")
    words = ["--save", str(folder / "head"), "--no-cache", "--seeds", "1", "--shots", "all", *HERE]
    assert main(["fewshot", str(folder / "tiny"), str(photos), *words]) == 0
    return str(folder / "head")


def evaluate(checkpoint: str, data: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["evaluate", checkpoint, data, "--json", *HERE, *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_coverage_of_a_saved_head_on_test_images_is_as_a_loop_counts_it(
    head: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(head, f"{photos}:test", capsys, "--coverage", "0.8")["coverage"]
    assert (found["asked"], found["n"]) == (0.8, 150)
    low, high = found["interval"]
    assert low < found["measured"] < high
    assert high > 0.8
    assert 0.7 < found["measured"] < 0.93  # about four deviations of 150 images
    files = [str(path) for path in sorted(photos.glob("test/*/*.png"))]
    rows = vitreous.load(head).predict(files, coverage=0.8)
    truths = [Path(path).parent.name for path in files]
    assert found["measured"] == pytest.approx(np.mean([truth in row.set for truth, row in zip(truths, rows, strict=True)]))
    assert found["mean_size"] == pytest.approx(np.mean([len(row.set) for row in rows]))
    assert found["abstained"] == pytest.approx(np.mean([row.abstain for row in rows]))
    alone = [truth == row.classes[0] for truth, row in zip(truths, rows, strict=True) if not row.abstain]
    assert found["answered_top1"] == pytest.approx(np.mean(alone))
    assert 0 < len(alone) < 150
    words = ["--coverage", "0.8", "--compare", head, "--out", str(photos.parent / "evaluation")]
    assert main(["evaluate", head, f"{photos}:test", *words, *HERE]) == 0  # sets of the first alone
    assert "coverage of prediction sets" in capsys.readouterr().out
    written = json.loads((photos.parent / "evaluation" / "evaluation.json").read_text())
    assert written["coverage"]["measured"] == found["measured"]


def test_predict_gives_sets_in_every_form(head: str, photos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    images = str(photos / "test" / "red")
    assert main(["predict", head, images, "--coverage", "0.9", "--json", *HERE]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any(record["abstain"] for record in records)
    for record in records:
        assert record["set"] == record["classes"][: len(record["set"])]
        assert record["abstain"] == (len(record["set"]) > 1)
    assert main(["predict", head, images, "--coverage", "0.9", "--csv", "--top", "1", *HERE]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [json.loads(row["set"]) for row in rows] == [record["set"] for record in records]
    assert [row["abstain"] == "true" for row in rows] == [record["abstain"] for record in records]
    assert main(["predict", head, images, "--coverage", "0.9", *HERE]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert ["; abstain: " in line for line in lines] == [record["abstain"] for record in records]
    for name in ("rows.csv", "rows.jsonl"):  # written, and read back
        found = vitreous.predict(head, [images], out=str(tmp_path / name), coverage=0.9, workers=0)
        assert [list(row.set or ()) for row in found.rows] == [record["set"] for record in records]


def test_a_checkpoint_is_refused_until_it_is_calibrated(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = random_checkpoint("ViT-Ti/4", width=12, depth=2, heads=3, mlp=24, image_size=8, classes=3, names=CLASSES)
    write_checkpoint(checkpoint, tmp_path / "own")
    own, image = str(tmp_path / "own"), str(next(photos.glob("test/red/*.png")))
    for words in (["predict", own, image], ["evaluate", own, f"{photos}:test"], ["serve", own, "--port", "0"]):
        assert main([*words, "--coverage", "0.9"]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"{own} is not calibrated; once, run `vitreous evaluate {own} DATA --save-calibration`" in said
    before = (tmp_path / "own" / "model.safetensors").read_bytes()
    found = evaluate(own, f"{photos}:validation", capsys, "--save-calibration")
    assert found["calibration"]["n"] == 90
    assert (tmp_path / "own" / "model.safetensors").read_bytes() == before
    measured = evaluate(own, f"{photos}:test", capsys, "--coverage", "0.9")["coverage"]
    assert measured["interval"][0] < 0.93
    assert measured["interval"][1] > 0.87
    # On the very images of the calibration it is k / n, and that is said to be no measurement.
    assert main(["evaluate", own, f"{photos}:validation", "--coverage", "0.9", *HERE]) == 0
    printed = capsys.readouterr()
    assert "calibrated on these very images" in printed.err
    assert "coverage of prediction sets" in printed.out
    assert main(["evaluate", own, f"{photos}:test", "--coverage", "0.9", "--merge-tokens", "1", *HERE]) == 2
    assert "was calibrated with merge_tokens 0, not 1" in capsys.readouterr().err
    assert main(["predict", own, image, "--coverage", "0.9", "--image-size", "16", *HERE]) == 2
    assert "was calibrated with" in capsys.readouterr().err
    assert main(["predict", own, image, "--coverage", "0.995", *HERE]) == 2
    assert "--coverage 0.995: needs 199 or more images to calibrate on, and there were 90" in capsys.readouterr().err


def test_a_model_that_was_changed_is_not_believed(head: str, photos: Path, tmp_path: Path) -> None:
    clf = vitreous.load(head)
    next(clf.model.parameters()).data.add_(0.01)
    clf.save(tmp_path / "changed")
    with pytest.raises(vitreous.VitreousError, match="calibrated with other weights"):
        vitreous.load(tmp_path / "changed").predict(str(next(photos.glob("test/red/*.png"))), coverage=0.9)
    assert not vitreous.load(head, classes=4).conformal  # a new head


def test_the_server_gives_sets(head: str, photos: Path) -> None:
    content = next(photos.glob("test/red/*.png")).read_bytes()
    expected = vitreous.load(head).predict(str(next(photos.glob("test/red/*.png"))), coverage=0.95)
    with vitreous.serve([head], port=0, coverage=0.95, device="cpu") as serving:
        answer = httpx.post(f"{serving.url}/predict", content=content, headers={"Content-Type": "image/png"}).json()
        card = httpx.get(f"{serving.url}/models").json()["models"][0]
    assert tuple(answer["set"]) == expected.set
    assert answer["abstain"] == expected.abstain
    assert card["coverage"] == 0.95


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "head", "a.png", "--coverage", "90"], "--coverage 90: must lie between 0 and 1, as 0.9"),
        (["serve", "head", "--coverage", "0"], "--coverage 0: must lie between 0 and 1, as 0.9"),
        (["evaluate", "head", "photos", "--coverage", "1"], "--coverage 1: must lie between 0 and 1, as 0.9"),
        (["evaluate", "tiny", "photos", "--coverage", "0.9", "--save-calibration"], "measure it on others afterwards"),
        (["evaluate", "tiny", "photos", "--save-calibration", "--mapping", "m.csv"], "leave out --mapping and --among"),
        (["evaluate", "weights.npz", "photos", "--save-calibration"], "has no model.json to keep the scores in"),
    ],
)
def test_wrong_options_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, monkeypatch)
    (tmp_path / "weights.npz").write_bytes(b"")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
