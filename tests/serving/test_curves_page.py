"""The page of runs in a real browser: it follows runs as they grow, tells the truth about them, and runs nothing of theirs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import Watched, served
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.serving.app import build_app
from vitreous.training.mistakes import write_mistakes

OLD = 1_700_000_000.0
HOSTILE = "<img src=x onerror=alert(1)>"
WAIT = 15_000


def record(step: int, split: str = "train", **more: Any) -> dict[str, Any]:
    made = dict(
        step=step,
        epoch=step / 10,
        images=step * 32,
        seconds=step * 0.5,
        flops=step * 2e13,
        split=split,
        lr=0.001,
        loss=2 / step,
    )
    return {**made, **(dict(images_per_second=64.0) if split == "train" else {}), **more}


def history(steps: int, scale: float = 1.0) -> list[dict[str, Any]]:
    made = []
    for step in range(1, steps + 1):
        made.append(record(step, loss=scale * 2 / step))
        if step % 10 == 0:
            made.append(record(step, "validation", loss=scale * 2.5 / step, top1=1 - 1 / step, n=50))
    return made


def append(path: Path, records: list[dict[str, Any]]) -> None:
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(one) + "\n" for one in records))


def run(folder: Path, name: str, records: list[dict[str, Any]], done: bool = True, changed: float = OLD, **recipe: Any) -> Path:
    path = folder / name
    (path / "state").mkdir(parents=True)
    config = {"verb": "pretrain", "model": {"name": "ViT-Ti/2"}, "data": {"name": "builtin:digits"}}
    (path / "config.json").write_text(json.dumps({**config, "recipe": {"steps": 100, "lr": 0.1, **recipe}, "decisions": ["x"]}))
    append(path, records)
    if done:
        (path / "state" / "done.json").write_text('{"steps": 100}')
        os.utime(path / "metrics.jsonl", (changed, changed))
    return path


Opened = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens the page on the runs in `tmp_path/runs`; at the end, nothing must have gone wrong in it."""
    (tmp_path / "runs").mkdir()
    pages: list[tuple[Any, Watched]] = []
    with served(build_app((), runs=tmp_path / "runs")) as address:

        def open_page(fragment: str = "", expected: tuple[str, ...] = (), **context: Any) -> Any:
            page = chromium.new_context(**context).new_page()
            page.set_default_timeout(WAIT)
            watched = Watched(page, address)
            watched.expected = expected
            page.on("dialog", lambda dialog: watched.faults.append(f"a dialog: {dialog.message}"))
            pages.append((page, watched))
            page.clock.install()
            page.goto(f"{address}/curves{fragment}")
            page.wait_for_selector("#count:not(:empty)", state="attached")
            page.watched = watched
            return page

        yield open_page
        for page, _ in pages:
            page.context.close()
    assert [watched.unexpected() for _, watched in pages] == [[] for _ in pages]


def in_time(page: Any, expression: str) -> None:
    """Wait until it is true; the page's own time goes by in leaps, because it asks the server only every two seconds."""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(f"() => Boolean({expression})"):
        assert time.monotonic() < end, f"it did not come true: {expression}"
        page.clock.fast_forward(1000)
        page.wait_for_timeout(50)


def path_of(page: Any, name: str, split: str, key: str = "loss") -> str:
    found = page.locator(f'[data-key={key}] path[data-run="{name}"][data-split={split}]').last
    return found.get_attribute("d") or ""


def points(path: str) -> int:
    return len(re.findall(r"[ML]", path))


