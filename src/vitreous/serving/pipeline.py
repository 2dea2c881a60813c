"""One image from the body of a request through a model to its predictions, features or attention.

    upload, within a byte budget -> a decoder thread -> batcher -> the model's thread

The event loop only passes things on. Images are decoded in a few threads, and one thread runs all models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from vitreous.core.errors import NonFiniteOutput, VitreousError
from vitreous.inference.runner import out_of_memory
from vitreous.serving.attention_payload import build_attention_payload
from vitreous.serving.batcher import Batcher
from vitreous.serving.byte_budget import Budget
from vitreous.serving.http_errors import ErrorResponse, busy, from_input_error
from vitreous.serving.image_decode import raw_pixels
from vitreous.serving.limits import Limits
from vitreous.serving.served_model import ServedModel
from vitreous.serving.uploads import Body, image_in, receive_body

T = TypeVar("T")
Kind = Literal["predict", "features", "attention"]


class Work(NamedTuple):
    """What may be run in one batch."""

    model: str
    kind: Kind


class Pipeline:
    """`ran` is called with the size of every batch."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, ran: Callable[[int], None]) -> None:
        self.models, self.limits = {loaded.name: loaded for loaded in models}, limits
        self.batcher = Batcher(self.run, max_batch=limits.max_batch, queue=limits.queue, wait=limits.wait, ran=ran)
        self.held = Budget(limits.held)
        self.at_work = 0  # requests with an image, from their headers to their response
        self._arrived = 0  # those of them whose upload is complete; only these count as load: others wait for their callers
        self._decoders = ThreadPoolExecutor(limits.decoders, "vitreous-decode")

    def close(self, seconds: float = 0.0) -> bool:
        """Ends the threads; whether all work was done by then."""
        done = self.batcher.close(seconds)
        self._decoders.shutdown(wait=False, cancel_futures=True)
        return done

    async def through(self, request: Request, loaded: ServedModel, kind: Kind, top: int = 0, most: int | None = None) -> Any:
        """What the model gives for the image in the request."""
        self._check_load()  # before the upload, which would be wasted
        self.at_work += 1
        arrived = False
        try:
            async with asyncio.timeout(self.limits.seconds):
                with self.held.account() as account:
                    body = await receive_body(request, self.limits, account)
                    self._check_load()
                    self._arrived += 1
                    arrived = True
                    result = await _unless_gone(request, self._queued(body, loaded, Work(loaded.name, kind), top, most))
                    del body
                return await _unless_gone(request, result)
        except TimeoutError:
            if not arrived:
                hint = "send a smaller image (the server's limit is --timeout)"
                # Closed at once, or the rest of it would hold the connection.
                closed = {"Connection": "close"}
                raise ErrorResponse(400, f"the upload took more than {self.limits.seconds:g} s", hint, closed) from None
            raise busy(f"no answer within {self.limits.seconds:g} s", self.batcher.retry_after()) from None
        except NonFiniteOutput as error:
            raise ErrorResponse(500, str(error), "serve a checkpoint whose weights are sound") from None
        except VitreousError as error:
            raise from_input_error(error) from None
        finally:
            self.at_work -= 1
            self._arrived -= arrived

    def _check_load(self) -> None:
        if self._arrived >= self.limits.admitted or self.batcher.full:
            raise busy("too many requests at once", self.batcher.retry_after())

    async def _queued(self, body: Body, loaded: ServedModel, work: Work, top: int, most: int | None) -> asyncio.Future[Any]:
        def decoded() -> Tensor:
            return raw_pixels(image_in(body, self.limits), loaded.clf.preprocess, self.limits)

        with self.batcher.expected(work):
            pixels = await self.aside(decoded)
            return self.batcher.submit(work, (pixels, top), most)

    def run(self, work: Work, items: Sequence[tuple[Tensor, int]]) -> list[Any]:
        """A batch of pixels, each with its number of classes, through a model, in the model's thread."""
        loaded = self.models[work.model]
        clf = loaded.clf
        images = clf.preprocess.scale(torch.stack([pixels for pixels, _ in items]))
        with loaded.lock:
            if work.kind == "attention":
                try:
                    return [build_attention_payload(loaded, images)]
                except torch.OutOfMemoryError:
                    raise out_of_memory(loaded.device) from None
            if work.kind == "features":
                return list(clf.features(images, len(items)).tolist())
            found = clf.predict(images, max(top for _, top in items), len(items), loaded.sets)
        return [
            {
                "classes": one.classes[:top],
                "probabilities": one.probabilities[:top],
                **({} if one.set is None else {"set": one.set, "abstain": one.abstain}),
            }
            for one, (_, top) in zip(found, items, strict=True)
        ]

    async def aside(self, function: Callable[..., T], *arguments: Any) -> T:
        """In a thread of its own, for what takes too long for the event loop."""
        return await asyncio.wrap_future(self._decoders.submit(function, *arguments))


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What the work gives; it is cancelled as soon as the caller closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
