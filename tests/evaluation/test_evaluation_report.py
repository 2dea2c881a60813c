"""An evaluation's page: every number leads to its images, nothing runs or loads but its own, and it stays small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import NearestNeighbors

from html_page import Page
from vitreous.classifier import Classifier
from vitreous.data.source import Source, Stream
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation import class_tables, evaluation_report, report_gallery
from vitreous.evaluation.accuracy import compute_metrics
from vitreous.evaluation.class_tables import CELLS
from vitreous.evaluation.evaluation_report import write_evaluation_report
from vitreous.evaluation.mcnemar import compare_predictions
from vitreous.evaluation.predictions import Predictions, natural_mapping, predict_dataset
from vitreous.evaluation.report_gallery import IN_CELL, RIGHT_IN_CELL, attention_overlay, choose_images, group_cells
from vitreous.evaluation.robustness import Robustness, RobustnessCurve, Strength
from vitreous.inference.features import compute_features
from vitreous.inspection.attention_rollout import attention_map

from conftest import random_checkpoint

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a'b\n\x1b[31m\u202e</svg>")


def source_of(n: int, classes: tuple[str, ...], ids: tuple[str, ...] | None = None, side: int = 8) -> Arrays:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return Arrays("photos", "test", classes, images, np.arange(n) % len(classes), ids=ids)


def classifier(classes: tuple[str, ...], preprocess: str = "resize(8)|range(-1,1)") -> Classifier:
    small = dict(image_size=8, width=16, depth=2, heads=2, mlp=16)
    return Classifier(random_checkpoint("ViT-Ti/4", classes=len(classes), names=classes, preprocess=preprocess, **small))


@dataclasses.dataclass
class Case:
    clf: Classifier
    source: Source | Stream
    answers: Predictions

    def write(self, folder: Path, **more: Any) -> tuple[str, Page]:
        numbers = more.pop("numbers", {"checkpoint": "runs/a", **compute_metrics(self.answers)})
        path = write_evaluation_report(folder, self.clf, self.source, self.answers, numbers, **more)
        assert path == folder / "report.html"
        text = path.read_text(encoding="utf-8")
        return text, Page(text)


def case(n: int = 30, classes: tuple[str, ...] = ("ant", "bee", "cat"), **more: Any) -> Case:
    clf, source = classifier(classes), source_of(n, classes, **more)
    return Case(clf, source, predict_dataset(clf, source, workers=0))


def with_guesses(answers: Predictions, guesses: list[int]) -> Predictions:
    """The same with other guesses, so that something is right and something wrong."""
    top = answers.top.copy()
    for row, guess in enumerate(guesses):
        top[row] = [guess, *[k for k in top[row] if k != guess]][: top.shape[1]]
    labels = tuple(
        (guess, *[k for k in own if k != guess]) if guess in own else own
        for own, guess in zip(answers.labels, guesses, strict=True)
    )
    counts = type(answers.counts)(len(answers.classes))
    logits = torch.zeros(len(top), len(answers.classes)).scatter_(1, torch.from_numpy(top[:, :1]), 1.0)
    counts.update(logits, labels, torch.from_numpy(np.nan_to_num(answers.losses)))
    return dataclasses.replace(answers, top=top, labels=labels, counts=counts)


def mostly_right(made: Case, wrong_every: int = 4) -> Case:
    c = len(made.answers.classes)
    guesses = [own[0] if row % wrong_every else (own[0] + 1) % c for row, own in enumerate(made.answers.labels)]
    made.answers = with_guesses(made.answers, guesses)
    return made


# Numbers and links ------------------------------------------------------------------------------------------------------------


def test_the_headline_has_the_interval(tmp_path: Path) -> None:
    made = mostly_right(case(40))
    _, page = made.write(tmp_path)
    low, high = compute_metrics(made.answers)["interval"]
    assert f"75.00 % of 40 test images correct (95 % interval {100 * low:.2f} to {100 * high:.2f});" in page.said
    assert "always predicting the largest class: " in page.said
    _, page = made.write(tmp_path, numbers={"interval": [0.5, 0.625]})
    assert "(95 % interval 50.00 to 62.50)" in page.said


def test_no_five_guesses_of_five_classes(tmp_path: Path) -> None:
    """A model of eight that may choose among three of them: that the label is within five guesses says nothing."""
    classes = tuple("abcdefgh")
    clf, source = classifier(classes), source_of(12, classes[:3])
    made = Case(clf, source, predict_dataset(clf, source, workers=0, mapping=natural_mapping(clf, source, "mapped")))
    assert "top-5" not in made.write(tmp_path)[1].said
    made.answers = predict_dataset(clf, source, workers=0)
    assert f"top-5 accuracy {100 * compute_metrics(made.answers)['top5']:.2f} %" in made.write(tmp_path)[1].said


def test_every_cell_with_images_leads_to_them(tmp_path: Path) -> None:
    made = mostly_right(case(40))
    text, page = made.write(tmp_path)
    cells = group_cells(made.answers)
    links = [link["href"] for link in page.of("a") if (link["href"] or "").startswith("#cell-")]
    assert set(links) == {f"#cell-{truth}-{guess}" for truth, guess in cells}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in links if link} <= set(ids)
    for (truth, guess), rows in cells.items():  # the images behind the link are those rows, the worst first
        inside = text.partition(f'<div id="cell-{truth}-{guess}"')[2].partition("</details>")[0]
        shown = re.findall(r'class="quiet id">(test/\d+)', inside)
        assert shown == [made.answers.ids[row] for row in rows[: RIGHT_IN_CELL if truth == guess else IN_CELL]]
        assert inside.count("<figure") == len(shown) > 0
        if truth != guess:
            losses = [made.answers.losses[made.answers.ids.index(name)] for name in shown]
            assert losses == sorted(losses, reverse=True)
    labels = [link["aria-label"] for link in page.of("a") if link.get("aria-label")]
    assert any(re.fullmatch(r"ant predicted as bee: \d+, [\d.]+% of the class", label or "") for label in labels)


def test_it_reads_without_its_script(tmp_path: Path) -> None:
    """Everything is there before a script runs: in folds that open by themselves, and the switch is CSS."""
    text, page = mostly_right(case()).write(tmp_path)
    body = text.partition("<body>")[2].partition("<script>")[0]
    assert len(page.of("details", "cell")) == len(group_cells(mostly_right(case()).answers))
    assert body.count('class="heat"') >= 10
    assert "section:has(input.looked:checked)" in text
    assert len(page.of("input", "looked")) >= 1


def test_nothing_wrong_and_nothing_confused(tmp_path: Path) -> None:
    made = case(12)
    made.answers = with_guesses(made.answers, [own[0] for own in made.answers.labels])
    _, page = made.write(tmp_path)
    assert "100.00 % of 12 test images correct" in page.said
    assert "Nothing was confused." in page.said
    assert "None: wherever the model is sure" in page.said


def test_a_poor_model_accuses_no_labels(tmp_path: Path) -> None:
    """Every image is suspected where nearly every guess is wrong; and no accuracy is praised in green."""
    made = mostly_right(case(40), wrong_every=8)
    sure = np.tile(np.array([0.9, 0.06, 0.04], np.float32), (40, 1))
    truth = np.where(made.answers.right(), 0.9, 0.06).astype(np.float32)
    made.answers = dataclasses.replace(made.answers, probabilities=sure, truth=truth)
    html, page = made.write(tmp_path / "good")
    assert "images, on which the model is as sure of another class" in page.said
    assert "the model’s own errors" not in page.said
    assert "verdict good" not in html
    made = mostly_right(case(40), wrong_every=1)
    made.answers = dataclasses.replace(made.answers, probabilities=sure, truth=np.full(40, 0.06, np.float32))
    _, page = made.write(tmp_path / "poor")
    assert "40 of 40 images, on which" in page.said
    assert "the model’s own errors" in page.said


# Images ---------------------------------------------------------------------------------------------------------------------


def decoded(uri: str | None) -> np.ndarray[Any, Any]:
    assert uri is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))))


def test_a_image_is_what_the_model_saw_and_the_heat_where_it_looked(tmp_path: Path) -> None:
    clf = classifier(("ant", "bee"), "resize_small(12)|central_crop(8)|range(-1,1)")
    source = source_of(2, ("ant", "bee"), side=16)
    made = Case(clf, source, predict_dataset(clf, source, workers=0))
    text, _ = made.write(tmp_path)
    views = re.findall(
        r'<div class="view"><img[^>]*?src="([^"]+)"><img class="heat" alt="" src="([^"]+)"></div>.*?id">([^ <]+)',
        text,
        re.DOTALL,
    )
    assert {name for _, _, name in views} == {"test/000000", "test/000001"}
    for photo, overlay, name in views:
        image = source.images[int(name[-1])]
        expected = Image.fromarray(image).resize((12, 12), Image.Resampling.BILINEAR).crop((2, 2, 10, 10))
        assert np.array_equal(decoded(photo), np.asarray(expected))
        looked = attention_map(clf.model, clf.preprocess(image)[None])[0].numpy()
        assert np.abs(decoded(overlay)[..., 3] / 190 - looked).max() < 0.01
        assert looked.shape == (2, 2)


def test_the_heat_is_clear_where_nothing_is() -> None:
    values = np.array([[0.0, 1.0, 0.5]], np.float32)
    alpha = decoded(attention_overlay(values))[..., 3]
    assert alpha.tolist() == [[0, 190, 95]]


@pytest.mark.parametrize("kept", [False, True])
def test_the_nearest_training_images(tmp_path: Path, kept: bool) -> None:
    """`kept`: with the features that the evaluation has kept of its images, else from the images anew."""
    made = mostly_right(case(12))
    training = Arrays(
        "photos",
        "train",
        ("ant", "bee", "cat"),
        np.random.default_rng(5).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8),
        np.arange(20) % 3,
    )
    known = compute_features(made.clf, training, workers=0, cache=False)
    own = compute_features(made.clf, made.source, workers=0, cache=False)
    if kept:
        made.answers = dataclasses.replace(made.answers, features=own.values)
    text, page = made.write(tmp_path, training=known, training_data=training)
    rows = NearestNeighbors(n_neighbors=3, metric="cosine", algorithm="brute").fit(known.values).kneighbors(own.values)[1]
    figures = re.findall(r'<figure class="card">.*?</figure>', text, re.DOTALL)
    assert len(figures) >= 12
    for figure in figures:
        row = made.answers.ids.index(re.findall(r'id">(test/\d+)', figure)[0])
        assert re.findall(r'<li title="(train/\d+), similarity', figure) == [training.id(k) for k in rows[row]]
        photos = re.findall(r'<li title="train[^>]*><img[^>]*src="([^"]+)"><span>(\w+)</span>', figure)
        assert [label for _, label in photos] == [training.classes[k % 3] for k in rows[row]]
        assert np.array_equal(decoded(photos[0][0]), training.images[rows[row, 0]])
    without, _ = made.write(tmp_path, training=known)  # no images at hand: the labels alone
    assert re.findall(r'<li title="train/\d+, similarity [^"]+"><span>', without)
    assert "--nearest" not in page.said
    assert "--nearest" in made.write(tmp_path)[1].said


class Shards(Stream):
    def __init__(self, source: Arrays) -> None:
        self.where, self.split, self.classes = source.where, source.split, source.classes
        self.shards, self.skipped = ("0", "1"), []
        self._items = list(source.items())

    def read(self, shard: int) -> Any:
        half = len(self._items) // 2
        return iter(self._items[:half] if shard == 0 else self._items[half:])


def test_a_stream_of_shards_has_the_same_page(tmp_path: Path) -> None:
    plain = case(20)
    stream = Shards(source_of(20, ("ant", "bee", "cat")))
    streamed = Case(plain.clf, stream, predict_dataset(plain.clf, stream, workers=0))
    pages = [made.write(tmp_path)[0] for made in (plain, streamed)]
    cut = [re.sub(r"[\d,]+ images per second", "", page) for page in pages]
    assert cut[0] == cut[1]


def test_an_image_that_has_gone_is_left_out(tmp_path: Path) -> None:
    made = mostly_right(case(12))

    class Gone(Arrays):
        def read(self, index: int) -> Any:
            from vitreous.data.transforms.decode import BadImage

            if index == 0:
                raise BadImage("photos: 0", "missing", "gone")
            return super().read(index)

    old = made.source
    assert isinstance(old, Arrays)
    made.source = Gone("photos", "test", old.classes, old.images, old.targets())
    text, _ = made.write(tmp_path)
    assert 'id">test/000000' not in text
    assert 'id">test/000004' in text


# Which are shown --------------------------------------------------------------------------------------------------------------


def test_every_cell_gets_one_before_any_gets_two(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {(0, 1): list(range(100)), (1, 0): [200, 201], (2, 0): [300], (0, 0): list(range(400, 450)), (1, 1): [500]}
    shown = choose_images(cells)
    assert {cell: len(rows) for cell, rows in shown.items()} == {(0, 1): 12, (1, 0): 2, (2, 0): 1, (0, 0): 3, (1, 1): 1}
    assert shown[0, 1] == list(range(12))
    monkeypatch.setattr(report_gallery, "WRONG", 4)
    assert {cell: len(rows) for cell, rows in choose_images(cells).items() if cell[0] != cell[1]} == {
        (0, 1): 2,
        (1, 0): 1,
        (2, 0): 1,
    }
    assert set(choose_images(cells, [(2, 0)])) == {(2, 0)}


def test_the_page_stays_small_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = mostly_right(case(60))
    _, page = made.write(tmp_path)
    there = sum(min(len(rows), 3 if a == b else 12) for (a, b), rows in group_cells(made.answers).items())
    assert f"{there} of 60 are on this page; predictions.csv has them all." in page.said
    monkeypatch.setattr(report_gallery, "BYTES", 2000)
    monkeypatch.setattr(report_gallery, "default_batch_size", lambda *_: 1)
    _, page = made.write(tmp_path)
    found = re.search(r"(\d+) of 60 are on this page", page.said)
    assert found
    assert 1 <= int(found[1]) < 10
    assert len(page.of("img", "heat")) < 14


def test_the_time_for_looking_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_gallery, "affordable_images", lambda *_: 0)
    monkeypatch.setattr(report_gallery, "_LEAST_LOOKED", 5)
    text, _ = mostly_right(case(40)).write(tmp_path)
    assert len(set(re.findall(r'class="heat" alt="" src="[^"]+"></div>.*?id">(test/\d+)', text, re.DOTALL))) == 5
    monkeypatch.setattr(report_gallery, "_LEAST_LOOKED", 0)
    assert not mostly_right(case(40)).write(tmp_path)[1].of("input", "looked")  # no switch where there is nothing to switch


# Many classes -----------------------------------------------------------------------------------------------------------------


def test_with_many_classes_pairs_are_chosen(tmp_path: Path) -> None:
    classes = tuple(f"class {k}" for k in range(CELLS + 10))
    made = mostly_right(case(2 * len(classes), classes), wrong_every=3)
    _, page = made.write(tmp_path)
    assert not page.of("table", "matrix")
    links = [link["href"] or "" for link in page.of("a") if (link["href"] or "").startswith("#cell-")]
    assert len(links) == 25
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {link[1:] for link in links} <= ids


def test_classes_that_do_not_occur_are_not_shown(tmp_path: Path) -> None:
    """A model of a hundred classes, evaluated on three of them."""
    classes = tuple(f"class {k}" for k in range(100))
    clf, source = classifier(classes), source_of(12, classes[7:10])
    answers = predict_dataset(clf, source, workers=0)
    made = Case(clf, source, with_guesses(answers, [7, 8, 8, 7] * 3))
    _, page = made.write(tmp_path)
    assert page.of("table", "matrix")
    assert "3 classes, loss" in page.said
    assert "class 11" not in page.said
    assert {"#cell-9-8", "#cell-8-8"} <= {link["href"] for link in page.of("a")}


def test_too_many_classes_for_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = mostly_right(case(40))
    for module in (class_tables, evaluation_report):
        monkeypatch.setattr(module, "CELLS", 2)
    _, page = made.write(tmp_path, numbers={})
    assert not page.of("table", "matrix")
    wrong = {f"#cell-{a}-{b}" for a, b in group_cells(made.answers) if a != b}
    assert {link["href"] for link in page.of("a")} == wrong or len(made.answers.classes) <= CELLS
    assert wrong <= {link["href"] for link in page.of("a")}


# Sections ---------------------------------------------------------------------------------------------------------------------


def test_two_checkpoints_and_where_they_disagree(tmp_path: Path) -> None:
    made = mostly_right(case(24))
    labels = [own[0] for own in case(24).answers.labels]
    other = with_guesses(made.answers, [label if row % 3 else (label + 1) % 3 for row, label in enumerate(labels)])
    text, page = made.write(tmp_path, others=[("runs/<b>", other, {})])
    mine, theirs = made.answers.right(), other.right()
    alone = {f"test/{row:06d}" for row in np.flatnonzero(mine & ~theirs)}
    part = text.partition("Only this one is correct")[2].partition("Only runs/")[0]
    assert set(re.findall(r'id">(test/\d+)', part)) == alone
    assert f"Only runs/<b> is correct: {int((theirs & ~mine).sum())} images" in page.said
    sentence = compare_predictions(made.answers, other).sentence("this one", "runs/<b>")
    assert sentence[1:] in page.said
    assert "Compared with runs/<b>" in page.said
    assert "--compare" not in page.said


def test_two_checkpoints_have_the_intervals_of_their_numbers(tmp_path: Path) -> None:
    """An interval by the bootstrap is not another one a section below; what only one has labels for is nobody's victory."""
    made = mostly_right(case(24))
    labels = [own[0] for own in made.answers.labels]
    other = with_guesses(made.answers, [(label + 1) % 3 for label in labels])
    other = dataclasses.replace(other, labels=(*other.labels[:-1], ()))
    numbers = {"interval": [0.125, 0.25]}
    _, page = made.write(tmp_path, numbers=numbers, others=[("runs/b", other, {"interval": [0.5, 0.625]})])
    assert page.said.count("12.50 to 25.00") == 2
    assert page.said.count("50.00 to 62.50") == 1
    alone = int(made.answers.right()[:-1].sum())
    assert f"Only this one is correct: {alone} images" in page.said
    assert compare_predictions(made.answers, other).first == alone


