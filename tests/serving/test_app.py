"""The API from outside: the same answers as in Python, every refusal in one form, and no more than was asked for."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_server import (
    CROP,
    NAMES,
    Together,
    classifier,
    client,
    loaded,
    model_is_busy,
    picture,
    post,
    run_folder,
    service,
    until,
)

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.inference.outputs import Outputs
from vitreous.inference.runner import Runner
from vitreous.serving import pipeline
from vitreous.serving.app import build_app
from vitreous.serving.examples import Example
from vitreous.serving.limits import Limits
from vitreous.serving.middleware import LOOPBACK, SECURITY_HEADERS
from vitreous.serving.served_model import ServedModel

from conftest import random_checkpoint


def refused(answer: Any, status: int) -> dict[str, str]:
    """It has the one form of all refusals; says what it says."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, str] = answer.json()
    assert set(found) == {"error", "hint"}
    assert all(found.values())
    assert "Traceback" not in answer.text
    if status == 503:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    return found


# The same answers -------------------------------------------------------------------------------------------------------------


def test_predictions_are_the_classifiers_own_whoever_else_asks(tmp_path: Path) -> None:
    model = loaded()
    contents = [picture(seed, (40 + seed, 50)) for seed in range(24)]
    paths = [tmp_path / f"{number}.png" for number in range(24)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    expected = model.clf.predict(paths, top=len(NAMES))
    with client(model) as served, Together() as together:
        with model_is_busy(model):  # so that they meet
            answers = [
                together.ask(post, served, f"/predict?top={1 + seed % 5}", content) for seed, content in enumerate(contents)
            ]
            until(lambda: service(served).pipeline.batcher.waiting + service(served).pipeline.batcher.running == 24)
        for seed, (answer, right) in enumerate(zip(answers, expected, strict=True)):
            found, top = answer.result().json(), 1 + seed % 5
            assert list(found) == ["model", "classes", "probabilities", "seconds"]
            assert found["classes"] == list(right.classes[:top])
            assert found["probabilities"] == pytest.approx(right.probabilities[:top], abs=1e-6)
            assert found["seconds"] > 0
        assert service(served).metrics._batches.counts[4] >= 1  # of 9 to 16: they were run together


def test_form_json_and_raw_bodies_are_alike_and_the_default_is_five() -> None:
    model, content = loaded(), picture(format="JPEG")
    expected = model.clf.predict(torch.stack([model.clf.preprocess(content)]))[0]
    with client(model) as served:
        text = base64.b64encode(content).decode()
        answers = [
            post(served, "/predict", content),
            served.post("/predict", json={"image": text}),
            served.post("/predict?model=small", json={"image": f"data:image/jpeg;base64,{text}"}),
            served.post("/predict", content=content, headers={"Content-Type": "image/jpeg"}),
            served.post("/predict", content=content, headers={"Content-Type": "image/x-of-any-name; q=1"}),
        ]
    for answer in answers:
        assert answer.status_code == 200
        found = answer.json()
        assert found["model"] == "small"
        assert found["classes"] == list(expected.classes)
        assert len(found["classes"]) == 5
        assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)


