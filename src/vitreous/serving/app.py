"""The HTTP API and the pages, as one ASGI application.

    caller -> guard -> route -> pipeline (where there is an image) -> response

Nothing that a caller names is opened: models, examples, runs and files of the page are looked up by name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitreous.core.errors import VitreousError, did_you_mean
from vitreous.models.attention_maps import require_attention
from vitreous.serving.byte_budget import Large
from vitreous.serving.examples import Example
from vitreous.serving.http_errors import ErrorResponse, from_input_error, json_bytes, json_response, quoted
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import MEDIA_TYPE, Metrics
from vitreous.serving.middleware import GuardMiddleware
from vitreous.serving.openapi import description
from vitreous.serving.pipeline import Pipeline
from vitreous.serving.query_parameters import check_parameters, parse_integer
from vitreous.serving.runs import RunsFolder, UnknownRun
from vitreous.serving.served_model import ServedModel
from vitreous.serving.static_files import file, load_static_files

T = TypeVar("T")
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
STEPS = 2**53  # beyond it a browser's numbers are no longer whole


class Service:
    """What all requests share. Its methods that end in a response are the routes."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, examples: Sequence[Example], runs: Path | None) -> None:
        self.models = {loaded.name: loaded for loaded in models}
        self.limits, self.runs = limits, None if runs is None else RunsFolder(runs)
        self.metrics = Metrics()
        self.pipeline = Pipeline(models, limits, self.metrics.ran)
        self.stopping = False
        self._readers = ThreadPoolExecutor(2, "vitreous-read")  # of files on disk, which may be slow
        self._files = load_static_files()
        self._examples = {example.name: file(example.content, example.media_type) for example in examples}
        about = {
            "models": [loaded.card() for loaded in models],
            "default": models[0].name if models else None,
            "examples": [{"name": one.name, "url": f"/examples/{quote(one.name, safe='')}"} for one in examples],
            "runs": runs is not None,
        }
        self._prepared = {"models": json_bytes(about), "openapi": json_bytes(description(limits))}

    def routes(self) -> list[Route]:
        def route(path: str, endpoint: Endpoint, *known: str, method: str = "GET") -> Route:
            """Of the parameters in the query, the endpoint takes the `known` ones."""

            async def checked(request: Request) -> Response:
                check_parameters(request, known)
                return await endpoint(request)

            return Route(path, checked, methods=[method])

        return [
            Route("/", partial(self.page_file, name="index.html"), methods=["GET"]),
            Route("/curves", partial(self.page_file, name="curves.html"), methods=["GET"]),
            Route("/page/{file:path}", self.page_file, methods=["GET"]),
            route("/health", self.health),
            route("/metrics", self.metrics_text),
            route("/openapi.json", partial(self.prepared, name="openapi")),
            route("/models", partial(self.prepared, name="models")),
            route("/models/{name:path}/positions", self.positions),
            route("/examples/{name:path}", self.example),
            route("/runs", self.all_runs),
            route("/runs/{name:path}", self.one_run, "after"),
            route("/predict", self.predict, "model", "top", method="POST"),
            route("/features", self.features, "model", method="POST"),
            route("/attention", self.attention, "model", method="POST"),
        ]

    def close(self, seconds: float = 0.0) -> bool:
        """Ends the threads; whether all work was done by then."""
        done = self.pipeline.close(seconds)
        self._readers.shutdown(wait=False, cancel_futures=True)
        return done

    # About the server ---------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        status = "stopping" if self.stopping else "ok"
        content = {"status": status, "models": len(self.models), "queue": self.pipeline.batcher.waiting}
        return json_response(content, 503 if self.stopping else 200, {"Retry-After": "5"} if self.stopping else {})

    async def metrics_text(self, request: Request) -> Response:
        gauges = {
            "vitreous_queue_length": ("images that wait for the model", float(self.pipeline.batcher.waiting)),
            "vitreous_held_bytes": (
                "uploads that are not yet decoded and large responses that are not yet read",
                float(self.pipeline.held.held),
            ),
            "vitreous_requests_at_work": ("requests with an image that have begun", float(self.pipeline.at_work)),
        }
        return Response(self.metrics.text(gauges), headers={"Cache-Control": "no-store", "Content-Type": MEDIA_TYPE})

    async def prepared(self, request: Request, name: str) -> Response:
        return self._sent(self._prepared[name])

    async def positions(self, request: Request) -> Response:
        loaded = self._model(request.path_params["name"])
        try:
            return self._sent(await self._read(lambda: json_bytes(loaded.positions)))
        except VitreousError as error:
            refusal = from_input_error(error)
            raise ErrorResponse(404, refusal.error, refusal.hint) from None

    # Pages, images and runs -------------------------------------------------------------------------------------------------

    async def page_file(self, request: Request, name: str | None = None) -> Response:
        name = name or str(request.path_params["file"])
        if name not in self._files:
            raise ErrorResponse(
                404, f"no file {quoted(name)} in the page", "GET / is the page, GET /openapi.json describes the API"
            )
        return self._files[name].answer(request)

    async def example(self, request: Request) -> Response:
        found = self._examples.get(request.path_params["name"])
        if found is None:
            raise ErrorResponse(404, f"no example {quoted(request.path_params['name'])}", "GET /models lists the examples")
        return found.answer(request)

    async def all_runs(self, request: Request) -> Response:
        runs = self._watched_runs()
        return self._sent(await self._read(lambda: json_bytes(runs.listing())))

    async def one_run(self, request: Request) -> Response:
        runs, name = self._watched_runs(), request.path_params["name"]
        after = parse_integer(request.query_params, "after", -1, -1, STEPS)
        try:
            return self._sent(await self._read(lambda: json_bytes(runs.view(name, after))))
        except UnknownRun:
            raise ErrorResponse(404, f"no run {quoted(name)}", "GET /runs lists those that are there") from None

    def _watched_runs(self) -> RunsFolder:
        if self.runs is None:
            raise ErrorResponse(404, "this server shows no runs", "start it with --runs FOLDER")
        return self.runs

    # Images through a model -------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        began = time.perf_counter()
        loaded = self._model(request.query_params.get("model"))
        top = parse_integer(request.query_params, "top", 5, 1, self.limits.top)
        if not loaded.clf.config.classes:
            raise ErrorResponse(
                422,
                f"model {loaded.name!r} has no head, so it cannot predict",
                "POST /features gives its features; `vitreous fewshot --save` gives it a head",
            )
        answer = await self.pipeline.through(request, loaded, "predict", top)
        return json_response({"model": loaded.name, **answer, "seconds": _since(began)})

    async def features(self, request: Request) -> Response:
        began = time.perf_counter()
        loaded = self._model(request.query_params.get("model"))
        answer = await self.pipeline.through(request, loaded, "features")
        return await self._sent_aside({"model": loaded.name, "features": answer, "seconds": _since(began)})

    async def attention(self, request: Request) -> Response:
        began = time.perf_counter()
        loaded = self._model(request.query_params.get("model"))
        try:
            require_attention(loaded.clf.model)
        except VitreousError as error:  # before the upload, which would be wasted
            raise from_input_error(error) from None
        answer = await self.pipeline.through(request, loaded, "attention", most=1)
        return await self._sent_aside({**answer, "model": loaded.name, "seconds": _since(began)})

    def _model(self, name: str | None) -> ServedModel:
        if not self.models:
            raise ErrorResponse(
                404, "this server has no model, only runs", "start it with a checkpoint: vitreous serve CHECKPOINT"
            )
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ErrorResponse(
                404, f"no model {quoted(name)}", f"{did_you_mean(name[:100], self.models)}GET /models lists all"
            )
        return self.models[name]

    def _sent(self, content: bytes) -> Response:
        return Large(content, self.pipeline.held)

    async def _sent_aside(self, content: Any) -> Response:
        """Megabytes are written by a thread of their own, not by the event loop."""
        return self._sent(await self.pipeline.aside(json_bytes, content))

    async def _read(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._readers.submit(function))


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 6)


async def _router_error(request: Request, error: Exception) -> Response:
    """The error response to what the router refuses: an unknown address, or a method that an address has not."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = ErrorResponse(405, f"method {quoted(request.method)} is not allowed here", f"use {allowed}", error.headers)
    else:
        hint = "GET / is the page, GET /openapi.json describes the API"
        refusal = ErrorResponse(error.status_code, f"nothing at {quoted(request.url.path)}", hint, error.headers)
    return refusal.answer()


def build_app(
    models: Sequence[ServedModel],
    *,
    limits: Limits | None = None,
    examples: Sequence[Example] = (),
    runs: Path | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """The application, to be served by any ASGI server. `app.state.service` is what its requests share.

    `hosts` are the names under which it may be addressed, None for any; `vitreous serve` names loopback's.
    """
    service = Service(models, limits or Limits(), examples, runs)
    routes = service.routes()
    guard = Middleware(
        GuardMiddleware,
        limits=service.limits,
        metrics=service.metrics,
        hosts=hosts,
        stopping=lambda: service.stopping,
        routes={route.endpoint: route.path.replace(":path", "") for route in routes},
    )

    app = Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _router_error})
    app.router.redirect_slashes = False  # a redirect would repeat the caller's Host
    app.state.service = service
    return app