def test_the_reliability_is_drawn_bin_by_bin(tmp_path: Path) -> None:
    made = mostly_right(case(40))
    numbers = compute_metrics(made.answers)
    _, page = made.write(tmp_path, numbers=numbers)
    filled = [row for row in numbers["reliability"] if row["n"]]
    assert len(page.of("rect", "share")) == len(filled)
    heights = [float(rect["height"] or 0) for rect in page.of("rect", "share")]
    assert heights == pytest.approx([180 * row["accuracy"] for row in filled], abs=0.06)
    counts = [float(rect["height"] or 0) for rect in page.of("rect", "count")]
    most = max(row["n"] for row in filled)
    assert counts == pytest.approx([max(36 * row["n"] / most, 0.7) for row in filled], abs=0.06)
    assert f"Expected calibration error: {100 * numbers['ece']:.2f} %." in page.said


def test_the_robustness_is_drawn(tmp_path: Path) -> None:
    def strength(at: float, accuracy: float) -> Strength:
        return Strength(at, accuracy, (accuracy - 0.05, accuracy + 0.05), 100)

    curve = RobustnessCurve("blur", "blur, % of the shorter side", 0.0, (strength(1.0, 0.8), strength(2.0, 0.3)))
    found = Robustness(strength(1.0, 0.9), (curve,), 0, 1.0)
    _, page = mostly_right(case()).write(tmp_path, robustness=found)
    assert "90.0 % as they are, 30.0 % at worst (blur 2)" in page.said
    assert any("accuracy from 90 % to 30 %" in (svg.get("aria-label") or "") for svg in page.of("svg"))