def test_features_are_the_classifiers_own_without_a_head_too() -> None:
    model, content = loaded(classes=0), picture()
    expected = model.clf.features(torch.stack([model.clf.preprocess(content)]))[0]
    with client(model) as served:
        found = post(served, "/features", content).json()
        assert found["features"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert "no head" in refused(post(served, "/predict", content), 422)["error"]


def test_attention_is_the_classifiers_own() -> None:
    model, content = loaded(), picture()
    images = torch.stack([model.clf.preprocess(content)])
    expected = model.clf.attention(images)[:, 0].numpy()
    with client(model) as served:
        found = post(served, "/attention", content).json()
    shape = found["attention"]["shape"]
    assert shape == [2, 3, 5, 5]
    bytes_LHNN = np.frombuffer(base64.b64decode(found["attention"]["data"]), np.uint8).reshape(shape)
    maximum_LHN = np.frombuffer(base64.b64decode(found["maximum"]["data"]), "<f4").reshape(shape[:3])
    assert np.abs(bytes_LHNN / 255 * maximum_LHN[..., None] - expected).max() < 1 / 255
    assert found["model"] == "small"
    assert found["classes"] == list(model.clf.predict(images)[0].classes)
    assert found["seconds"] > 0


def test_models_of_several_kinds_are_chosen_by_name(tmp_path: Path) -> None:
    small, other = loaded(), ServedModel("b@2", classifier(width=48))
    example = Example("a scene é", "image/png", picture())
    with client(small, other, examples=[example], runs=run_folder(tmp_path)) as served:
        about = served.get("/models").json()
        assert [card["name"] for card in about["models"]] == ["small", "b@2"]
        assert (about["default"], about["runs"]) == ("small", True)
        assert [one["name"] for one in about["examples"]] == ["a scene é"]
        shown = served.get(about["examples"][0]["url"])
        assert (shown.content, shown.headers["content-type"]) == (example.content, "image/png")
        assert len(post(served, "/features?model=b%402", picture()).json()["features"]) == 48
        assert "'small'" in refused(post(served, "/features?model=smal", picture()), 404)["hint"]
        positions = served.get("/models/b%402/positions").json()
        assert positions["grid"] == [2, 2]
        assert positions["similarity"]["shape"] == [4, 4]
        assert served.get("/health").json() == {"status": "ok", "models": 2, "queue": 0}


def test_models_that_lack_something_say_what() -> None:
    plain = ServedModel("plain", classifier(positions="none"))
    with client(plain) as served:
        refused(served.get("/models/plain/positions"), 404)
        refused(served.get("/models/other/positions"), 404)
    bare = random_checkpoint("R50x1", units=(1,), width=32, image_size=32, classes=5, preprocess=CROP)
    resnet = ServedModel("r", Classifier(bare))
    with client(resnet) as served:
        assert served.get("/models").json()["models"][0]["has_attention"] is False
        refused(post(served, "/attention", picture()), 422)
        assert post(served, "/predict", picture()).status_code == 200


def test_runs(tmp_path: Path) -> None:
    with client(runs=run_folder(tmp_path)) as served:
        found = served.get("/runs").json()
        assert [run["name"] for run in found["runs"]] == ["pets/first"]
        run = served.get("/runs/pets/first").json()
        assert run["series"][0]["points"][-1][0] == 4
        assert run["config"]["command"] == "pretrain"
        later = served.get("/runs/pets%2Ffirst?after=3").json()
        assert [len(one["points"]) for one in later["series"]] == [1] * len(later["series"])
        for after in ("x", "-2", "1.5", "", "9" * 30):
            refused(served.get(f"/runs/pets/first?after={after}"), 422)
        # Without a model the rest of the API says what is missing.
        assert served.get("/models").json() == {"models": [], "default": None, "examples": [], "runs": True}
        assert "checkpoint" in refused(post(served, "/predict", picture()), 404)["hint"]
        refused(served.get("/models/x/positions"), 404)
    with client(loaded()) as served:
        assert "--runs" in refused(served.get("/runs"), 404)["hint"]
        refused(served.get("/runs/pets/first"), 404)


# Refusals ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("top=0", 422, "top='0'"),
        ("top=1001", 422, "out of range"),
        ("top=-1", 422, "out of range"),
        ("top=five", 422, "out of range"),
        ("top=", 422, "out of range"),
        ("top=٥", 422, "out of range"),
        ("top=5&top=5", 422, "twice"),
        ("tpo=5", 422, "unknown query parameter 'tpo'"),
        ("model=", 404, "no model"),
        ("model=" + "x" * 5000, 404, "no model"),
    ],
)
def test_queries_are_checked_before_the_upload(query: str, status: int, word: str) -> None:
    with client(loaded()) as served:
        found = refused(served.post(f"/predict?{query}", content=b"never read"), status)
    assert word in found["error"]
    assert len(found["error"]) < 200


