"""`vitreous fewshot --dense` from the command line: the numbers, the files, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import jaccard_score

from vitreous.classifier import Classifier, load
from vitreous.cli import main
from vitreous.evaluation.dense import colour_features, fit_dense, label_patches, label_pixels, predict_mask
from vitreous.inspection import patch_features

from conftest import random_checkpoint

SIZE = (40, 48)  # of images and masks: neither the model's nor whole patches


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "vit"
    shape: dict[str, Any] = dict(image_size=(24, 32), width=24, depth=2, heads=3, mlp=32, classes=0, registers=1)
    preprocess = "resize_small(28)|central_crop(24,32)|range(-1,1)"
    Classifier(random_checkpoint("ViT-Ti/8", preprocess=preprocess, **shape)).save(folder)
    return str(folder)


def annotate(folder: Path, name: str, seed: int, values: tuple[int, int, int] = (1, 2, 3)) -> None:
    """A bright box on dark noise, its mask, and a border that is ignored."""
    rng = np.random.default_rng(seed)
    inner, outer, border = values
    pixels, mask = rng.integers(0, 100, (*SIZE, 3), dtype=np.uint8), np.full(SIZE, outer, np.uint8)
    top, left = rng.integers(2, 16, 2)
    mask[top - 1 : top + 21, left - 1 : left + 25] = border
    mask[top : top + 20, left : left + 24] = inner
    pixels[top : top + 20, left : left + 24] += 120
    for place, array in ((folder / name, pixels), (folder / "masks" / Path(name).with_suffix(".png"), mask)):
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(place)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for split, count in (("train", 6), ("test", 4)):
        for number in range(count):
            annotate(folder, f"{split}/{'ab'[number % 2]}/{number}.png", seed=number + 10 * (split == "test"))
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["fewshot", *map(str, words), "--dense", "--device", "cpu"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_numbers_are_those_of_a_fit_by_hand(
    model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = (model, photos, "--ignore", "3", "--shots", "2,all", "--seeds", "2", "--out", out)
    code, text, err = run(capsys, *words)
    assert code == 0, err
    assert "annotated images" in text
    assert "drawn from train, evaluated on test" in err
    record = json.loads((out / "dense.json").read_text())
    assert (record["classes"], record["ignored"]) == ([1, 2], [3])
    assert record["preprocess"].startswith("resize(24,32,")  # the whole image: no crop
    assert [(found["shots"], found["seed"]) for found in record["results"]] == [(2, 0), (2, 1), ("all", None)]
    assert sorted(path.name for path in out.iterdir()) == ["dense.json", "masks.png", "masks.svg", "predicted"]
    assert len(list((out / "predicted").iterdir())) == 4

    clf = load(model)
    classes = np.array([1, 2])

    def parts(split: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
        paths = sorted((photos / split).rglob("*.png"))
        resized = [np.asarray(Image.open(path).resize((32, 24), Image.Resampling.BILINEAR)) for path in paths]
        batch = np.stack(resized).astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1
        import torch

        features = patch_features(clf, torch.from_numpy(batch))
        truths = [np.asarray(Image.open(photos / "masks" / path.relative_to(photos))) for path in paths]
        labels = np.stack([label_patches(label_pixels(truth, classes), (3, 4), 2) for truth in truths])
        colours = np.stack([colour_features(np.asarray(Image.open(path)), (3, 4)) for path in paths])
        return truths, features, labels, colours

    _, features, labels, colours = parts("train")
    truths, tested, _, test_colours = parts("test")
    flat = np.concatenate([truth.ravel() for truth in truths])
    there, found = flat != 3, record["results"][2]
    for key, train, test in (("mean_iou", features, tested), ("colour", colours, test_colours)):
        fit = fit_dense(train, labels, 2)
        named = classes[np.concatenate([predict_mask(fit.scores(own), SIZE).ravel() for own in test])]
        expected = jaccard_score(flat[there], named[there], average=None, labels=[1, 2])
        assert found[key] == pytest.approx(expected.mean(), abs=0.01), key
        if key == "mean_iou":
            assert list(found["iou"].values()) == pytest.approx(expected, abs=0.01)
            assert found["pixel_accuracy"] == pytest.approx((flat == named)[there].mean(), abs=0.01)
    most = classes[np.bincount(labels[labels >= 0]).argmax()]
    constant = jaccard_score(flat[there], np.full(there.sum(), most), average=None, labels=[1, 2], zero_division=0)
    assert found["constant"] == pytest.approx(constant.mean())
    assert (found["n_train"], found["n_test"]) == (6, 4)

    code, text, _ = run(capsys, *words, "--json")
    assert code == 0
    assert json.loads(text)["results"] == record["results"]


def test_without_splits_some_images_are_held_out_and_masks_are_no_images(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        annotate(tmp_path / "photos", f"{'ab'[number % 2]}/{number}.png", seed=number, values=(1, 0, 255))
    code, text, err = run(capsys, model, tmp_path / "photos", "--shots", "3", "--seeds", "1", "--json")
    assert code == 0, err
    assert "held out 3 of 10 images" in err
    record = json.loads(text)
    assert record["classes"] == [0, 1]
    assert record["results"][0]["n_test"] == 3
    (tmp_path / "photos" / "masks").rename(tmp_path / "elsewhere")
    code, text, _ = run(
        capsys, model, tmp_path / "photos", "--shots", "3", "--seeds", "1", "--masks", tmp_path / "elsewhere", "--json"
    )
    assert json.loads(text)["results"] == record["results"]


def test_a_manifest_names_its_masks(model: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{path.relative_to(photos)},{path.parent.name},{split}"
             for split in ("train", "test") for path in sorted((photos / split).rglob("*.png"))]  # fmt: skip
    manifest = photos / "images.csv"
    manifest.write_text("\n".join(["path,label,split", *lines]) + "\n")
    words = ("--ignore", "3", "--shots", "4", "--seeds", "1", "--json")
    assert run(capsys, model, manifest, *words)[0] == 2  # where are they?
    code, text, err = run(capsys, model, manifest, "--masks", photos / "masks", *words)
    assert code == 0, err
    found = json.loads(text)["results"]
    assert found == json.loads(run(capsys, model, photos, *words)[1])["results"]


def break_size(photos: Path) -> None:
    Image.new("L", (20, 20)).save(photos / "masks/test/a/2.png")


def break_missing(photos: Path) -> None:
    (photos / "masks/test/b/1.png").unlink()


def break_range(photos: Path) -> None:
    Image.fromarray(np.full(SIZE, 1000, np.uint16)).save(photos / "masks/train/a/0.png")


def break_colour(photos: Path) -> None:
    Image.new("RGB", SIZE[::-1]).save(photos / "masks/train/a/0.png")


def break_truncated(photos: Path) -> None:
    path = photos / "masks/train/a/0.png"
    path.write_bytes(path.read_bytes()[:60])


def break_unknown(photos: Path) -> None:
    Image.new("L", SIZE[::-1], 9).save(photos / "masks/test/a/0.png")


def break_one_class(photos: Path) -> None:
    for path in (photos / "masks").rglob("*.png"):
        Image.new("L", SIZE[::-1], 1).save(path)


def break_folder(photos: Path) -> None:
    (photos / "masks").rename(photos.parent / "gone")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (break_size, "a/2.png: a mask of 20 x 20 pixels for an image of 40 x 48"),
        (break_missing, "b/1.png: missing, the mask of test/b/1.png"),
        (break_range, "a/0.png: has the value 1000; class numbers go from 0 to 255"),
        (break_colour, "a/0.png: a mask of mode RGB; save class numbers as a grey or palette PNG"),
        (break_truncated, "a/0.png: broken image"),
        (break_unknown, "the value 9 is in the test mask of test/a/0.png and in no training mask"),
        (break_one_class, "its training masks have only the value 1 beside those ignored (3); there is nothing to tell apart"),
        (break_folder, "masks: no such folder"),
    ],
)
def test_bad_masks_are_one_line_before_the_model_is_loaded(
    spoil: Any, said: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(photos)
    code, text, err = run(capsys, tmp_path / "no-such-model", photos, "--ignore", "3", "--out", tmp_path / "out", "--quiet")
    assert (code, text) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shots", "7"], "--shots 7: "),
        (["--ignore", "300"], "--ignore 300: write pixel values"),
        (["--ignore", "1,3"], "its training masks have only the value 2 beside those ignored (1, 3)"),
        (["--l2", "joint"], "--l2 joint: not with --dense"),
        (["--save", "head"], "--dense: --save has no meaning with it"),
        (["--subset", "4"], "--dense: --subset has no meaning with it"),
        (["--engine", "onnx"], "--dense: --engine has no meaning with it"),
    ],
)
def test_wrong_options(words: list[str], said: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = words if "--ignore" in words else [*words, "--ignore", "3"]
    code, _, err = run(capsys, tmp_path / "no-such-model", photos, *words, "--quiet")
    assert code == 2
    assert said in err


def test_a_drawing_of_one_class_is_refused(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(1, 6):
        Image.new("L", SIZE[::-1], 2).save(photos / f"masks/train/{'ab'[number % 2]}/{number}.png")
    code, _, err = run(capsys, tmp_path / "no-such-model", photos, "--ignore", "3", "--shots", "1", "--seeds", "6", "--quiet")
    assert code == 2
    assert "have the value 2 only, so there is nothing to tell apart; use more --shots" in err


def test_what_belongs_to_dense_is_refused_without_it(model: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fewshot", model, str(photos), "--masks", str(photos / "masks")]) == 2
    assert "--masks: only with --dense" in capsys.readouterr().err


def test_a_resnet_has_no_patches(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resnet = Classifier(random_checkpoint("R26x1", width=32, units=(1, 1), image_size=32, classes=3))
    resnet.save(tmp_path / "resnet")
    code, _, err = run(capsys, tmp_path / "resnet", photos, "--ignore", "3")
    assert code == 2
    assert "has no patch tokens" in err