def choose(page: Any, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Show {name}", exact=True).check()


# Curves -----------------------------------------------------------------------------------------------------------------------


def test_a_curve_grows_while_one_looks(opened: Opened, tmp_path: Path) -> None:
    path = run(tmp_path / "runs", "a", history(15), done=False)
    page = opened()
    page.wait_for_selector("[data-key=loss] path[data-run=a][data-split=train]")
    assert page.locator("#live").inner_text() == "live: 1 running"
    assert points(path_of(page, "a", "train")) == 15
    page.evaluate("window.here = true")
    append(path, [record(16)])
    append(path, history(40)[-27:])  # from step 17, with evaluations
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "split": "tr')  # half a line
    curve = "document.querySelector('[data-key=loss] path[data-run=a][data-split=train].thin')"
    drawn = f"{curve}.getAttribute('d').match(/[ML]/g)"
    in_time(page, f"{drawn}.length >= 40")
    assert page.evaluate("window.here")  # without loading it again
    assert points(path_of(page, "a", "validation")) == 4
    assert page.locator("#runs tbody tr").count() == 1
    in_time(page, "document.querySelector('#runs .progress').textContent === '40 of 100'")
    asked = [one for one in page.watched.requests if one.startswith("GET /runs/a")]
    assert asked[0] == "GET /runs/a"
    assert all(re.fullmatch(r"GET /runs/a\?after=\d+", one) for one in asked[1:])
    assert "unreadable" not in page.locator("#legend").inner_text()
    # A resume goes back to its last state: what was measured after it is forgotten, here too.
    again = tmp_path / "again"
    again.write_text("".join(json.dumps(one) + "\n" for one in history(20)))
    again.replace(path / "metrics.jsonl")
    in_time(page, f"{drawn}.length === 20")
    assert points(path_of(page, "a", "validation")) == 2
    # Its end is noticed, and from then on it rests.
    (path / "state" / "done.json").write_text("{}")
    in_time(page, "document.querySelector('#legend').textContent.includes('finished')")
    before = len(page.watched.requests)
    for _ in range(4):
        page.clock.fast_forward(2100)
        page.wait_for_timeout(150)
    since = page.watched.since(before)
    assert "GET /runs" in since
    assert not [one for one in since if one.startswith("GET /runs/a")]


def test_runs_are_laid_over_each_other_and_compared(opened: Opened, tmp_path: Path) -> None:
    run(tmp_path / "runs", "a", history(100), changed=OLD + 2)
    run(tmp_path / "runs", "group/b c", history(100, scale=0.5), changed=OLD + 1, lr=0.3)
    run(tmp_path / "runs", "masked", [record(5)], changed=OLD)
    page = opened()
    page.wait_for_selector("[data-key=loss] path")  # the newest is shown without being asked for
    assert page.locator("#legend .who").all_inner_texts() == ["a"]
    choose(page, "group/b c")
    page.wait_for_selector('[data-key=loss] path[data-run="group/b c"]')
    assert page.locator("figure.chart").evaluate_all("all => all.map((one) => one.dataset.key)") == [
        "loss", "top1", "lr", "images_per_second",
    ]  # fmt: skip
    strokes = page.locator("[data-key=top1] path").evaluate_all("all => all.map((one) => getComputedStyle(one).stroke)")
    assert len(strokes) == len(set(strokes)) == 2
    rows = {
        row.locator("th").inner_text(): [" ".join(cell.split()) for cell in row.locator("td").all_inner_texts()]
        for row in page.locator("#results tbody tr").all()
    }
    assert rows["validation loss, last"] == ["0.025", "0.0125 (the best)"]
    assert rows["validation accuracy, best"] == ["99.00 % (step 100)", "99.00 % (step 100)"]
    assert rows["time"] == ["50 s", "50 s"]
    assert rows["PFLOP of training"] == ["2", "2"]
    assert rows["accuracy per PFLOP"] == ["49.5 %", "49.5 %"]
    assert rows["accuracy per second"] == ["1.98 %", "1.98 %"]
    assert page.locator("#settings tbody tr").all_inner_texts() == ["recipe.lr\t0.1\t0.3"]
    # The address has it all: somebody else sees the same.
    page.get_by_role("radio", name="epoch").check()
    page.get_by_label("logarithmic loss").uncheck()
    page.locator("#smooth").fill("0")
    page.get_by_role("checkbox", name="train").uncheck()
    other = opened("#" + page.url.partition("#")[2])
    other.wait_for_selector('[data-key=loss] path[data-run="group/b c"]')
    assert other.locator("#legend .who").all_inner_texts() == ["a", "group/b c"]
    assert other.get_by_role("radio", name="epoch").is_checked()
    assert not other.get_by_label("logarithmic loss").is_checked()
    assert other.locator("path[data-split=train]").count() == 0
    assert path_of(other, "a", "validation") == path_of(page, "a", "validation")
    page.get_by_role("button", name="Leave out a", exact=True).click()
    page.wait_for_function("() => !document.querySelector('path[data-run=a]')")
    assert "run=a" not in page.url
    page.get_by_role("button", name="Choose none").click()
    page.wait_for_selector("#nothing:not([hidden])")
    assert page.locator("figure.chart").count() == 0


def test_an_accuracy_below_the_majority_class_is_no_success(opened: Opened, tmp_path: Path) -> None:
    """A run that learnt nothing is marked, and is not the best of two that learnt nothing."""
    for name, top1, majority in (("good", 0.6, 0.238), ("poor", 0.217, 0.238), ("worse", 0.1, 0.238)):
        path = run(tmp_path / "runs", name, [record(5), record(5, "validation", top1=top1)])
        (path / "state" / "done.json").write_text(json.dumps({"top1": top1, "majority": majority}))
    page = opened("#run=poor&run=worse")
    page.wait_for_selector("[data-key=top1] [data-run=worse]", state="attached")
    cells = {row.locator("th").inner_text(): row.locator("td.top1") for row in page.locator("table.runs tbody tr").all()}
    assert cells["poor"].inner_text() == "21.70 % (largest class alone 23.80 %)"
    assert {name: "below" in (cell.get_attribute("class") or "") for name, cell in cells.items()} == {
        "good": False, "poor": True, "worse": True,
    }  # fmt: skip
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in page.locator("#results tbody tr").all()
    }
    assert rows["validation accuracy, last"] == ["21.70 %", "10.00 %"]
    assert rows["accuracy of the largest class alone"] == ["23.80 %", "23.80 %"]


