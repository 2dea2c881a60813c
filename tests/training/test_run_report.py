"""The page of a run: right numbers, nothing that runs or loads, and a size that does not grow with the run."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import binomtest

from html_page import Page
from vitreous.core.errors import VitreousError
from vitreous.evaluation.class_tables import count_cells, rank_confusions
from vitreous.evaluation.counts import PerClass
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.training.run_report import write_report

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a'b\n\x1b[31m\u202e</svg>")


def records(steps: int, every: int = 1, **more: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        place = dict(step=step, epoch=step / 10, images=step * 32, seconds=step * 0.5, lr=0.01, images_per_second=64.0)
        made.append({**place, "split": "train", "loss": 2 / step, **more})
        if step % (10 * every) == 0:
            made.append({**place, "split": "validation", "loss": 2.1 / step, "top1": 1 - 1 / step, "top5": 1.0, "n": 50})
    return made


def outcome(confusion: NDArray[np.int64], names: tuple[str, ...] | None = None, **more: Any) -> ValidationResult:
    names = names or tuple(f"class {k}" for k in range(len(confusion)))
    n = int(confusion.sum())
    correct, predicted, there = np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)
    shares = (
        correct / np.maximum(1, predicted),
        correct / np.maximum(1, there),
        2 * correct / np.maximum(1, predicted + there),
    )
    per_class = tuple(PerClass(*row) for row in zip(*(share.tolist() for share in shares), there.tolist(), strict=True))
    settings: dict[str, Any] = dict(top1=float(np.trace(confusion) / n), top5=None, n=n, loss=0.5, mistakes=())
    settings["per_class"] = per_class
    return ValidationResult("test", names, confusion, **{**settings, **more})


def written(folder: Path, **parts: Any) -> tuple[str, Page]:
    settings: dict[str, Any] = dict(title="ViT-Ti/4 on digits", config={}, history=records(40), outcome=None, notes=())
    path = write_report(folder, **{**settings, **parts})
    assert path == folder / "report.html"
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


def mistake(side: int | tuple[int, ...] = 8, truth: str = "cat", **more: Any) -> Mistake:
    shape = side if isinstance(side, tuple) else (side, side, 3)
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    settings: dict[str, Any] = dict(id="test/1.png", truth=(truth,), guesses=(("dog", 0.75), (truth, 0.2)), loss=3.25)
    return Mistake(pixels=picture, **{**settings, **more})


# Numbers ----------------------------------------------------------------------------------------------------------------------


def test_what_was_counted_class_by_class_comes_before_the_confusion(tmp_path: Path) -> None:
    counted = (PerClass(0.123, 0.5, 0.25, 7), PerClass(0.0, 0.0, 0.0, 0))
    _, page = written(tmp_path, outcome=outcome(np.eye(2, dtype=np.int64), per_class=counted))
    assert "12.3 %" in page.said
    assert "the 1 classes that have images" in page.said


def test_the_most_confused_pairs_come_in_order() -> None:
    confusion = np.array([[90, 8, 2], [0, 10, 8], [1, 0, 0]])
    cells = count_cells(confusion)
    assert rank_confusions(cells) == [(1, 2), (0, 1), (0, 2), (2, 0)]  # 8 of 18 before 8 of 100
    assert rank_confusions(cells, 1) == [(1, 2)]


@pytest.mark.parametrize(("right", "n"), [(0, 5), (5, 5), (790, 1000), (1, 3), (9990, 10000)])
def test_the_interval_is_wilsons(right: int, n: int) -> None:
    expected = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_headline_says_the_result_and_its_n(tmp_path: Path) -> None:
    _, page = written(tmp_path, outcome=outcome(np.array([[700, 100], [50, 150]]), top5=0.9971))
    assert "85.00 % of 1,000 test images correct (95 % interval 82.65 to 87.08); top-5 accuracy 99.71 %." in page.said
    assert "40 steps, 4 epochs, 1,280 images seen, 20 s, 2 classes, test loss 0.5, 4.25 % accuracy per second." in page.said


@pytest.mark.parametrize(("majority", "good"), [(None, True), (0.8499, True), (0.85, False), (0.8501, False)])
def test_a_result_below_the_majority_class_is_not_coloured_as_good(tmp_path: Path, majority: float | None, good: bool) -> None:
    html, page = written(tmp_path, outcome=outcome(np.array([[700, 100], [50, 150]]), majority=majority))
    assert ('class="verdict good"' in html) == good
    assert ("always predicting the largest class: 85" in page.said.replace("84.99", "85.0")) == (majority is not None)


# The page ---------------------------------------------------------------------------------------------------------------------


def test_only_the_pages_own_script_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    html, page = written(tmp_path, outcome=outcome(np.eye(3, dtype=np.int64), mistakes=(mistake(),)))
    policy = next(meta["content"] or "" for meta in page.of("meta") if meta.get("http-equiv"))
    seal = base64.b64encode(hashlib.sha256(page.scripts.encode()).digest()).decode()
    assert f"script-src 'sha256-{seal}'" in policy
    assert "default-src 'none'" in policy
    assert len(page.of("script")) == 1
    addresses = [value or "" for _, about in page.elements for name, value in about.items() if name in ("src", "href")]
    assert addresses
    assert all(address.startswith("data:image/") for address in addresses)
    assert "@import" not in html
    assert "url(" not in html


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    worst = mistake(truth=HOSTILE[0], id=HOSTILE[1], guesses=((HOSTILE[1], 0.5), (HOSTILE[2], math.nan)))
    history = [*records(20), {"step": 21, "split": HOSTILE[1], "loss": 1.0, HOSTILE[0]: 2.0, "top1": HOSTILE[0]}]
    config = {HOSTILE[0]: HOSTILE[1], "data": {"name": HOSTILE[1]}}
    confusion = np.full((3, 3), 2)
    plain, clean = written(tmp_path / "a", outcome=outcome(confusion, mistakes=(mistake(),)), history=history)
    html, page = written(
        tmp_path / "b",
        title=HOSTILE[0],
        config=config,
        notes=HOSTILE,
        history=history,
        outcome=outcome(confusion, HOSTILE, mistakes=(worst,)),
    )
    assert len(page.of("script")) == 1
    assert len(page.of("img")) == len(clean.of("img")) == 1
    assert len(page.of("svg")) == len(clean.of("svg"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.said.count(HOSTILE[0]) > 5
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert any(image["alt"] == HOSTILE[0] for image in page.of("img"))
    assert plain != html


def test_thumbnails_are_small_and_tiny_pictures_are_kept_to_the_pixel(tmp_path: Path) -> None:
    shapes = [(1000, 300, 3), (8, 8, 3), (28, 28), (30, 20, 1), (400, 90)]
    mistakes = tuple(mistake(shape) for shape in shapes)
    _, page = written(tmp_path, outcome=outcome(np.eye(2, dtype=np.int64), mistakes=mistakes))
    for shape, given, image in zip(shapes, mistakes, page.of("img"), strict=True):
        source = image["src"] or ""
        shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
        assert max(shown.size) == min(160, max(shape[:2]))
        if max(shape[:2]) <= 64:
            np.testing.assert_array_equal(np.asarray(shown), given.pixels.squeeze())


def test_a_mistake_shows_truth_guesses_and_loss(tmp_path: Path) -> None:
    worst = mistake(truth="otter", loss=math.inf, guesses=(("seal", 0.812), ("otter", 0.1), ("dog", math.nan), ("cat", 1.7)))
    _, page = written(tmp_path, outcome=outcome(np.eye(2, dtype=np.int64), mistakes=(worst,)))
    guesses = [item for item in page.of("li") if (item.get("class") or "").startswith("guess")]
    assert [item["style"] for item in guesses] == ["--p:0.812", "--p:0.100", "--p:0.000", "--p:1.000"]
    assert [item["class"] for item in guesses] == ["guess", "guess right", "guess", "guess"]
    assert "seal81%otter10%dog–" in page.said
    assert "test/1.png · loss not finite" in page.said


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_a_small_matrix_is_shown_whole(tmp_path: Path, classes: int) -> None:
    confusion = np.random.default_rng(0).integers(1, 9, (classes, classes))
    html, page = written(tmp_path, outcome=outcome(confusion))
    matrix = html[html.index('<table class="matrix">') :].partition("</table>")[0]
    cells = re.findall(r'<td class="(right|wrong)[^>]*>(\d+)</td>', matrix)
    assert [int(count) for _, count in cells] == confusion.ravel().tolist()
    assert [kind == "right" for kind, _ in cells] == np.eye(classes, dtype=bool).ravel().tolist()
    assert "most confused pairs" in page.said


def test_of_many_classes_the_worst_pairs_and_rows_are_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    confusion = np.diag(rng.integers(20, 50, 1200)) + (rng.random((1200, 1200)) < 0.01)
    confusion[17, 1100] = 400
    confusion[3] = confusion[:, 3] = 0  # a class without images
    html, page = written(tmp_path, outcome=outcome(confusion), history=records(2000))
    assert "matrix" not in html.partition("<body>")[2].replace("confusion matrix", "")
    assert "class 17class 1100400" in page.said
    table = html[html.index('<table class="classes') :].partition("</table>")[0]
    assert table.count("<tr>") == 1001
    assert table.index(">class 17<") < table.index(">class 18<")
    assert ">class 3<" not in table
    assert len(html) < 1_500_000


def test_too_many_classes_to_count_pairs(tmp_path: Path) -> None:
    """21,843 classes: no confusion, as `Counts` keeps none, but results class by class if they are given."""
    names = tuple(f"class {k}" for k in range(3000))
    bare = ValidationResult("validation", names, np.zeros((0, 0), np.int64), 0.5, 0.7, 100, 2.0, ())
    html, page = written(tmp_path, outcome=bare)
    assert "Confusion" not in page.said
    assert "Per-class accuracy" not in page.said
    counted = tuple(PerClass(0.5, 0.5, k / 3000, 1) for k in range(3000))
    html, page = written(tmp_path, outcome=replace(bare, per_class=counted))
    assert "The 1,000 lowest of 3,000 classes." in page.said
    assert ">class 999<" in html
    assert ">class 1000<" not in html


def test_a_run_without_classes_has_curves_and_the_way_to_fine_tune(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    _, page = written(folder, history=records(200, accuracy=0.5))
    assert "Validation loss 0.0105 after 200 steps." in page.said
    assert [svg["aria-label"] for svg in page.of("svg") if "accuracy" in (svg["aria-label"] or "")]
    assert "Confusion" not in page.said
    assert f"vitreous finetune DATA --from '{folder / 'checkpoint'}' --out" in page.said


def test_commands_name_the_data(tmp_path: Path) -> None:
    _, page = written(tmp_path, outcome=outcome(np.eye(2, dtype=np.int64)), config={"data": {"name": "my photos"}})
    assert f"vitreous evaluate {tmp_path / 'checkpoint'} 'my photos'" in page.said
    assert f"vitreous predict {tmp_path / 'checkpoint'} IMAGE..." in page.said


def test_settings_are_all_there_and_notes_stand_once(tmp_path: Path) -> None:
    config = {"recipe": {"lr": 0.003, "sweep": [1, 2]}, "from": {}, "seed": 7, "long": "x" * 9999, "decisions": ["because"]}
    html, page = written(tmp_path, config=config, notes=["because"])
    for name, value in (("recipe.lr", "0.003"), ("recipe.sweep", "1, 2"), ("seed", "7"), ("from", "{}")):
        assert f'<th scope="row">{name}</th><td>{value}</td>' in html
    assert page.said.count("because") == 1
    assert "x" * 401 not in html


def test_a_loss_that_broke_is_bad_news(tmp_path: Path) -> None:
    history = [*records(9), {"step": 10, "split": "train", "loss": math.nan, "lr": None}]
    html, page = written(tmp_path, history=history)
    assert 'class="verdict bad"' in html
    assert "The train loss was not a finite number at step 10." in page.said


@pytest.mark.parametrize(
    "history", [[], [{}], [{"step": None, "split": "train", "loss": "x"}], [{"step": 10**400, "loss": True}]]
)
def test_an_empty_or_odd_history_makes_a_page(tmp_path: Path, history: list[dict[str, Any]]) -> None:
    html, page = written(tmp_path, history=history)
    assert "Nothing has been measured yet." in page.said
    assert "<svg" not in html


def test_a_long_run_does_not_make_a_long_page(tmp_path: Path) -> None:
    html, page = written(tmp_path, history=records(20_000, top1=0.25))
    assert len(html) < 500_000
    for svg in page.of("svg"):
        for series in json.loads(svg["data-chart"] or "")["series"]:
            assert len(series["points"]) <= 1000


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitreousError, match=r"report\.html: cannot write"):
        written(tmp_path / "file")


def test_a_failure_leaves_the_older_page(tmp_path: Path) -> None:
    before, _ = written(tmp_path)
    with pytest.raises(ValueError, match="longer"):
        written(tmp_path, outcome=outcome(np.eye(2, dtype=np.int64), ("only one",)))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