def test_a_misspelt_parameter_gets_its_nearest() -> None:
    with client(loaded()) as served:
        assert "'model'" in refused(served.post("/features?modle=small"), 422)["hint"]
        assert "none" in refused(served.get("/models?x=1"), 422)["hint"]


def test_bodies_are_refused_in_the_same_form() -> None:
    with client(loaded(), limits=Limits(upload_bytes=10_000, pixels=10_000)) as served:
        refused(served.post("/predict"), 415)
        refused(served.post("/predict", content=b"x", headers={"Content-Type": "image/png"}), 422)
        refused(served.post("/predict", content=b"x", headers={"Content-Type": "video/mp4"}), 415)
        refused(served.post("/predict", json={}), 400)
        assert "URL" in refused(served.post("/predict", json={"image": "http://127.0.0.1/x.png"}), 400)["error"]
        refused(post(served, "/predict", b"no image"), 422)
        refused(post(served, "/predict", b"x" * 100_000), 413)
        refused(post(served, "/predict", picture(size=(200, 100), mode="1")), 413)
        refused(served.post("/predict", files=[("file", picture()[:99]), ("file", picture()[:99])]), 400)
        assert post(served, "/predict", picture(size=(20, 20))).status_code == 200
        assert service(served).pipeline.at_work == 0
        assert service(served).pipeline.held.held == 0


def test_addresses_and_methods_that_there_are_not() -> None:
    with client(loaded()) as served:
        for path in ("/nothing", "/predict/", "/page", "/runs/", "/models/small", "/favicon.ico"):
            refused(served.get(path), 404)
        for path, method in (
            ("/predict", "GET"),
            ("/predict", "PUT"),
            ("/health", "POST"),
            ("/", "DELETE"),
            ("/models", "FOO"),
        ):
            answer = served.request(method, path)
            refused(answer, 405)
            assert answer.headers["allow"] in ("POST", "GET, HEAD", "HEAD, GET")
        assert "<script>" not in served.get("/<script>alert(1)</script>").headers.get("content-type", "")