def test_what_could_not_be_read_is_listed(tmp_path: Path) -> None:
    made = mostly_right(case())
    made.answers = dataclasses.replace(made.answers, bad=(("photos/<i>.jpg", "an empty file"),) * 60)
    _, page = made.write(tmp_path, numbers={})
    assert "photos/<i>.jpg: an empty file" in page.said
    assert "10 more in evaluation.json" in page.said


def test_the_table_lies_beside_the_page(tmp_path: Path) -> None:
    mostly_right(case()).write(tmp_path)
    assert (tmp_path / "relabel.csv").read_text(encoding="utf-8-sig").startswith("path,label,new_label,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["relabel.csv", "report.html"]


# Safety -----------------------------------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Classes and files from a stranger's disk."""
    ids = tuple(f"{HOSTILE[row % 3]}{row}" for row in range(24))
    made = mostly_right(case(24, HOSTILE, ids=ids))
    training = source_of(9, HOSTILE, ids=tuple(f"{HOSTILE[k % 3]}{k}" for k in range(9)))
    known = compute_features(made.clf, training, workers=0, cache=False)
    other = with_guesses(made.answers, [0] * 24)
    numbers = {"checkpoint": HOSTILE[1], **compute_metrics(made.answers)}
    text, page = made.write(tmp_path, numbers=numbers, others=[(HOSTILE[0], other, {})], training=known, training_data=training)
    assert len(page.of("script")) == 1
    assert "alert" not in page.scripts
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert all((image["src"] or "").startswith("data:image/") for image in page.of("img"))
    assert page.said.count(HOSTILE[0]) > 5
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\u202e" not in html.unescape(text)


def test_nothing_is_loaded_and_only_the_own_script_runs(tmp_path: Path) -> None:
    text, page = mostly_right(case()).write(tmp_path)
    policy = next(meta["content"] for meta in page.of("meta") if meta.get("http-equiv"))
    seal = base64.b64encode(hashlib.sha256(page.scripts.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "innerHTML" not in page.scripts
