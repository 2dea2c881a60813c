"""The scripts of the pages that runs and evaluations leave, in a real browser and from a file, as people open them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.classifier import Classifier
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation.accuracy import compute_metrics
from vitreous.evaluation.counts import PerClass
from vitreous.evaluation.evaluation_report import write_evaluation_report as write_evaluation
from vitreous.evaluation.predictions import predict_dataset
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.training.run_report import write_report as write_run

from conftest import random_checkpoint

HOSTILE = "<img src=x onerror=alert(1)>"
Opened = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Opened]:
    """Opens a page by its file; at the end, nothing must have been refused, asked for or gone wrong in it."""
    pages: list[Any] = []
    faults: list[str] = []

    def open_page(path: Path, fragment: str = "", **context: Any) -> Any:
        page = chromium.new_context(**context).new_page()
        page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else faults.append(request.url))
        page.goto(path.as_uri() + fragment)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert faults == []


# A run's page -----------------------------------------------------------------------------------------------------------------


def run_page(folder: Path) -> Path:
    history: list[dict[str, Any]] = []
    for step in range(1, 101):
        place = dict(step=step, epoch=step / 10, images=32 * step, seconds=step / 2, lr=0.01, images_per_second=64.0)
        history.append({**place, "split": "train", "loss": 2 / step})
        if step % 10 == 0:
            history.append({**place, "split": "validation", "loss": 4 / step, "top1": 1 - 1 / step, "n": 50})
    classes = ("ant", HOSTILE, "cat", "class 10", "class 9")
    confusion = np.diag([9, 8, 7, 6, 5]) + np.eye(5, k=1, dtype=np.int64) * np.array([[1], [3], [2], [9], [0]])
    worst = (Mistake("test/1.png", np.zeros((8, 8), np.uint8), ("cat",), ((HOSTILE, 0.75), ("cat", 0.2)), 3.25),)
    correct, predicted, there = (part.tolist() for part in (np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)))
    per_class = tuple(PerClass(c / p, c / n, 2 * c / (p + n), n) for c, p, n in zip(correct, predicted, there, strict=True))
    outcome = ValidationResult("test", classes, confusion, 0.7, None, int(confusion.sum()), 0.5, worst, per_class)
    return write_run(folder, title=HOSTILE, config={}, history=history, outcome=outcome, notes=())


def test_a_pointer_on_a_curve_reads_its_values(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_page(tmp_path))
    chart = page.locator("figure.chart").first
    svg, reading = chart.locator("svg"), chart.locator(".reading")
    assert reading.is_hidden()
    box = svg.bounding_box()
    scale = box["width"] / 440  # of the drawing's own units

    def at(share: float) -> list[str]:
        page.mouse.move(box["x"] + scale * (56 + (432 - 56) * share), box["y"] + 40)
        return [line.inner_text() for line in reading.locator("div").all()]

    assert at(0.5) == ["step 50", "train 0.04", "validation 0.08"]
    assert at(0.523) == ["step 52", "train 0.03846", "validation 0.08 (step 50)"]
    assert at(1.0) == ["step 100", "train 0.02", "validation 0.04"]
    shown = reading.bounding_box()
    frame = chart.bounding_box()
    assert frame["x"] <= shown["x"]
    assert shown["x"] + shown["width"] <= frame["x"] + frame["width"]
    # The mark lies on the curve: its height is that of the value on the axis, which is read from the labels of the ticks.
    dot = chart.locator("svg g circle").first
    ticks = chart.locator('svg text[text-anchor=end][x="50"]').all()
    heights = np.array([float(tick.get_attribute("y")) - 4 for tick in ticks])
    values = np.log([float(tick.text_content()) for tick in ticks])
    slope, shift = np.polyfit(values, heights, 1)
    assert float(dot.get_attribute("cy")) == pytest.approx(slope * np.log(0.02) + shift, abs=0.6)
    page.mouse.move(0, 0)
    assert reading.is_hidden()
    assert chart.locator("svg g circle").count() == 0


def test_what_a_finger_has_read_stays_until_it_taps_elsewhere(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_page(tmp_path), viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    svg = page.locator("figure.chart svg").first
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    reading = page.locator("figure.chart .reading").first
    touch = page.context.new_cdp_session(page)
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 60}
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
    reading.wait_for(state="visible")
    first = reading.locator("div").first.inner_text()
    assert re.fullmatch(r"step 4\d", first)
    shown = reading.bounding_box()
    assert shown["x"] + shown["width"] <= 390
    for further in (10, 20, 40):
        point = {**place, "x": place["x"] + further}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    page.wait_for_function("first => document.querySelector('.reading div').textContent > first", arg=first)
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_timeout(100)
    assert reading.is_visible()
    page.touchscreen.tap(5, 5)
    reading.wait_for(state="hidden")


def test_headings_sort_the_classes(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_page(tmp_path))
    table = page.locator("table.classes")
    column = lambda k: [row.split("\t")[k] for row in table.locator("tbody tr").all_inner_texts()]  # noqa: E731
    images = lambda: [int(cell) for cell in column(4)]  # noqa: E731
    assert table.locator("th[aria-sort]").inner_text().startswith("F1")
    table.get_by_role("button", name="class").click()
    assert column(0) == [HOSTILE, "ant", "cat", "class 9", "class 10"]  # numbers in names count as numbers
    table.get_by_role("button", name="images").click()
    assert images() == sorted([10, 11, 9, 15, 5])
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    table.get_by_role("button", name="images").press("Enter")
    assert images() == sorted([10, 11, 9, 15, 5], reverse=True)
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    table.get_by_role("button", name="precision").click()
    shares = [float(cell.removesuffix(" %")) for cell in column(1)]
    assert shares == sorted(shares)


def test_untrusted_names_stay_text_on_a_runs_page(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_page(tmp_path))
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").evaluate_all("all => all.every((one) => one.src.startsWith('data:image/'))")
    page.locator("table.classes").get_by_role("button", name="class").click()
    assert page.locator('img[src="x"]').count() == 0


# An evaluation's page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, and all of them are guessed: the head of random weights is levelled, or it would prefer one."""
    classes = ("ant", HOSTILE, "cat")
    images = np.random.default_rng(1).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    source = Arrays("photos", "test", classes, images, np.arange(60) % 3)
    small = dict(image_size=8, width=16, depth=2, heads=2, mlp=16, classes=3)
    clf = Classifier(random_checkpoint("ViT-Ti/4", names=classes, preprocess="resize(8)|range(-1,1)", **small))
    with torch.no_grad():
        clf.model.head.bias -= clf.model(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1).mean(dim=0)
    answers = predict_dataset(clf, source, workers=0)
    numbers = {"checkpoint": "runs/a", **compute_metrics(answers)}
    return write_evaluation(tmp_path_factory.mktemp("evaluation"), clf, source, answers, numbers)


