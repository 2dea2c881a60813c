"""The OpenAPI 3.1 description of the API, `GET /openapi.json`; tests hold the server to every word of it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from vitreous.serving.limits import Limits
from vitreous.serving.metrics import MEDIA_TYPE

Json = dict[str, Any]

_JSON = "application/json"
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_TEXT: Json = {"type": "string"}
_SECONDS: Json = {"type": "number", "minimum": 0, "description": "from the request's headers to its answer"}
_PAIR: Json = {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}

_WHY = {
    400: "the request is not formed as described; a URL or path is refused",
    403: "a page of another origin, or a Host that is not a name of this server",
    404: "there is none of this name",
    405: "the address has no such method",
    413: "too many bytes or pixels",
    415: "another content type than described",
    422: "not an image, or a value out of range",
    500: "a fault of the server; its log says more",
    503: "too much to do, too slow, or stopping",
}


def description(limits: Limits) -> Json:
    """Of a server with these limits."""
    html: Json = {"text/html; charset=utf-8": {}}
    stopping = {**_refused(503), "content": {_JSON: {"schema": _one_of("Health", "Error")}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vitreous",
            "version": version("vitreous"),
            "summary": "Vision Transformers: predict, and see what they look at.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/predict": _post(
                "predict", "The most probable classes of an image, best first", "Prediction", limits, _MODEL, _top(limits)
            ),
            "/features": _post("features", "What enters the model's head", "Features", limits, _MODEL),
            "/attention": _post("attention", "Where every token looks, in every layer and head", "Attention", limits, _MODEL),
            "/models": _get("models", "The models, the examples, and whether runs are shown", _json("Models")),
            "/models/{name}/positions": _get(
                "positions",
                "Similarity of the position embeddings",
                _json("Positions"),
                _name("a model"),
                refused=(403, 404, 405, 422),
            ),
            "/examples/{name}": _get(
                "example",
                "An image to try",
                {"image/*": {}},
                _name("an example"),
                refused=(403, 404, 405, 422),
                more=_UNCHANGED,
            ),
            "/runs": _get(
                "runs",
                "The runs in the folder that is watched, the newest first",
                _json("Runs"),
                refused=(403, 404, 405, 422),
            ),
            "/runs/{name}": _get(
                "run",
                "The curves of a run, or what was measured after a step",
                _json("Run"),
                _name("a run"),
                _AFTER,
                refused=(403, 404, 405, 422),
            ),
            "/health": _get("health", "Whether it takes requests", _json("Health"), more={"503": stopping}),
            "/metrics": _get("metrics", "Counts for Prometheus", {MEDIA_TYPE: {"schema": _TEXT}}),
            "/openapi.json": _get("openapi", "This description", _json("Description")),
            "/": _get("explorer", "The page to look inside a model", html, refused=(403, 404, 405), more=_UNCHANGED),
            "/curves": _get("curves", "The page of runs", html, refused=(403, 404, 405), more=_UNCHANGED),
            "/page/{file}": _get(
                "page",
                "A file of the pages",
                {"*/*": {}},
                _name("a file", "file"),
                refused=(403, 404, 405),
                more=_UNCHANGED,
            ),
        },
        "components": {"schemas": _schemas(limits)},
    }


# Parameters -------------------------------------------------------------------------------------------------------------------

_MODEL: Json = {
    "name": "model",
    "in": "query",
    "description": "by its name in GET /models; the first one if not given",
    "schema": _TEXT,
}
_AFTER: Json = {
    "name": "after",
    "in": "query",
    "description": "only points of later steps",
    "schema": {"type": "integer", "minimum": -1, "maximum": 2**53, "default": -1},
}


def _top(limits: Limits) -> Json:
    schema = {"type": "integer", "minimum": 1, "maximum": limits.top, "default": 5}
    return {"name": "top", "in": "query", "description": "how many classes; all, if the model has fewer", "schema": schema}


def _name(what: str, name: str = "name") -> Json:
    return {"name": name, "in": "path", "required": True, "description": f"of {what}", "schema": {**_TEXT, "minLength": 1}}


# Operations -------------------------------------------------------------------------------------------------------------------


def _post(name: str, summary: str, schema: str, limits: Limits, *parameters: Json) -> Json:
    form = {
        "type": "object",
        "required": ["file"],
        "additionalProperties": False,
        "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}},
    }
    in_json = {
        "type": "object",
        "required": ["image"],
        "additionalProperties": False,
        "properties": {"image": {"type": "string", "contentEncoding": "base64", "description": "or a data: URI in base64"}},
    }
    raw = {"schema": {"type": "string", "format": "binary", "description": "the bytes of the file itself"}}
    content = {"multipart/form-data": {"schema": form}, _JSON: {"schema": in_json}, "image/*": raw}
    text = f"at most {limits.upload_bytes / 1e6:g} MB and {limits.pixels / 1e6:g} million pixels"
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": list(parameters),
            "requestBody": {"required": True, "description": f"one image, {text}", "content": content},
            "responses": _responses({"description": summary, "content": _json(schema)}, 400, 403, 404, 405, 413, 415, 422),
        }
    }


def _get(
    name: str,
    summary: str,
    content: Json,
    *parameters: Json,
    refused: tuple[int, ...] = (403, 405, 422),
    more: Json | None = None,
) -> Json:
    """`content` is the good response by media type; `more` are responses by status."""
    responses = {**_responses({"description": summary, "content": content}, *refused), **(more or {})}
    return {"get": {"operationId": name, "summary": summary, "parameters": list(parameters), "responses": responses}}


_UNCHANGED: Json = {"304": {"description": "not changed since it had the tag in If-None-Match"}}


def _json(schema: str) -> Json:
    return {_JSON: {"schema": _reference(schema)}}


def _responses(good: Json, *refused: int) -> Json:
    return {"200": good, **{str(status): _refused(status) for status in sorted({*refused, 500, 503})}}


def _refused(status: int) -> Json:
    answer: Json = {"description": _WHY[status], "content": _json("Error")}
    if status == 503:
        schema = {"type": "integer", "minimum": 1}
        answer["headers"] = {"Retry-After": {"required": True, "description": "seconds", "schema": schema}}
    if status == 405:
        answer["headers"] = {"Allow": {"required": True, "description": "the methods it has", "schema": _TEXT}}
    return answer


def _reference(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _one_of(*schemas: str) -> Json:
    return {"anyOf": [_reference(schema) for schema in schemas]}


# Schemas ----------------------------------------------------------------------------------------------------------------------


def _object(properties: Json, optional: tuple[str, ...] = (), more: bool = False) -> Json:
    """All properties are there unless they are optional, and no others unless there may be more."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "additionalProperties": more, "properties": properties}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


