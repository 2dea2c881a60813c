"""The page of an inspection in a real browser: its script works under its policy, by mouse and keys, and it fits a phone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.classifier import Classifier
from vitreous.inference.features import Features
from vitreous.inspection.data_map import DataMap, project_features
from vitreous.inspection.inspect_model import InputImage, inspect_model
from vitreous.inspection.inspection_dir import write_inspection_dir

from conftest import random_checkpoint

CLASSES = ("cat", "dog")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    options: dict[str, Any] = dict(image_size=16, width=16, depth=3, heads=2, mlp=16, classes=2, names=CLASSES)
    clf = Classifier(random_checkpoint("ViT-Ti/4", **options))
    images = [InputImage(f"{k}.png", clf.preprocess(random.integers(90, 256, (20, 20, 3), dtype=np.uint8))) for k in range(2)]
    thumbnails = np.zeros((4, 40, 40, 3), np.uint8)
    thumbnails[:, ..., 0] = np.arange(4)[:, None, None] * 60  # known by how red they are
    values = np.array([[0.0, 0], [3, 0.1], [0, 1], [3, 1.2]], np.float32)  # PCA keeps them at the corners of a rectangle
    features = Features(values, ((0,), (1,), (0,), (1,)), ("a", "b", "c", "d"), np.arange(4), CLASSES)
    data_map = DataMap("photos", features, thumbnails, *project_features(values, "pca"))
    found = replace(inspect_model(clf, images, closely=2), data_map=data_map)
    out = tmp_path_factory.mktemp("page") / "out"
    write_inspection_dir(out, found, {"checkpoint": "runs/a", "images_of": "photos", "notes": ["a note"]}, began=0.0)
    return out / "report.html"


def opened(chromium: Any, report: Path, width: int = 1200) -> tuple[Any, list[str]]:
    page = chromium.new_page(viewport={"width": width, "height": 900})
    troubles: list[str] = []
    reading = "Canvas2D: Multiple readback"  # what these tests do, and the page does not
    page.on("console", lambda said: None if said.text.startswith(reading) else troubles.append(said.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(report.as_uri())
    return page, troubles


def test_layers_are_gone_through_one_by_one(chromium: Any, report: Path) -> None:
    page, troubles = opened(chromium, report)
    box = page.locator("details.heads").first
    box.locator("summary").click()
    slider = box.locator("input[type=range]")
    assert slider.get_attribute("max") == "2"
    assert box.locator("canvas").count() == 2
    page.wait_for_function("document.querySelector('details.heads output').textContent === 'layer 2'")
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((v, i) => i % 4 < 3)"
    last = box.locator("canvas").first.evaluate(pixels)
    assert max(last) > 60
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert box.locator("output").inner_text() == "layer 1"
    assert box.locator("canvas").first.evaluate(pixels) != last
    assert "layer 1, head 0" in box.locator("canvas").first.get_attribute("aria-label")
    assert troubles == []
    page.close()


def test_points_of_the_map_show_their_images(chromium: Any, report: Path) -> None:
    page, troubles = opened(chromium, report)
    circles = page.locator(".map circle")
    assert circles.count() == 4
    red = "canvas => canvas.getContext('2d').getImageData(48, 48, 1, 1).data[0]"
    told, thumbnail = page.locator(".map .told"), page.locator(".map .thumbnail")
    boxes = {}
    for k, name in enumerate(("a", "b", "c", "d")):
        at = page.locator(f'.map .p[data-at="{k}"] circle')
        at.scroll_into_view_if_needed()
        boxes[name] = at.bounding_box()
        at.hover(force=True)
        assert told.inner_text() == f"{CLASSES[k % 2]}: {name}"
        assert thumbnail.is_visible()
        assert abs(thumbnail.evaluate(red) - 60 * k) < 12
    page.mouse.move(5, 5)
    assert not thumbnail.is_visible()

    page.locator(".map").focus()
    page.keyboard.press("ArrowRight")  # enters
    first = told.inner_text()[-1]
    on_the_left = boxes[first]["x"] < 600
    page.keyboard.press("ArrowRight" if on_the_left else "ArrowLeft")
    second = told.inner_text()[-1]
    assert (boxes[second]["x"] - boxes[first]["x"]) * (1 if on_the_left else -1) > 100
    page.keyboard.press("Escape")
    assert not thumbnail.is_visible()

    dogs = page.get_by_role("button", name="dog")
    assert dogs.get_attribute("aria-pressed") == "true"
    dogs.click()
    assert dogs.get_attribute("aria-pressed") == "false"
    assert [page.locator(f'.map .p[data-at="{k}"]').is_visible() for k in range(4)] == [True, False, True, False]
    dogs.click()
    assert page.locator('.map .p[data-at="1"]').is_visible()
    assert troubles == []
    page.close()


def test_it_fits_a_phone_and_reads_without_its_script(chromium: Any, report: Path) -> None:
    page, _ = opened(chromium, report, width=390)
    for box in page.locator("details summary").all():
        box.click()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    page.close()
    bare = chromium.new_context(java_script_enabled=False).new_page()
    bare.goto(report.as_uri())
    assert bare.locator(".map title").count() == 4
    assert bare.locator("img.drawn").count() == 8
    assert bare.get_by_text("What is healthy").count() == 10
    bare.close()