def cells(page: Any) -> list[str]:
    return [link.get_attribute("href").removeprefix("#") for link in page.locator("table.matrix td a").all()]


def seen(page: Any) -> list[str]:
    """The cells of the gallery that are in sight."""
    return [
        one.locator("[id]").first.get_attribute("id") for one in page.locator("#gallery details.cell").all() if one.is_visible()
    ]


def test_a_cell_of_the_confusion_shows_its_images(opened: Opened, evaluation: Path) -> None:
    page = opened(evaluation)
    every = cells(page)
    assert len(every) > 3
    assert len(seen(page)) == 1
    wanted = next(cell for cell in every if cell != seen(page)[0])
    page.locator(f'table.matrix a[href="#{wanted}"]').click()
    assert seen(page) == [wanted]
    assert page.url.endswith(f"#{wanted}")
    assert page.locator("table.matrix a[aria-current]").get_attribute("href") == f"#{wanted}"
    assert page.locator("#gallery details.here figure").first.is_visible()
    page.go_back()
    page.wait_for_function("wanted => !document.querySelector('details.here').querySelector(`[id='${wanted}']`)", arg=wanted)
    page.get_by_role("link", name="show all").click()
    page.wait_for_function("() => !document.getElementById('gallery').classList.contains('one')")
    assert len(seen(page)) == len(page.locator("#gallery details.cell").all())
    assert opened(evaluation, f"#{wanted}").locator("details.here [id]").first.get_attribute("id") == wanted


def test_arrow_keys_go_from_cell_to_cell(opened: Opened, evaluation: Path) -> None:
    page = opened(evaluation)
    here = lambda: page.evaluate("document.activeElement.getAttribute('href')")  # noqa: E731
    links = page.locator("table.matrix td a")
    assert links.evaluate_all("all => all.filter((one) => one.tabIndex === 0).length") == 1  # one stop for Tab
    links.first.focus()
    first = here()
    truth, guess = (int(part) for part in first.removeprefix("#cell-").split("-"))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert here() == first  # there is nothing
    page.keyboard.press("ArrowRight")
    right = here()
    assert right.startswith(f"#cell-{truth}-")
    assert int(right.rpartition("-")[2]) > guess
    page.keyboard.press("ArrowDown")
    below = here()
    assert int(below.removeprefix("#cell-").split("-")[0]) > truth
    assert below.rpartition("-")[2] == right.rpartition("-")[2]
    page.keyboard.press("Enter")
    page.wait_for_function("wanted => document.querySelector('details.here [id]').id === wanted", arg=below[1:])


def test_one_switch_lays_the_attention_over_all_images(opened: Opened, evaluation: Path) -> None:
    page = opened(evaluation)
    switches = page.locator("input.looked")
    assert switches.count() >= 1
    heat = page.locator("#gallery details.here img.heat").first
    opacity = lambda: float(heat.evaluate("one => getComputedStyle(one).opacity"))  # noqa: E731
    assert opacity() == 0
    page.locator("#gallery input.looked").check()
    page.wait_for_function("() => getComputedStyle(document.querySelector('details.here img.heat')).opacity === '1'")
    assert switches.evaluate_all("all => all.every((one) => one.checked)")
    page.locator("#gallery input.looked").uncheck()
    page.wait_for_function("() => getComputedStyle(document.querySelector('details.here img.heat')).opacity === '0'")


def test_untrusted_names_stay_text_on_an_evaluations_page(opened: Opened, evaluation: Path) -> None:
    page = opened(evaluation)
    page.locator("table.matrix a").last.click()
    assert page.locator('img[src="x"]').count() == 0
    assert HOSTILE in page.locator("body").inner_text()
