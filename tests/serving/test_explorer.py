"""The page that looks inside a model, in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from browser import Watched, served, until
from vitreous.classifier import Classifier
from vitreous.inspection import component_colours, patch_components, patch_features
from vitreous.inspection.gradient_weights import gradient_rollout
from vitreous.serving.app import build_app
from vitreous.serving.examples import Example
from vitreous.serving.served_model import ServedModel

from conftest import random_checkpoint

NAMES = ("ant & <b>bee</b>", "bear", "crane", "dove", "eel", "fox")
ROWS = COLUMNS = 4
PREFIX, LAYERS, HEADS = 2, 3, 2


def png(seed: int, height: int = 32, width: int = 32) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@dataclass(frozen=True)
class Site:
    address: str
    clf: Classifier  # called tiny
    other: Classifier  # called other: 3 x 3 patches, no class token, 2 layers
    picture: bytes  # the first example

    def attention(self, content: bytes | None = None) -> NDArray[np.float64]:
        """(layers, heads, N, N) of an image, the first example unless given."""
        return self.clf.attention(Image.open(io.BytesIO(content or self.picture)))[:, 0].double().numpy()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    tiny = dict(patch=8, width=32, depth=LAYERS, heads=HEADS, mlp=48, classes=len(NAMES), registers=1)
    clf = Classifier(random_checkpoint("ViT-Ti/16", image_size=32, names=NAMES, **tiny))
    gap = dict(patch=16, image_size=48, width=32, depth=2, heads=2, mlp=48, classes=3)
    other = Classifier(random_checkpoint("ViT-Ti/16", pool="gap", class_token=False, position_prefix=0, **gap))
    resnet = Classifier(random_checkpoint("R26x1", width=32, units=(1, 1), image_size=32, classes=3))
    models = [ServedModel("tiny", clf), ServedModel("other", other), ServedModel("resnet", resnet)]
    pictures = [Example("noise", "image/png", png(0)), Example("more-noise", "image/png", png(1))]
    with served(build_app(models, examples=pictures)) as address:
        yield Site(address, clf, other, png(0))


@dataclass(frozen=True)
class Explorer:
    page: Any
    watched: Watched
    site: Site

    def open(self, fragment: str = "", ready: bool = True) -> Explorer:
        self.page.goto(f"{self.site.address}/{fragment}")
        if ready:
            until(self.page, "window.vitreous?.shown()[0]?.values")
        return self

    def shown(self, view: int = 0) -> dict[str, Any]:
        """What is drawn now, once the frame that is due has been."""
        script = """view => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
            const one = vitreous.shown()[view];
            done({...one, values: Array.from(one.values), leading: Array.from(one.leading)});
        })))"""
        return self.page.evaluate(script, view)

    def place(self, row: int, column: int, view: int = 0, grid: tuple[int, int] = (ROWS, COLUMNS)) -> tuple[float, float]:
        picture = self.page.locator(".frame").nth(view)
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        return box["x"] + (column + 0.5) / grid[1] * box["width"], box["y"] + (row + 0.5) / grid[0] * box["height"]

    def hover(self, row: int, column: int) -> None:
        self.page.mouse.move(*self.place(row, column))

    def other_example(self) -> None:
        with self.page.expect_response("**/attention*"):
            self.page.get_by_role("button", name="Example more-noise").click()
        until(self.page, "!document.querySelector('#busy').textContent")

    def pixels(self) -> list[int]:
        script = """() => { const c = document.querySelector('.frame canvas');
            return Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((_, i) => i % 997 < 3)) }"""
        return self.page.evaluate(script)

    def bars(self) -> list[tuple[str, float]]:
        names = self.page.locator("#guesses .name").all_inner_texts()
        numbers = self.page.locator("#guesses .number").all_inner_texts()
        return [(name, float(number.strip("<%\N{NO-BREAK SPACE}"))) for name, number in zip(names, numbers, strict=True)]


@pytest.fixture
def explorer(chromium: Any, site: Site) -> Iterator[Explorer]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(15_000)
    page = context.new_page()
    watched = Watched(page, site.address)
    yield Explorer(page, watched, site)
    context.close()
    assert watched.unexpected() == []


def near(found: Any, expected: NDArray[np.float64]) -> Any:
    return found == pytest.approx(expected, abs=float(expected.max()) / 400)


def guesses(clf: Classifier, content: bytes) -> list[tuple[str, float]]:
    prediction = clf.predict(Image.open(io.BytesIO(content)), top=5)
    return [
        (name, pytest.approx(100 * share, rel=0.06))
        for name, share in zip(prediction.classes, prediction.probabilities, strict=True)
    ]


# Images come in -------------------------------------------------------------------------------------------------------------


def test_an_example_is_shown_at_once_and_others_by_a_click(explorer: Explorer) -> None:
    explorer.open()
    assert explorer.bars() == guesses(explorer.site.clf, explorer.site.picture)
    explorer.other_example()
    assert explorer.bars() == guesses(explorer.site.clf, png(1))
    assert explorer.page.locator("#examples [aria-pressed=true]").get_attribute("data-name") == "more-noise"


def test_a_file_is_chosen_and_one_is_dropped(explorer: Explorer) -> None:
    page = explorer.open().page
    with page.expect_file_chooser() as chooser, page.expect_response("**/attention*"):
        page.get_by_role("button", name="Choose an image").click()
        chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": png(5)})
    until(page, "!document.querySelector('#busy').textContent")
    assert explorer.bars() == guesses(explorer.site.clf, png(5))
    script = """data => {
        const transfer = new DataTransfer(), bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        transfer.items.add(new File([bytes], 'b.png', {type: 'image/png'}));
        for (const kind of ['dragenter', 'dragover', 'drop']) {
            const event = new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true});
            document.querySelector('h2').dispatchEvent(event);
            if (kind === 'dragover' && document.querySelector('#over').hidden) throw Error('no word that it can be dropped');
        }
    }"""
    with page.expect_response("**/attention*"):
        page.evaluate(script, base64.b64encode(png(6)).decode())
    until(page, "!document.querySelector('#busy').textContent")
    assert page.locator("#over").is_hidden()
    assert explorer.bars() == guesses(explorer.site.clf, png(6))


def test_a_image_is_pasted_and_one_comes_from_the_camera(explorer: Explorer) -> None:
    page = explorer.open().page
    script = """data => {
        const transfer = new DataTransfer(), bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        transfer.items.add(new File([bytes], 'p.png', {type: 'image/png'}));
        document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true}));
    }"""
    with page.expect_response("**/attention*"):
        page.evaluate(script, base64.b64encode(png(7)).decode())
    until(page, "!document.querySelector('#busy').textContent")
    assert explorer.bars() == guesses(explorer.site.clf, png(7))
    page.get_by_role("button", name="Camera").click()
    until(page, "document.querySelector('video').videoWidth > 0")
    with page.expect_response("**/attention*") as answer:
        page.get_by_role("button", name="Take the image").click()
    assert answer.value.ok
    assert page.locator("dialog").is_hidden()
    assert page.evaluate("document.querySelector('video').srcObject") is None  # and the camera is off


def test_a_huge_image_is_made_smaller_before_it_is_sent(explorer: Explorer) -> None:
    script = """const real = fetch, sent = window.sent = [];
        window.fetch = (url, options) => { if (options?.body) sent.push(options.body.get('file'));
            return real(url, options); }"""
    explorer.page.add_init_script(script)
    page = explorer.open().page
    with page.expect_response("**/attention*") as answer:
        page.locator("#file").set_input_files({"name": "w.png", "mimeType": "image/png", "buffer": png(8, 60, 4200)})
    assert answer.value.ok
    kinds = page.evaluate("Promise.all(sent.map(async f => [f.type, (await createImageBitmap(f)).width]))")
    assert kinds == [["image/png", 32], ["image/jpeg", 2048]]


# Exploring --------------------------------------------------------------------------------------------------------------------


def test_hovering_shows_where_that_patch_looks_and_asks_for_nothing(explorer: Explorer) -> None:
    expected = explorer.open("#layer=1&head=1&mode=head").site.attention()
    before, count = explorer.pixels(), len(explorer.watched.requests)
    seen = set()
    for row, column in ((0, 0), (1, 2), (3, 3)):
        explorer.hover(row, column)
        shown = explorer.shown()
        assert (shown["layer"], shown["head"], shown["query"]) == (1, 1, PREFIX + 4 * row + column)
        assert near(shown["leading"] + shown["values"], expected[1, 1, PREFIX + 4 * row + column])
        pixels = explorer.pixels()
        assert pixels != before
        seen.add(tuple(pixels))
    assert len(seen) == 3
    explorer.page.mouse.move(5, 5)  # away: back to the class token, which was held
    assert explorer.shown()["query"] == 0
    assert explorer.pixels() == before
    explorer.page.mouse.click(*explorer.place(2, 1))
    explorer.page.mouse.move(5, 5)
    assert explorer.shown()["query"] == PREFIX + 9  # a click holds it
    explorer.page.get_by_role("button", name="Register 1").click()
    assert near(explorer.shown()["values"], expected[1, 1, 1, PREFIX:])
    explorer.page.wait_for_timeout(600)  # the address is written later
    assert explorer.watched.since(count) == []


def test_the_words_below_the_image_are_right(explorer: Explorer) -> None:
    expected = explorer.open("#layer=2&head=0&mode=head&patch=2.3").site.attention()[2, 0, PREFIX + 6]
    best = int(expected[PREFIX:].argmax())
    told = explorer.page.locator("#told").inner_text()
    assert told.startswith(f"Patch row 2 column 3, layer 2 head 0: looks most at row {best // 4 + 1} column {best % 4 + 1} (")
    places = np.array([(8 * row, 8 * column) for row in range(4) for column in range(4)], float)
    distance = float((expected[PREFIX:] * np.linalg.norm(places - places[6], axis=1)).sum())
    percent, pixels = re.search(r"\((.*?)\s%\), mean distance (.*?)\spx", told).groups()
    assert float(percent) == pytest.approx(100 * expected[PREFIX + best], rel=0.06)
    assert float(pixels) == pytest.approx(distance, rel=0.06)
    until(explorer.page, "document.querySelector('#heard').textContent === argument", told)


def test_layers_heads_and_modes(explorer: Explorer) -> None:
    attention = explorer.open("#patch=2.3&layer=2&mode=head&head=0").site.attention()
    page, count, query = explorer.page, len(explorer.watched.requests), PREFIX + 6
    page.get_by_role("slider", name="Layer").fill("1")
    assert near(explorer.shown()["values"], attention[1, 0, query, PREFIX:])
    page.get_by_role("radio", name="Head 1", exact=True).click()
    assert near(explorer.shown()["values"], attention[1, 1, query, PREFIX:])
    page.locator("#modes input[value=mean]").check()
    assert near(explorer.shown()["values"], attention[1].mean(axis=0)[query, PREFIX:])
    page.locator("#modes input[value=rollout]").check()
    mixed = [(layer.mean(axis=0) + np.eye(18)) / 2 for layer in attention]
    assert near(explorer.shown()["values"], (mixed[1] @ mixed[0])[query, PREFIX:])
    page.locator("#modes input[value=gradient]").check()
    picture = Image.open(io.BytesIO(explorer.site.picture))
    assert near(explorer.shown()["values"], gradient_rollout(explorer.site.clf, picture)[0].reshape(-1).astype(float))
    assert page.get_by_role("slider", name="Layer").is_disabled()
    page.locator("#modes input[value=head]").check()
    page.get_by_label("Scale").select_option("same")
    until(page, "document.querySelector('#legend-high').textContent === argument", "100\N{NO-BREAK SPACE}%")
    assert explorer.watched.since(count) == []


def test_hovering_shows_which_patches_are_similar(explorer: Explorer) -> None:
    """A switch away from attention: cosines between features, by numpy; and the same under the colours."""
    page = explorer.open("#patch=2.3").page
    picture = Image.open(io.BytesIO(explorer.site.picture))
    features = patch_features(explorer.site.clf, picture)[0].reshape(16, -1).astype(np.float64)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = unit @ unit.T
    before, count = explorer.pixels(), len(explorer.watched.requests)
    page.get_by_role("radio", name="Similar patches").check()
    assert explorer.shown()["mode"] == "similar"
    assert explorer.shown()["values"] == pytest.approx(expected[6], abs=0.005)
    assert explorer.pixels() != before
    seen = set()
    for row, column in ((0, 0), (1, 2), (3, 3)):
        explorer.hover(row, column)
        patch = 4 * row + column
        assert explorer.shown()["values"] == pytest.approx(expected[patch], abs=0.005)
        others = np.where(np.arange(16) == patch, -np.inf, expected[patch])
        best = int(others.argmax())
        told = page.locator("#told").inner_text()
        assert told.startswith(
            f"Patch row {row + 1} column {column + 1}: most similar to row {best // 4 + 1} column {best % 4 + 1}"
        )
        assert float(re.search(r"cosine (.*?)\)", told)[1]) == pytest.approx(others.max(), abs=0.01)
        assert float(page.locator("#legend-low").inner_text()) == pytest.approx(expected[patch].min(), abs=0.01)
        assert page.locator("#legend-high").inner_text() == "1"
        seen.add(tuple(explorer.pixels()))
    assert len(seen) == 3
    assert page.get_by_role("slider", name="Layer").is_disabled()  # these are of the last layer

    page.locator("#modes input[value=colours]").check()
    colours = component_colours(patch_components(explorer.site.clf, picture))[0]
    page.get_by_role("slider", name="Strength").fill("100")
    explorer.page.mouse.move(5, 5)
    explorer.shown()
    script = """([row, column]) => { const c = document.querySelector('.frame canvas');
        const [x, y] = [(column + 0.5) / 4 * c.width, (row + 0.5) / 4 * c.height];
        return Array.from(c.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)) }"""
    for row, column in ((0, 0), (2, 1), (3, 3)):
        assert page.evaluate(script, [row, column]) == colours[row, column].tolist()
    assert page.locator("#legend").is_hidden()
    assert page.get_by_label("Scale").is_hidden()
    page.get_by_role("button", name="Class token").click()
    assert "most similar to" in page.locator("#told").inner_text()
    page.locator("#modes input[value=head]").check()
    assert page.locator("#legend").is_visible()
    assert explorer.watched.since(count) == []


def test_the_scatter_marks_and_chooses_heads(explorer: Explorer) -> None:
    explorer.open("#mode=mean")
    page = explorer.page
    assert page.locator("#scatter .dot").count() == LAYERS * HEADS
    assert page.locator("#scatter .picked").count() == 0
    page.locator("#scatter .dot").nth(1 * HEADS + 1).click()
    shown = explorer.shown()
    assert (shown["mode"], shown["layer"], shown["head"]) == ("head", 1, 1)
    assert page.locator("#scatter .picked title").text_content().startswith("layer 1 head 1: ")
    attention = explorer.site.attention()[1, 1, PREFIX:, PREFIX:]
    places = np.array([(8 * row, 8 * column) for row in range(4) for column in range(4)], float)
    distance = (attention * np.linalg.norm(places[:, None] - places[None], axis=-1)).sum(axis=-1).mean()
    told = page.locator("#scatter-told").inner_text()
    assert float(re.search(r"head 1 ([\d.]+) px", told).group(1)) == pytest.approx(distance, rel=0.06)
    page.locator("#scatter").press("ArrowRight")
    assert explorer.shown()["layer"] == 2
    page.locator("#scatter").press("Home")
    assert explorer.shown()["layer"] == 0
    page.get_by_label("Measure").select_option("entropy")
    assert "bits" in page.locator("#scatter-told").inner_text()


def test_positions_are_fetched_once_and_follow_the_patch(explorer: Explorer) -> None:
    page = explorer.open("#patch=1.1").page
    until(page, "document.querySelector('#positions-told').textContent.includes('row 1 column 1')")
    read = "Array.from(document.querySelector('#position-one').getContext('2d').getImageData(0, 0, 4, 4).data)"
    first = page.evaluate(read)
    assert first[:3] == [254, 244, 115]  # the lightest colour: like itself
    explorer.hover(3, 2)
    until(page, "document.querySelector('#positions-told').textContent.includes('row 4 column 3')")
    assert page.evaluate(read) != first
    explorer.other_example()
    assert len([one for one in explorer.watched.requests if "/positions" in one]) == 1


def test_playing_goes_through_the_layers(explorer: Explorer) -> None:
    page = explorer.open("#layer=2").page
    play = page.get_by_role("button", name="Play through the layers")
    play.click()
    assert explorer.shown()["layer"] == 0
    until(page, "vitreous.state.layer > 0")
    play.click()
    assert play.get_attribute("aria-pressed") == "false"
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(
        "document.querySelector('#layer').value = 2, document.querySelector('#layer').dispatchEvent(new Event('input'))"
    )
    page.clock.install()
    play.click()
    page.clock.run_for(20_000)
    assert page.evaluate("vitreous.state.layer") == 2  # once through, and no more
    assert play.get_attribute("aria-pressed") == "false"


def test_two_models_on_one_image(explorer: Explorer) -> None:
    page = explorer.open("#mode=mean&layer=2").page
    with page.expect_response("**/attention?model=other"):
        page.get_by_label("Compare with").select_option("other")
    until(page, "vitreous.shown().length === 2 && vitreous.shown()[1].values")
    explorer.hover(3, 0)  # of 4 x 4; of 3 x 3 that is the last row, first column
    first, second = explorer.shown(0), explorer.shown(1)
    assert (first["model"], first["query"], first["layer"]) == ("tiny", PREFIX + 12, 2)
    assert (second["model"], second["query"], second["layer"]) == ("other", 6, 1)
    expected = explorer.site.other.attention(Image.open(io.BytesIO(explorer.site.picture)))[1, 0].mean(dim=0).double().numpy()
    assert near(second["values"], expected[6])
    page.mouse.move(*explorer.place(0, 2, view=1, grid=(3, 3)))
    assert (explorer.shown(0)["query"], explorer.shown(1)["query"]) == (PREFIX + 3, 2)
    assert [block.locator("h3").inner_text() for block in page.locator(".guesses").all()] == ["tiny", "other"]
    page.get_by_role("button", name="All patches").click()
    assert near(explorer.shown(1)["values"], expected.mean(axis=0))
    count = len(explorer.watched.requests)
    page.get_by_label("Compare with").select_option("")
    until(page, "vitreous.shown().length === 1")
    assert explorer.watched.since(count) == []


def test_a_resnet_predicts_and_says_why_there_is_no_more(explorer: Explorer) -> None:
    page = explorer.open().page
    page.locator("#model").select_option("resnet")
    until(page, "document.querySelector('#note').textContent.includes('no attention')")
    assert len(explorer.bars()) == 3
    assert page.locator("#heads").is_hidden()
    assert page.locator(".frame").get_attribute("role") == "img"
    page.locator("#model").select_option("tiny")
    until(page, "vitreous.shown()[0].values")
    assert page.locator("#heads").is_visible()


def test_beside_a_resnet_the_controls_are_for_the_other_model(explorer: Explorer) -> None:
    page = explorer.open("#model=resnet&with=tiny&layer=1&mode=head&head=1&patch=1.3", ready=False).page
    until(page, "vitreous.shown()[1]?.values")
    assert near(explorer.shown(1)["values"], explorer.site.attention()[1, 1, PREFIX + 2, PREFIX:])
    page.get_by_role("slider", name="Layer").fill("0")
    assert near(explorer.shown(1)["values"], explorer.site.attention()[0, 1, PREFIX + 2, PREFIX:])
    assert page.locator("#heads-title").inner_text() == "Heads of this layer of tiny"
    until(page, "document.querySelector('#positions-told').textContent.includes('row 1 column 3')")


def test_playing_ends_where_there_are_no_layers_any_more(explorer: Explorer) -> None:
    page = explorer.open("#layer=0").page
    page.clock.install()
    page.get_by_role("button", name="Play through the layers").click()
    page.locator("#model").select_option("resnet")
    page.clock.run_for(1000)  # drawing too goes by the page's time
    until(page, "document.querySelector('#note').textContent.includes('no attention')")
    page.clock.run_for(2000)
    assert page.locator("#play").get_attribute("aria-pressed") == "false"


def test_numbers_are_decoded_alike_where_the_browser_cannot(explorer: Explorer) -> None:
    contents = [bytes(range(250, 250 - length, -1)) for length in range(9)]
    script = """async texts => {
        delete Uint8Array.fromBase64;
        const {bytes} = await import('/page/explorer_numbers.js');
        return texts.map(text => Array.from(bytes(text)));
    }"""
    found = explorer.open().page.evaluate(script, [base64.b64encode(content).decode() for content in contents])
    assert [bytes(one) for one in found] == contents


# Taking it away ---------------------------------------------------------------------------------------------------------------


def test_a_copied_link_restores_the_view(explorer: Explorer) -> None:
    page = explorer.open("#with=other").page
    explorer.other_example()
    page.get_by_role("slider", name="Layer").fill("1")
    page.get_by_role("radio", name="Head 1", exact=True).click()
    page.get_by_label("Scale").select_option("same")
    page.mouse.click(*explorer.place(1, 3))
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Link copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    before = explorer.shown(), explorer.shown(1)
    page.goto("about:blank")
    page.goto(link)
    until(page, "window.vitreous?.shown()[1]?.values")
    page.mouse.move(5, 5)
    assert (explorer.shown(), explorer.shown(1)) == before
    assert before[0]["query"] == PREFIX + 7
    assert page.get_by_label("Scale").input_value() == "same"
    assert page.get_by_label("Compare with").input_value() == "other"


def test_the_link_of_a_image_of_ones_own_carries_it(explorer: Explorer) -> None:
    page = explorer.open("#mode=mean&layer=0&token=2").page
    out = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((300, 200)).save(out, "PNG")
    with page.expect_response("**/attention*"):
        page.locator("#file").set_input_files({"name": "own.png", "mimeType": "image/png", "buffer": out.getvalue()})
    until(page, "!document.querySelector('#busy').textContent")
    before = explorer.shown()
    page.wait_for_timeout(500)
    assert "image=" not in page.evaluate("location.hash")  # histories keep addresses
    link = page.evaluate("vitreous.address()")
    assert len(link) < 30_000
    page.goto("about:blank")
    page.goto(link)
    until(page, "window.vitreous?.shown()[0]?.values")
    after = explorer.shown()
    assert {key: after[key] for key in ("mode", "layer", "query")} == {key: before[key] for key in ("mode", "layer", "query")}
    assert after["classes"] == before["classes"]
    assert after["values"] == pytest.approx(before["values"], abs=0.03)


def test_an_untrusted_link_does_no_harm(explorer: Explorer) -> None:
    for fragment in (
        "#model=%3Cscript%3E&layer=99&head=-1&mode=evil&patch=9.9&token=77&scale=x&example=../../etc/passwd&with=tiny",
        "#image=AAAA&layer=1e9&patch=0.0",
        "#image=%2F%2F..&model=" + "x" * 5000,
        "#%E0%A4%A=%",
        "#stage",
        "#layer=NaN&head=1e400&patch=99999.99999&mode=__proto__&scale=constructor&model=__proto__&with=toString",
        "#layer=1&image=LONG",
    ):
        explorer.page.goto("about:blank")
        explorer.open(fragment.replace("LONG", "_9j_" * 375_000))  # Chromium takes no more than 2 MB
        shown = explorer.shown()
        assert (shown["model"], shown["mode"], shown["query"]) == ("tiny", "mean", 0), fragment
        assert len(explorer.bars()) == 5


def test_the_image_is_downloaded(explorer: Explorer, tmp_path: Path) -> None:
    explorer.open("#layer=1&head=0&mode=head&patch=1.1")
    with explorer.page.expect_download() as download:
        explorer.page.get_by_role("button", name="Download image").click()
    assert download.value.suggested_filename == "vitreous-tiny-layer-1-head-0.png"
    download.value.save_as(tmp_path / "view.png")
    picture = Image.open(tmp_path / "view.png").convert("RGB")
    assert picture.width == 848
    assert picture.height > 848
    inside = np.asarray(picture.crop((24, 24, 824, 824)))
    assert inside.std() > 20  # something is drawn


# For everybody ----------------------------------------------------------------------------------------------------------------


def test_everything_can_be_done_from_the_keyboard(explorer: Explorer) -> None:
    page = explorer.open("#mode=head&head=0&layer=2").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className") == "frame"
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "End", ","):
        page.keyboard.press(key)
    shown = explorer.shown()
    assert (shown["query"], shown["layer"]) == (PREFIX + 4 * 3 + 3, 1)  # from the middle down, to the end; one layer back
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.getAttribute('role')"
            )
        )
    assert {"scale", "strength", "copy", "download", "mode", "play", "layer", "radio", "measure", "scatter"} <= reached
    assert {"model", "second", "choose", "camera", "paste"} <= reached
    page.locator("#thumbs [aria-checked=true]").focus()
    page.keyboard.press("ArrowRight")
    assert explorer.shown()["head"] == 1
    page.locator("input[name=mode]:checked").focus()
    page.keyboard.press("ArrowRight")
    assert explorer.shown()["mode"] == "mean"


def test_every_control_has_a_name_and_every_part_a_heading(explorer: Explorer) -> None:
    page = explorer.open("#with=other").page
    script = """() => {
        const nameless = [];
        for (const e of document.querySelectorAll('button, input, select, a[href], [role], [tabindex], img, summary, canvas')) {
            if (e.closest('[aria-hidden=true]') || e.closest('[hidden]') || e.closest('dialog')) continue;
            if (e.tagName === 'IMG' ? e.hasAttribute('alt') : false) continue;
            if (e.tagName === 'CANVAS' && !e.hasAttribute('role')) { if (e.closest('[aria-label]')) continue; }
            const labels = [...(e.labels ?? [])].map(l => l.textContent.trim()).join('');
            const label = e.getAttribute('aria-label') || e.textContent.trim() || labels || e.querySelector('img')?.alt
                || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;
            if (!label && !['status', 'alert'].includes(e.getAttribute('role'))) nameless.push(e.outerHTML.slice(0, 120));
        }
        const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
        const headings = [...document.querySelectorAll('h1, h2, h3')].filter(e => !e.closest('[hidden]'));
        const levels = headings.map(e => Number(e.tagName[1]));
        const broken = ['aria-labelledby', 'aria-describedby', 'for'].flatMap(name =>
            [...document.querySelectorAll(`[${name}]`)].filter(e => !document.getElementById(e.getAttribute(name))));
        return {nameless, twice: ids.filter((id, i) => ids.indexOf(id) !== i), levels, broken: broken.map(e => e.outerHTML),
                lang: document.documentElement.lang, live: document.querySelectorAll('[aria-live=polite]').length};
    }"""
    found = page.evaluate(script)
    assert found["nameless"] == []
    assert found["twice"] == []
    assert found["broken"] == []
    assert found["levels"][0] == 1
    assert found["levels"].count(1) == 1
    assert all(b - a <= 1 for a, b in zip(found["levels"], found["levels"][1:], strict=False))
    assert (found["lang"], found["live"]) == ("en", 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_dark(explorer: Explorer, scheme: str) -> None:
    """Contrast of every colour of words with what lies behind it, as the accessibility guidelines count it (4.5)."""
    page = explorer.page
    page.emulate_media(color_scheme=scheme)
    explorer.open()
    script = """() => [...document.querySelectorAll('p, span, label, h2, button, a, li, output, strong, summary')]
        .filter(e => e.textContent.trim() && e.getClientRects().length && !e.closest('.heard, .skip, :disabled'))
        .map(e => {
            let behind = e;
            while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
            const paper = getComputedStyle(behind ?? document.body).backgroundColor;
            return [getComputedStyle(e).color, paper, e.outerHTML.slice(0, 80)];
        })"""
    pairs = page.evaluate(script)
    assert len(pairs) > 30

    def light(text: str) -> float:
        values = [int(part) / 255 for part in re.findall(r"\d+", text)[:3]]
        values = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return float(np.dot(values, (0.2126, 0.7152, 0.0722)))

    for ink, paper, what in pairs:
        low, high = sorted((light(ink), light(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (what, ink, paper)
    assert (light(pairs[0][1]) > 0.5) == (scheme == "light")


def test_a_phone_has_no_need_to_scroll_sideways(chromium: Any, site: Site) -> None:
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2
    )
    page = context.new_page()
    explorer = Explorer(page, Watched(page, site.address), site).open("#mode=mean")
    for _ in range(2):
        content, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert content <= window == 390
        count = len(explorer.watched.requests)
        page.touchscreen.tap(*explorer.place(1, 2))
        assert explorer.shown()["query"] == PREFIX + 6
        assert explorer.watched.since(count) == []
        page.locator("#second").select_option("other")
        until(page, "vitreous.shown().length === 2 && vitreous.shown()[1].values")
    script = """() => [...document.querySelectorAll('a:not(.skip), button, select, summary, input:not([hidden])')]
        .map(e => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
        .filter(([, box]) => box.width && Math.min(box.width, box.height) < 40).map(([words]) => words)"""
    assert page.evaluate(script) == []  # what a finger hits
    context.close()
    assert explorer.watched.unexpected() == []


# When something is wrong ------------------------------------------------------------------------------------------------------


def test_what_the_server_refuses_is_shown_in_its_words(explorer: Explorer) -> None:
    explorer.watched.expected = ("422",)
    page = explorer.open().page
    page.locator("#file").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"not an image at all"})
    note = page.locator("#note")
    note.wait_for()
    assert "not an image" in note.inner_text()
    page.get_by_role("button", name="Example noise", exact=True).click()
    until(page, "document.querySelector('#note').hidden")
    assert len(explorer.bars()) == 5


def test_after_a_file_that_is_no_image_the_shown_one_stays(explorer: Explorer) -> None:
    explorer.watched.expected = ("422",)
    page = explorer.open().page
    page.locator("#file").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"not an image at all"})
    page.locator("#note").wait_for()
    assert page.get_by_role("button", name="Try again").is_hidden()  # it would be refused again
    assert page.locator("#examples [aria-pressed=true]").get_attribute("data-name") == "noise"
    page.get_by_label("Compare with").select_option("other")
    until(page, "vitreous.shown().length === 2 && vitreous.shown()[1].values")
    assert page.locator("#note").is_hidden()
    assert explorer.bars()[:5] == guesses(explorer.site.clf, explorer.site.picture)


def test_the_latest_wish_counts_whatever_answers_late(explorer: Explorer) -> None:
    explorer.watched.expected = ("ERR_FAILED",)
    page = explorer.open().page
    late: list[Any] = []

    def hold(route: Any) -> None:
        if late:
            return route.continue_()
        return late.append(route)

    page.route("**/attention*", hold)
    page.get_by_role("button", name="Example more-noise").click()  # held back
    until(page, "document.querySelector('#busy').textContent")
    page.locator("#model").select_option("other")  # meanwhile another model, of the same new image
    until(page, "vitreous.shown()[0].model === 'other' && !document.querySelector('#busy').textContent")
    late[0].continue_()
    page.wait_for_timeout(200)
    assert explorer.shown()["model"] == "other"
    assert explorer.bars() == guesses(explorer.site.other, png(1))
    page.unroute("**/attention*")
    # An example that comes late, after another was asked for.
    late.clear()
    page.route("**/examples/noise", lambda route: late.append(route))
    with page.expect_request("**/examples/noise"):
        page.get_by_role("button", name="Example noise", exact=True).click()
    explorer.other_example()
    late[0].abort()
    page.wait_for_timeout(200)
    assert page.locator("#note").is_hidden()  # nobody waits for it any more
    assert explorer.bars() == guesses(explorer.site.other, png(1))


def test_an_example_that_did_not_come_is_asked_for_again(explorer: Explorer) -> None:
    explorer.watched.expected = ("ERR_FAILED",)
    page = explorer.open().page
    page.route("**/examples/more-noise", lambda route: route.abort())
    page.get_by_role("button", name="Example more-noise").click()
    page.locator("#note").wait_for()
    page.unroute("**/examples/more-noise")
    page.get_by_role("button", name="Try again").click()
    until(page, "document.querySelector('#examples [aria-pressed=true]').dataset.name === 'more-noise'")
    until(page, "document.querySelector('#note').hidden && !document.querySelector('#busy').textContent")
    assert explorer.bars() == guesses(explorer.site.clf, png(1))


def test_a_server_of_runs_alone_leads_to_them(chromium: Any, tmp_path: Path) -> None:
    with served(build_app((), runs=tmp_path)) as address:
        page = chromium.new_page()
        page.goto(address)
        page.get_by_role("link", name="See its runs").click()
        page.get_by_text("No runs here yet").wait_for()
        page.close()


def test_a_busy_server_is_asked_again(explorer: Explorer) -> None:
    explorer.watched.expected = ("503",)
    turns = []

    def busy(route: Any) -> None:
        turns.append(route.request.url)
        if len(turns) > 1:
            return route.continue_()
        body = json.dumps({"error": "busy", "hint": "later"})
        return route.fulfill(status=503, headers={"Retry-After": "1"}, content_type="application/json", body=body)

    explorer.page.route("**/attention*", busy)
    explorer.open(ready=False)
    explorer.page.get_by_text("The server is busy; asking again in 1 s").wait_for()
    until(explorer.page, "window.vitreous?.shown()[0]?.values")
    assert len(turns) == 2


def test_a_server_that_is_gone_and_comes_back(explorer: Explorer) -> None:
    explorer.watched.expected = ("ERR_FAILED", "ERR_CONNECTION")
    explorer.page.route("**/models", lambda route: route.abort())
    explorer.open(ready=False)
    explorer.page.get_by_text("The server does not answer").wait_for()
    explorer.page.unroute("**/models")
    explorer.page.get_by_role("button", name="Try again").click()
    until(explorer.page, "window.vitreous?.shown()[0]?.values")
    assert explorer.page.locator("#note").is_hidden()