@pytest.mark.parametrize("folder", ["/page/", "/examples/", "/runs/", "/models/"])
@pytest.mark.parametrize(
    "tried",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "..\\app.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "....//app.py",
        "a%00b",
        ".",
        "",
    ],
)
def test_no_name_becomes_a_path(folder: str, tried: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("secret")
    runs = run_folder(tmp_path / "runs")
    with client(loaded(), examples=[Example("x", "image/png", b"x")], runs=runs) as served:
        answer = served.get(folder + tried)
        assert answer.status_code in (404, 200)
        assert "secret" not in answer.text
        if answer.status_code == 200:  # the client itself had resolved the dots
            assert answer.request.url.path in ("/", "/runs", "/models")


def test_an_unexpected_error_is_reported_by_a_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("secret of /home/somebody")

    monkeypatch.setattr(pipeline, "build_attention_payload", broken)
    with client(loaded()) as served, caplog.at_level(logging.ERROR, "vitreous.serving"):
        answer = post(served, "/attention", picture())
        found = refused(answer, 500)
        assert "secret" not in answer.text
        reference = re.search("[0-9a-f]{8}", found["hint"])
        assert reference
        assert reference[0] in caplog.text
        assert "secret of /home/somebody" in caplog.text
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        assert post(served, "/predict", picture()).status_code == 200  # the model's thread lives on


def test_a_model_that_gives_no_numbers_says_so() -> None:
    model = loaded()
    with torch.no_grad():
        next(model.clf.model.parameters()).fill_(float("nan"))
    with client(model) as served:
        for path in ("/predict", "/features"):
            assert "not finite" in refused(post(served, path, picture()), 500)["error"]


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = loaded(), []
    right = Runner.run_once

    def small_memory(self: Runner, images: torch.Tensor) -> Outputs:
        sizes.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError
        return right(self, images)

    monkeypatch.setattr(Runner, "run_once", small_memory)
    made = build_app([model]).state.service
    items = [(torch.rand(3, 32, 32), 2) for _ in range(5)]
    assert len(made.pipeline.run(pipeline.Work("small", "predict"), items)) == 5
    assert sizes == [5, 2, 3, 1, 2]
    monkeypatch.setattr(Runner, "run_once", lambda *rest: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(VitreousError, match="does not fit"):
        made.pipeline.run(pipeline.Work("small", "predict"), items)
    monkeypatch.setattr(pipeline, "build_attention_payload", lambda *rest: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(VitreousError, match="does not fit"):
        made.pipeline.run(pipeline.Work("small", "attention"), items[:1])


# Headers ----------------------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_headers_that_protect_its_reader() -> None:
    with client(loaded(), examples=[Example("x", "image/png", b"x")]) as served:
        answers = [
            served.get(path) for path in ("/", "/curves", "/health", "/models", "/metrics", "/openapi.json", "/examples/x")
        ]
        answers += [
            served.get("/nothing"),
            served.get("/predict"),
            served.post("/predict"),
            post(served, "/predict", picture()),
        ]
        for answer in answers:
            for name, value in SECURITY_HEADERS.items():
                assert answer.headers[name] == value, answer.url
            assert "access-control-allow-origin" not in answer.headers
        policy = SECURITY_HEADERS["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


def test_only_names_of_this_machine_are_answered_to_on_loopback() -> None:
    with client(loaded(), hosts=LOOPBACK) as served:
        for host in ("localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000", "localhost."):
            assert served.get("/health", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8000", "[::2]:1", ""):
            assert "host" in refused(served.get("/health", headers={"Host": host}), 403)["error"], host
    with client(loaded()) as served:
        assert served.get("/health", headers={"Host": "models.example"}).status_code == 200


def test_a_page_elsewhere_cannot_send_images() -> None:
    with client(loaded()) as served:
        for origin in ("http://localhost", "https://localhost"):
            assert post(served, "/predict", picture(), headers={"Origin": origin}).status_code == 200
        for origin in ("http://evil.example", "null", "http://localhost:8001", "http://localhost.evil.example", ""):
            refused(post(served, "/predict", picture(), headers={"Origin": origin}), 403)
        assert served.get("/health", headers={"Origin": "http://evil.example"}).status_code == 200  # it cannot read it


def test_head_is_get_without_a_body() -> None:
    with client(loaded()) as served:
        for path in ("/health", "/models", "/page/common.css"):
            got, head = served.get(path), served.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == got.headers["content-type"]
            assert int(head.headers["content-length"]) == len(got.content)


def test_files_of_the_page_are_sent_once() -> None:
    with client(loaded()) as served:
        first = served.get("/page/common.css")
        assert first.headers["content-type"] == "text/css; charset=utf-8"
        assert first.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = served.get("/page/common.css", headers={"If-None-Match": given})
            assert (again.status_code, again.content) == (304, b"")
        assert served.get("/page/common.css", headers={"If-None-Match": '"other"'}).status_code == 200
        assert served.get("/").headers["content-type"] == "text/html; charset=utf-8"
        assert served.get("/?model=small&layer=3").status_code == 200  # a link that restores the view
        assert served.get("/page/icon.svg").headers["content-type"] == "image/svg+xml"


# Too much, too slow, gone -----------------------------------------------------------------------------------------------------


def test_beyond_the_queue_there_is_503_and_nothing_is_lost() -> None:
    model = loaded()
    with client(model, limits=Limits(max_batch=1, queue=2)) as served, Together() as together:
        with model_is_busy(model):
            taken = [together.ask(post, served, "/predict", picture(seed)) for seed in range(3)]
            until(lambda: service(served).pipeline.batcher.waiting == 2)
            assert served.get("/health").json()["queue"] == 2
            for _ in range(5):
                refused(post(served, "/predict", picture()), 503)
        assert [answer.result().status_code for answer in taken] == [200] * 3
        assert post(served, "/predict", picture()).status_code == 200
        assert "vitreous_refused_total 5" in served.get("/metrics").text


def test_what_takes_too_long_is_answered_and_not_run() -> None:
    model = loaded()
    with client(model, limits=Limits(seconds=0.4, max_batch=1)) as served, Together() as together:
        with model_is_busy(model):
            first = together.ask(post, served, "/predict", picture())
            until(lambda: service(served).pipeline.batcher.running == 1)
            second = together.ask(post, served, "/predict", picture())
            for answer in (first, second):
                assert "0.4 s" in refused(answer.result(), 503)["error"]
            assert service(served).pipeline.batcher.waiting == 0
        until(lambda: service(served).pipeline.batcher.running == 0)
        until(lambda: service(served).metrics.images == 1)  # the second was never run


async def through(app: Any, messages: list[dict[str, Any]], *, wait: float | None = None) -> list[dict[str, Any]]:
    """A request by hand: these messages come, and then nothing more."""
    sent: list[dict[str, Any]] = []
    coming = iter(messages)

    async def receive() -> dict[str, Any]:
        found = next(coming, None)
        if found is None:
            await asyncio.Event().wait()
        assert found is not None
        return found

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = dict(type="http", method="POST", path="/predict", raw_path=b"/predict", query_string=b"", headers=headers)
    scope |= dict(http_version="1.1", scheme="http", server=("localhost", 80), client=("localhost", 1), root_path="")
    await asyncio.wait_for(app(scope, receive, send), wait)
    return sent


def body(more: bool = False) -> dict[str, Any]:
    content = json.dumps({"image": base64.b64encode(picture()).decode()}).encode()
    return {"type": "http.request", "body": content, "more_body": more}


def test_an_upload_that_does_not_end_is_ended() -> None:
    app = build_app([loaded()], limits=Limits(seconds=0.2))
    sent = asyncio.run(through(app, [body(more=True)], wait=20))
    assert sent[0]["status"] == 400
    assert "upload" in json.loads(sent[1]["body"])["error"]
    assert app.state.service.pipeline.at_work == 0
    assert app.state.service.pipeline.held.held == 0


def test_what_a_caller_has_left_is_not_run() -> None:
    model = loaded()
    app = build_app([model], limits=Limits(max_batch=1))
    made = app.state.service

    async def both() -> None:
        first = asyncio.ensure_future(through(app, [body()]))
        while not made.pipeline.batcher.running:
            await asyncio.sleep(0.002)
        leaving = threading.Event()

        async def gone() -> None:
            async def receive() -> dict[str, Any]:
                nonlocal begun
                begun += 1
                if begun == 1:
                    return body()
                while not leaving.is_set():
                    await asyncio.sleep(0.002)
                return {"type": "http.disconnect"}

            begun = 0
            scope = dict(type="http", method="POST", path="/predict", raw_path=b"/predict", query_string=b"", root_path="")
            scope |= dict(headers=[(b"content-type", b"application/json")], http_version="1.1", scheme="http")

            async def send(message: dict[str, Any]) -> None:
                pass

            await app(scope, receive, send)

        second = asyncio.ensure_future(gone())
        while made.pipeline.batcher.waiting != 1:
            await asyncio.sleep(0.002)
        leaving.set()
        await second
        assert made.pipeline.batcher.waiting == 0
        assert made.pipeline.at_work == 1
        free.set()
        assert (await first)[0]["status"] == 200

    free, held = threading.Event(), threading.Event()

    def hold() -> None:
        with model.lock:
            held.set()
            free.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        asyncio.run(asyncio.wait_for(both(), 30))
    finally:
        free.set()
        holder.join()
    until(lambda: made.metrics.images == 1)
    assert made.close(10)


def test_while_it_stops_only_health_responds() -> None:
    with client(loaded()) as served:
        service(served).stopping = True
        answer = served.get("/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "stopping"
        assert answer.headers["connection"] == "close"
        assert served.get("/metrics").status_code == 200
        assert "stopping" in refused(post(served, "/predict", picture()), 503)["error"]


@pytest.mark.parametrize(
    "wrong", [dict(queue=0), dict(max_batch=-1), dict(seconds=0), dict(seconds=float("nan")), dict(wait=2)]
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(VitreousError, match=next(iter(wrong))):
        Limits(**wrong)
