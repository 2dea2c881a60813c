"""The description and the server are the same: every route is described, and nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from small_server import client, loaded

from vitreous.serving.limits import Limits
from vitreous.serving.openapi import description

LIMITS = Limits(top=7, upload_bytes=3_000_000)
DESCRIBED = description(LIMITS)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DESCRIBED["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    with client(loaded(), limits=LIMITS) as served:
        routes = {
            (re.sub(":[a-z]+}", "}", route.path), method.lower())
            for route in served.app.routes  # type: ignore[attr-defined]
            for method in route.methods - {"HEAD"}
        }
        told = served.get("/openapi.json").json()
    assert routes == {(path, method) for path, method, _ in operations()}
    assert told == json.loads(json.dumps(DESCRIBED))


def test_parameters_in_paths_are_declared_and_names_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for path, _, operation in operations():
        declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert declared == set(re.findall("{([a-z]+)}", path))


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    text = json.dumps(DESCRIBED)
    schemas = DESCRIBED["components"]["schemas"]
    used = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert used == set(schemas)  # none is missing, none is left over
    for schema in schemas.values():
        whole = {**schema, "components": DESCRIBED["components"], "$schema": "https://json-schema.org/draft/2020-12/schema"}
        jsonschema_rs.validator_for(whole)


def test_the_limits_are_reported() -> None:
    top = DESCRIBED["paths"]["/predict"]["post"]["parameters"][1]
    assert (top["name"], top["schema"]["maximum"]) == ("top", 7)
    assert "3 MB" in DESCRIBED["paths"]["/predict"]["post"]["requestBody"]["description"]


@pytest.mark.parametrize("status", [400, 403, 404, 405, 413, 415, 422, 500, 503])
def test_refusals_have_one_form(status: int) -> None:
    answer = DESCRIBED["paths"]["/predict"]["post"]["responses"][str(status)]
    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert ("Retry-After" in answer.get("headers", {})) == (status == 503)