def test_the_crosshair_reads_every_run_by_pointer_and_by_keys(opened: Opened, tmp_path: Path) -> None:
    run(tmp_path / "runs", "a", history(100))
    run(tmp_path / "runs", "b", [record(step, loss=step / 100) for step in range(2, 101, 2)])
    page = opened("#run=a&run=b&hide=validation&smooth=0")
    page.wait_for_selector("[data-key=loss] path[data-run=b]")
    plot = page.locator("[data-key=loss] .plot")
    plot.focus()
    page.keyboard.press("Home")
    assert plot.get_attribute("aria-valuetext") == "step 1: a 2; b 0.02 (step 2)"
    page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuetext") == "step 2: a 1; b 0.02"
    page.keyboard.press("PageUp")
    assert plot.get_attribute("aria-valuetext") == "step 12: a 0.1667; b 0.12"
    page.keyboard.press("End")
    assert (plot.get_attribute("aria-valuenow"), plot.get_attribute("aria-valuemax")) == ("100", "100")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 58 + (box["width"] - 72) / 2, box["y"] + 60)
    reading = page.locator("[data-key=loss] .reading")
    assert re.sub(r"\s+", " ", reading.inner_text()) == "step 50 a 0.04 b 0.5"
    assert page.locator("[data-key=lr] .cursor").count() == 1  # the same place in every chart
    assert page.locator("[data-key=lr] .reading").is_hidden()
    page.get_by_role("radio", name="time").check()
    page.locator("[data-key=loss] svg").get_by_text("time", exact=True).wait_for()  # the axis is drawn in the next frame
    page.mouse.move(box["x"] + 58 + (box["width"] - 72) / 2, box["y"] + 61)
    assert reading.inner_text().startswith("25 s")
    page.get_by_role("radio", name="step").check()
    page.locator("[data-key=loss] summary").click()
    table = page.locator("[data-key=loss] details table")
    assert table.locator("thead").inner_text().split() == ["step", "a", "b"]
    assert table.locator("tbody tr").first.inner_text().split() == ["1", "2"]
    assert table.locator("tbody tr").last.inner_text().split() == ["100", "0.02", "1"]


