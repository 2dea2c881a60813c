"""One memory limit for uploads that are not yet decoded and large responses that are not yet read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vitreous.serving.http_errors import busy

PART = 262_144  # bytes; smaller responses are sent in one go


class Budget:
    """Used in the event loop only, so that it needs no lock."""

    def __init__(self, most: int) -> None:
        self._most, self.held = most, 0

    @contextmanager
    def account(self) -> Iterator[Account]:
        """What is taken inside is given back at its end."""
        account = Account(self)
        try:
            yield account
        finally:
            self.held -= account.taken


@dataclass
class Account:
    budget: Budget
    taken: int = 0

    def check(self, more: int) -> None:
        if self.budget.held + more > self.budget._most:
            raise busy("too many large uploads and responses at once", 5)

    def take(self, more: int) -> None:
        self.check(more)
        self.budget.held += more
        self.taken += more


class Large(Response):
    """JSON that may have megabytes, sent in parts: until the client reads them they wait here, where they are counted."""

    media_type = "application/json"

    def __init__(self, content: bytes, budget: Budget) -> None:
        super().__init__(content, headers={"Cache-Control": "no-store"})
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= PART:
            await super().__call__(scope, receive, send)
            return
        with self._budget.account() as account:
            account.take(len(self.body))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for begin in range(0, len(self.body), PART):
                more = begin + PART < len(self.body)
                await send({"type": "http.response.body", "body": self.body[begin : begin + PART], "more_body": more})
