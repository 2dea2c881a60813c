"""Large answers are sent in parts and counted while nobody reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vitreous.serving.byte_budget import PART, Budget, Large
from vitreous.serving.http_errors import ErrorResponse


async def sent_by(answer: Large, budget: Budget) -> tuple[bytes, list[int], list[int]]:
    """The body, the sizes of its parts, and what was held while each was on its way."""
    body, sizes, held = b"", [], []

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            assert int(headers[b"content-length"]) == len(answer.body)
            assert headers[b"content-type"] == b"application/json"
        else:
            body += message["body"]
            sizes.append(len(message["body"]))
            held.append(budget.held)
            assert message.get("more_body", False) == (len(body) < len(answer.body))

    async def receive() -> dict[str, Any]:
        raise AssertionError("it was all said")

    await answer({"type": "http", "method": "POST"}, receive, send)
    return body, sizes, held


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
def test_parts_make_the_whole(size: int) -> None:
    content, budget = bytes(range(256)) * (size // 256 + 1), Budget(4 * PART)
    content = content[:size]
    body, sizes, held = asyncio.run(sent_by(Large(content, budget), budget))
    assert body == content
    assert max(sizes) <= PART
    assert set(held) == {size if size > PART else 0}
    assert budget.held == 0


def test_more_than_the_bound_is_refused_before_it_begins() -> None:
    budget = Budget(4 * PART)
    with budget.account() as other:
        other.take(2 * PART)
        with pytest.raises(ErrorResponse, match="503"):
            asyncio.run(sent_by(Large(b"x" * (2 * PART + 1), budget), budget))
        assert budget.held == 2 * PART
    assert budget.held == 0


def test_a_reader_who_leaves_gives_it_back() -> None:
    budget = Budget(4 * PART)

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            assert budget.held == 3 * PART
            raise OSError("gone")

    async def receive() -> dict[str, Any]:
        raise AssertionError("it was all said")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(Large(b"x" * 3 * PART, budget)({"type": "http"}, receive, send))
    assert budget.held == 0