def test_noise_is_smoothed_and_the_records_stay(opened: Opened, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run(tmp_path / "runs", "a", [record(k, loss=float(v)) for k, v in enumerate(rng.exponential(size=400) + 1, 1)])
    page = opened("#run=a&log=0&smooth=10")
    page.wait_for_selector("[data-key=loss] path.faint")

    def heights(kind: str) -> Any:
        drawn = page.locator(f"[data-key=loss] path.{kind}").get_attribute("d")
        return np.array([float(y) for y in re.findall(r" ([\d.]+)", drawn)])

    assert np.ptp(heights("thin")) < np.ptp(heights("faint")) / 3
    assert abs(heights("thin").mean() - heights("faint").mean()) < 3
    page.locator("#smooth").fill("0")
    page.wait_for_function("() => !document.querySelector('path.faint')")
    assert page.locator("#smooth-said").inner_text() == "off"
    assert points(path_of(page, "a", "train")) == 400
    page.get_by_label("logarithmic loss").check()
    page.wait_for_function("() => document.querySelector('[data-key=loss] figcaption').textContent.includes('logarithmic')")


def test_charts_and_numbers_can_be_saved(opened: Opened, tmp_path: Path) -> None:
    made = history(30)
    run(tmp_path / "runs", '=cmd, "x"', made)
    page = opened(accept_downloads=True)
    page.wait_for_selector("[data-key=loss] path")

    def saved(kind: str) -> bytes:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Download Loss as {kind}").click()
        assert download.value.suggested_filename == f"loss.{kind.lower()}"
        return Path(download.value.path()).read_bytes()

    rows = list(csv.DictReader(io.StringIO(saved("CSV").decode())))
    assert {row["run"] for row in rows} == {'\'=cmd, "x"'}  # a spreadsheet would take it for a formula
    for split in ("train", "validation"):
        expected = [(one["step"], one["epoch"], one["seconds"], one["loss"]) for one in made if one["split"] == split]
        found = [[float(row[key]) for key in ("step", "epoch", "seconds", "loss")] for row in rows if row["split"] == split]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    drawing = ElementTree.fromstring(saved("SVG"))
    words = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert "Loss" in words
    assert '=cmd, "x" validation' in words
    assert not [element for element in drawing.iter() if "class" in element.attrib or element.tag.endswith("script")]
    picture = Image.open(io.BytesIO(saved("PNG")))
    assert picture.width > 700
    colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert (0x2F, 0x6F, 0xB5) in colours  # the curve


# The table --------------------------------------------------------------------------------------------------------------------


def test_the_table_sorts_filters_and_keeps_a_choice_within_bounds(opened: Opened, tmp_path: Path) -> None:
    for k in range(10):
        run(
            tmp_path / "runs",
            f"r{k}",
            [record(k + 1), record(k + 1, "validation", loss=(k * 7) % 10, top1=k / 10)],
            changed=OLD - k,
        )
    run(tmp_path / "runs", "r10", [record(3)], changed=OLD - 99)
    page = opened("#run=r3")
    first = lambda: page.locator("#runs tbody th").all_inner_texts()  # noqa: E731
    assert first()[:2] == ["r0", "r1"]
    page.get_by_role("button", name="Accuracy", exact=True).click()
    assert first()[:2] == ["r9", "r8"]
    assert first()[-1] == "r10"  # not known comes last
    page.get_by_role("button", name="Accuracy", exact=True).click()
    assert (first()[0], first()[-1]) == ("r0", "r10")
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="Run", exact=True).click()
    assert first() == [f"r{k}" for k in range(11)]
    page.get_by_placeholder("Filter").fill("digits R1")
    assert first() == ["r1", "r10"]
    page.get_by_placeholder("Filter").fill("nothing like it")
    assert first() == []
    page.get_by_placeholder("Filter").fill("")
    choose(page, "r0", "r1", "r2", "r4", "r5", "r6", "r7")
    page.get_by_role("checkbox", name="Show r8").click()
    assert not page.get_by_role("checkbox", name="Show r8").is_checked()
    assert "At most 8" in page.locator("#problem").inner_text()
    assert page.locator("#legend li").count() == 8


