"""The API, fuzzed from its own description: whatever is sent, the answer is one that the description promises."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from small_server import loaded, picture, run_folder

from vitreous.serving.app import build_app
from vitreous.serving.examples import Example

from conftest import LONG

# Data that fit the schema need not be accepted: that a string is an image is beyond what a schema can say.
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SETTINGS = settings(
    max_examples=500 if LONG else 15,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    runs = run_folder(tmp_path_factory.mktemp("runs"))
    example = Example("scene", "image/png", picture())
    made = build_app([loaded(), loaded("headless", classes=0)], examples=[example], runs=runs)
    yield made
    made.state.service.close()


@pytest.fixture(scope="module")
def schema(app: Any) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=SchemathesisConfig())


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("mode", "least"), [(GenerationMode.POSITIVE, 80), (GenerationMode.NEGATIVE, 60)], ids=["right", "wrong"]
)
def test_whatever_is_sent_the_answer_is_one_that_is_promised(schema: Any, mode: GenerationMode, least: int) -> None:
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @SETTINGS
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case: Any) -> None:
            nonlocal asked
            asked += 1
            response = case.call()
            assert response.status_code < 500, response.text
            case.validate_response(response, checks=CHECKS)

        try:
            fuzz()
        except Exception as error:
            if "Unsatisfiable" not in type(error).__name__:  # an operation without input has no wrong input
                raise
    assert asked >= least


IMAGE = {"image": base64.b64encode(picture()).decode()}
GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("/predict", "post", dict(body=IMAGE, media_type="application/json", query={"top": 2})),
    ("/predict", "post", dict(body={"file": picture()}, media_type="multipart/form-data")),
    ("/predict", "post", dict(body=picture(), media_type="image/png")),
    ("/features", "post", dict(body=IMAGE, media_type="application/json", query={"model": "headless"})),
    ("/attention", "post", dict(body=IMAGE, media_type="application/json")),
    ("/attention", "post", dict(body=IMAGE, media_type="application/json", query={"model": "headless"})),
    ("/models", "get", {}),
    ("/models/{name}/positions", "get", dict(path_parameters={"name": "small"})),
    ("/examples/{name}", "get", dict(path_parameters={"name": "scene"})),
    ("/runs", "get", {}),
    ("/runs/{name}", "get", dict(path_parameters={"name": "pets/first"}, query={"after": 1})),
    ("/health", "get", {}),
    ("/metrics", "get", {}),
    ("/openapi.json", "get", {}),
    ("/", "get", {}),
    ("/curves", "get", {}),
    ("/page/{file}", "get", dict(path_parameters={"file": "common.css"})),
]


@pytest.mark.parametrize(("path", "method", "parts"), GOOD, ids=[f"{path}-{n}" for n, (path, *_) in enumerate(GOOD)])
def test_good_answers_are_what_is_promised(schema: Any, path: str, method: str, parts: dict[str, Any]) -> None:
    """By chance no image is ever drawn."""
    case = schema[path][method].Case(**parts)
    response = case.call()
    assert response.status_code == 200, response.text
    case.validate_response(response, checks=CHECKS)


def test_every_operation_has_a_good_answer(schema: Any) -> None:
    described = {(found.ok().path, found.ok().method) for found in schema.get_all_operations()}
    assert described | {("/openapi.json", "get")} == {(path, method) for path, method, _ in GOOD}  # of itself it is silent