def _array(dtype: str, axes: int) -> Json:
    """Numbers as base64 of their bytes, little-endian, the last axis fastest."""
    return {
        "type": "object",
        "required": ["dtype", "shape", "data"],
        "properties": {
            "dtype": {"const": dtype},
            "shape": {"type": "array", "items": _COUNT, "minItems": axes, "maxItems": axes},
            "data": {"type": "string", "contentEncoding": "base64"},
        },
    }


def _schemas(limits: Limits) -> Json:
    share = {"type": "number", "minimum": 0, "maximum": 1}
    classes = {"classes": {**_list(_TEXT), "maxItems": limits.top}, "probabilities": _list(share)}
    sets = {
        "set": {**_list(_TEXT), "description": "with --coverage: the classes it may have, best first"},
        "abstain": {"type": "boolean", "description": "whether these are several"},
    }
    values = {"type": "object", "required": ["values"], "properties": {"values": _list(_NUMBER)}}
    card = {
        "name": _TEXT,
        "model": _TEXT,
        "parameters": _COUNT,
        "classes": _COUNT,
        "image_size": _PAIR,
        "grid": _or_null(_PAIR),
        "step": _or_null(_PAIR),
        "prefix_tokens": _COUNT,
        "layers": _COUNT,
        "heads": _COUNT,
        "has_attention": {"type": "boolean"},
        "has_head": {"type": "boolean"},
        "pool": _or_null(_TEXT),
        "preprocess": _TEXT,
        "coverage": _or_null(share),
    }
    return {
        "Error": _object({"error": _TEXT, "hint": _TEXT}),
        "Prediction": _object({"model": _TEXT, **classes, **sets, "seconds": _SECONDS}, optional=tuple(sets)),
        "Features": _object({"model": _TEXT, "features": _list(_NUMBER), "seconds": _SECONDS}),
        "Attention": _object(
            {
                "model": _TEXT,
                "image_size": _PAIR,
                "grid": _PAIR,
                "prefix_tokens": _COUNT,
                "layers": _COUNT,
                "heads": _COUNT,
                "averaged_heads": {"type": "boolean", "description": "heads were averaged, for there were too many numbers"},
                "picture": {"type": "string", "pattern": "^data:image/", "description": "what the model saw"},
                "attention": {
                    **_array("uint8", 4),
                    "description": "(layers, heads, N, N): data[l,h,i,j] / 255 * maximum[l,h,i] is how much token i looks at j",
                },
                "maximum": _array("float32", 3),
                "distance": {**_list(_list(_NUMBER)), "description": "mean attention distance in pixels, by layer and head"},
                "entropy": {**_list(_list(_NUMBER)), "description": "mean entropy in bits, by layer and head"},
                "rollout": values,
                "rollout_by_layer": {**_array("uint8", 3), "description": "values / 255 * maximum[layer]"},
                "gradient_rollout": values,
                "similarity": {
                    **_array("int8", 2),
                    "description": "(N, N): data * scale is the cosine between tokens i and j after the final norm",
                },
                "patch_colours": {
                    **_array("uint8", 3),
                    "description": "(rows, columns, 3): principal components of patch features as red, green and blue",
                },
                **classes,
                "seconds": _SECONDS,
            },
            more=True,
        ),
        "Card": _object(card, more=True),
        "Models": _object(
            {
                "models": _list(_reference("Card")),
                "default": _or_null(_TEXT),
                "examples": _list(_object({"name": _TEXT, "url": _TEXT})),
                "runs": {"type": "boolean"},
            }
        ),
        "Positions": _object({"grid": _PAIR, "similarity": {**_array("int8", 2), "description": "data * scale is a cosine"}}),
        "Runs": _object({"runs": _list(_reference("RunSummary")), "left_out": _COUNT}),
        "RunSummary": _object(
            {
                "name": _TEXT,
                "state": {"enum": ["running", "finished", "stopped"]},
                "step": _or_null(_NUMBER),
                "steps": _or_null(_NUMBER),
                "seconds": _or_null(_NUMBER),
                "flops": _or_null(_NUMBER),
                "updated": _or_null(_NUMBER),
                "loss": _or_null(_NUMBER),
                "top1": _or_null(_NUMBER),
                "majority": _or_null(_NUMBER),
                "images_per_second": _or_null(_NUMBER),
                "model": _or_null(_TEXT),
                "data": _or_null(_TEXT),
            },
            more=True,
        ),
        "Run": _object(
            {
                "name": _TEXT,
                "state": {"enum": ["running", "finished", "stopped"]},
                "config": {"type": "object"},
                "series": _list(_reference("Series")),
                "mistakes": _list({"type": "object"}),
            },
            more=True,
        ),
        "Series": _object(
            {"key": _TEXT, "split": _TEXT, "points": _list({**_list(_or_null(_NUMBER)), "minItems": 2, "maxItems": 2})},
            more=True,
        ),
        "Health": _object({"status": {"enum": ["ok", "stopping"]}, "models": _COUNT, "queue": _COUNT}),
        "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
    }