# Mistakes ---------------------------------------------------------------------------------------------------------------------


def test_mistakes_are_shown_as_images_or_it_is_said_why_not(opened: Opened, tmp_path: Path) -> None:
    new = run(tmp_path / "runs", "new", history(20))
    run(tmp_path / "runs", "old", history(20), changed=OLD - 1)
    run(tmp_path / "runs", "masked", history(20), changed=OLD - 2, objective="masked-patch")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    worst = (Mistake(HOSTILE, pixels, ("cat",), ((HOSTILE, 0.75), ("cat", 0.2)), 3.25),)
    write_mistakes(
        new, ValidationResult("validation", ("cat", "dog"), np.eye(2, dtype=np.int64), 0.5, None, 50, 0.7, worst), 20
    )
    page = opened("#run=new&run=old&run=masked")
    page.wait_for_selector("#gallery img")
    assert page.locator("#gallery img").evaluate("img => [img.naturalWidth, img.alt]") == [8, f"cat, taken for {HOSTILE}"]
    assert "Of 50 validation images" in page.locator("#mistakes-said").inner_text()
    assert [one.split("\n") for one in page.locator("#gallery li").all_inner_texts()] == [[HOSTILE, "75 %"], ["cat", "20 %"]]
    for name, said in (("old", "made before mistakes.json"), ("masked", "without classes")):
        page.locator("#mistaken").select_option(name)
        page.wait_for_function("said => document.getElementById('mistakes-said').textContent.includes(said)", arg=said)
        assert page.locator("#gallery > *").count() == 0
    assert "mistakes=masked" in page.url


def test_the_mistakes_of_a_run_follow_its_evaluations(opened: Opened, tmp_path: Path) -> None:
    path = run(tmp_path / "runs", "a", history(10), done=False)
    page = opened()
    page.wait_for_function("() => document.getElementById('mistakes-said').textContent.includes('no mistakes yet')")
    worst = (Mistake("test/1", np.zeros((8, 8), np.uint8), ("cat",), (("dog", 0.75),), 3.25),)
    write_mistakes(
        path, ValidationResult("validation", ("cat", "dog"), np.eye(2, dtype=np.int64), 0.5, None, 50, 0.7, worst), 11
    )
    append(path, [record(11)])
    in_time(page, "document.querySelector('#gallery img')")
    assert "at step 11" in page.locator("#mistakes-said").inner_text()


# Faults -----------------------------------------------------------------------------------------------------------------------


def test_what_a_run_says_of_itself_stays_text(opened: Opened, tmp_path: Path) -> None:
    """The run's name, its settings, its splits and its quantities are markup; a dialog or a request would be a fault."""
    more = {HOSTILE: 1.0, "__proto__": 2.0, "constructor": 3.0}
    hostile = [record(step, split, **more) for step in range(1, 60) for split in ("train", HOSTILE, "__proto__")]
    name = HOSTILE.replace("/", "_") + "&amp; %2e%2e '\""
    path = run(tmp_path / "runs", name, hostile, **{HOSTILE: HOSTILE, "__proto__": "x"})
    append(path, [record(60, loss=None)])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b"garbage\n\xff\xfe\n")
    page = opened()
    page.wait_for_selector("[data-key=loss] path")
    assert page.locator("#runs tbody th").inner_text() == name
    assert "2 unreadable lines" in page.locator("#legend").inner_text()
    page.locator("details summary").last.click()
    assert HOSTILE in page.locator("#all-settings").inner_text()
    assert page.locator("main img").count() == 0
    page.locator("[data-key=loss] .plot").focus()
    page.keyboard.press("ArrowLeft")
    assert HOSTILE in page.locator("[data-key=loss] .plot").get_attribute("aria-valuetext")
    other = opened("#" + page.url.partition("#")[2])  # such a name survives the address
    other.wait_for_selector("[data-key=loss] path")


def test_a_server_that_goes_away_is_asked_less_and_less_and_comes_back(opened: Opened, tmp_path: Path) -> None:
    path = run(tmp_path / "runs", "a", history(10), done=False)
    page = opened(expected=("ERR_FAILED", "net::"))
    page.wait_for_selector("[data-key=loss] path")
    page.route("**/runs**", lambda route: route.abort())
    in_time(page, "document.getElementById('live').textContent.includes('does not answer; asking again in 4 s')")
    before = len(page.watched.requests)
    page.clock.fast_forward(2500)
    page.wait_for_timeout(200)
    assert page.watched.since(before) == []
    in_time(page, "document.getElementById('live').textContent.includes('asking again in 8 s')")
    assert page.watched.since(before) == ["GET /runs"]
    assert points(path_of(page, "a", "train")) == 10  # what was drawn stays
    page.unroute("**/runs**")
    append(path, [record(11)])
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # back in sight: it asks at once
    page.wait_for_function("() => document.getElementById('live').textContent.startsWith('live')")
    page.wait_for_function("() => document.querySelector('#runs .progress').textContent.startsWith('11')")


def test_a_page_out_of_sight_does_not_ask(opened: Opened, tmp_path: Path) -> None:
    run(tmp_path / "runs", "a", history(10), done=False)
    page = opened()
    page.wait_for_selector("[data-key=loss] path")
    hide = """state => {
        Object.defineProperty(document, 'hidden', { value: state, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(300)
    before = len(page.watched.requests)
    for _ in range(3):
        page.clock.fast_forward(5000)
        page.wait_for_timeout(100)
    assert page.watched.since(before) == []
    assert page.locator("#live").inner_text() == "paused"
    page.evaluate(hide, False)
    page.wait_for_function("() => document.getElementById('live').textContent.startsWith('live')")
    assert page.watched.since(before)


def test_a_run_that_is_deleted_is_named(opened: Opened, tmp_path: Path) -> None:
    path = run(tmp_path / "runs", "a", history(10), done=False)
    run(tmp_path / "runs", "b", history(10))
    page = opened("#run=a&run=b&run=never", expected=("404",))
    page.wait_for_selector("[data-key=loss] path[data-run=a]")
    for entry in [*path.glob("*.json*")]:
        entry.unlink()
    in_time(page, "document.getElementById('nothing').textContent === 'a, never: not here any more.'")
    assert points(path_of(page, "b", "train")) == 10
    in_time(page, "document.querySelectorAll('#runs tbody tr').length === 1")


def test_an_untrusted_address_does_no_harm(opened: Opened, tmp_path: Path) -> None:
    run(tmp_path / "runs", "a", history(10))
    page = opened(expected=("404",))
    address = page.url.partition("#")[0]
    for fragment in ("run=../models", "run=a/../../models", "run=__proto__&smooth=NaN&along=constructor", "hide=LONG"):
        page.goto("about:blank")
        page.goto(f"{address}#{fragment.replace('LONG', 'x' * 1_500_000)}")  # Chromium takes no more than 2 MB
        page.get_by_role("checkbox", name="Show a", exact=True).check()
        page.wait_for_selector("[data-key=loss] path[data-run=a]")
        assert page.locator("#live").inner_text() == "nothing is running; watching", fragment
        assert len(page.url) < 1000
    asked = {one.partition("?")[0] for one in page.watched.requests if "/page/" not in one and "/curves" not in one}
    assert asked == {"GET /runs", "GET /runs/a", "GET /runs/__proto__"}


def test_an_empty_folder_and_none_at_all_say_what_to_do(opened: Opened, chromium: Any, tmp_path: Path) -> None:
    page = opened()
    page.wait_for_selector("#nothing:not([hidden])")
    assert "vitreous pretrain" in page.locator("#nothing").inner_text()
    assert page.locator("#list").is_hidden()
    run(tmp_path / "runs", "a", history(10), done=False)
    in_time(page, "document.querySelector('[data-key=loss] path[data-run=a]')")  # it appears by itself
    assert page.locator("#list").is_visible()
    with served(build_app(())) as address:
        page = chromium.new_page()
        page.goto(f"{address}/curves")
        page.wait_for_selector("#nothing:not([hidden])")
        assert page.locator("#nothing").inner_text() == "This server shows no runs; start it with --runs FOLDER."
        assert page.locator("#live").inner_text() == "no folder to watch"
        page.close()


# Screens ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(opened: Opened, tmp_path: Path, scheme: str) -> None:
    run(
        tmp_path / "runs",
        "a-run-with-a-name-that-is-much-longer-than-a-phone-is-wide-and-has-no-space",
        history(100),
        changed=OLD + 1,
    )
    b = run(tmp_path / "runs", "b", history(100), lr=0.3)
    worst = (Mistake("x" * 200, np.zeros((200, 90, 3), np.uint8), ("y" * 200,), (("z" * 200, 0.75),), 3.25),)
    write_mistakes(b, ValidationResult("validation", ("cat", "dog"), np.eye(2, dtype=np.int64), 0.5, None, 50, 0.7, worst), 20)
    page = opened(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True, reduced_motion="reduce")
    page.wait_for_selector("[data-key=loss] path")
    choose(page, "b")
    page.wait_for_selector("[data-key=loss] path[data-run=b]")
    page.wait_for_selector("#gallery img")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    small = """() => [...document.querySelectorAll('a:not(.skip), button, select, summary, input')]
        .map(e => [e.outerHTML.slice(0, 80), (e.closest('label') ?? e).getBoundingClientRect()])
        .filter(([, box]) => box.width && Math.min(box.width, box.height) < 40).map(([words]) => words)"""
    assert page.evaluate(small) == []  # what a finger hits
    page.locator("[data-key=loss] summary").click()
    page.locator("#compare summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("[data-key=loss] .plot").scroll_into_view_if_needed()
    box = page.locator("[data-key=loss] .plot").bounding_box()
    page.touchscreen.tap(box["x"] + 200, box["y"] + 100)
    reading = page.locator("[data-key=loss] .reading")
    assert reading.is_visible()
    shown = reading.bounding_box()
    assert box["x"] <= shown["x"]
    assert shown["x"] + shown["width"] <= box["x"] + box["width"] + 1
    page.get_by_label("Sort").select_option("loss")
    assert page.locator("#runs thead").is_hidden()
    luminance = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    )
    assert (luminance > 600) == (scheme == "light")


def test_every_control_has_a_name_and_is_reached_by_keyboard(opened: Opened, tmp_path: Path) -> None:
    run(tmp_path / "runs", "a", history(100))
    page = opened()
    page.wait_for_selector("[data-key=loss] path")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, [role=slider], [tabindex="0"], summary, a')]
        .filter((one) => one.checkVisibility())
        .filter((one) => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.textContent.trim()
            || (one.labels && [...one.labels].some((label) => label.textContent.trim()))))
        .map((one) => one.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
    assert {"slider", "region", "INPUT", "BUTTON", "SUMMARY", "SELECT"} <= reached
