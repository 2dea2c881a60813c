"""What waits for the same model is run at once, in order; the queue is bounded, and what nobody wants any more is not run."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from vitreous.serving.batcher import LONGEST, Batcher
from vitreous.serving.http_errors import ErrorResponse


class Model:
    """Doubles numbers; a batch that holds "stop" waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, key: Any, items: Sequence[Any]) -> list[Any]:
        self.batches.append((key, list(items)))
        if "stop" in items:
            self.begun.set()
            assert self.go.wait(20)
        if "fail" in items:
            raise ValueError("a bad batch")
        if "short" in items:
            return []
        return [item * 2 for item in items]


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.go.set()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test in an event loop, where everything but the model lives."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(20):
                await test(**fixtures)

        asyncio.run(limited())

    return run


def batcher(model: Model, max_batch: int = 4, queue: int = 100, wait: float = 0.0, **options: Any) -> Batcher:
    return Batcher(model, max_batch=max_batch, queue=queue, wait=wait, **options)


async def busy(made: Batcher, model: Model) -> asyncio.Future[Any]:
    """While the model is at work, what is submitted waits."""
    first = made.submit("stop", "stop")
    assert await asyncio.to_thread(model.begun.wait, 20)
    return first


@in_loop
async def test_what_waits_is_taken_together_up_to_a_batch_and_the_oldest_decides(model: Model) -> None:
    made = batcher(model)
    await busy(made, model)
    results = [made.submit(key, number) for number, key in enumerate("abababaab")]
    assert made.waiting == 9
    model.go.set()
    assert [await result for result in results] == [2 * number for number in range(9)]
    assert model.batches[1:] == [("a", [0, 2, 4, 6]), ("b", [1, 3, 5, 8]), ("a", [7])]
    assert made.close(20)


@in_loop
async def test_results_reach_their_own_caller_from_many_tasks(model: Model) -> None:
    sizes: list[int] = []
    made = batcher(model, max_batch=8, queue=400, wait=0.001, ran=sizes.append)

    async def ask(number: int) -> bool:
        with made.expected(number % 3):
            await asyncio.sleep(0.0005 * (number % 5))
            waiting = made.submit(number % 3, number)
        return bool(await waiting == 2 * number)

    assert all(await asyncio.gather(*map(ask, range(400))))
    assert all(len({item % 3 for item in items}) == 1 and len(items) <= 8 for _, items in model.batches)
    assert made.close(20)
    assert sum(sizes) == 400


@in_loop
async def test_one_that_is_alone_is_run_at_once_and_one_that_is_not_waits_for_its_company(model: Model) -> None:
    made = batcher(model, wait=1e6)  # it would wait for ever
    assert await made.submit("a", 1) == 2
    with made.expected("b"):  # company for somebody else
        assert await made.submit("a", 1) == 2
    with made.expected("a"):
        first = made.submit("a", 1)
        with made.expected("a"):
            await asyncio.sleep(0.02)
            assert (made.waiting, made.running) == (1, 0)
            second = made.submit("a", 2)
    assert [await first, await second] == [2, 4]
    assert model.batches[-1] == ("a", [1, 2])


@in_loop
async def test_company_that_does_not_come_is_not_waited_for_longer_than_said(model: Model) -> None:
    made = batcher(model, wait=0.01)
    with made.expected("a"):
        assert await made.submit("a", 1) == 2


@in_loop
async def test_a_full_batch_does_not_wait(model: Model) -> None:
    made = batcher(model, max_batch=2, wait=1e6)
    with made.expected("a"):
        results = [made.submit("a", number) for number in (1, 2)]
        assert [await result for result in results] == [2, 4]


@in_loop
async def test_what_wants_to_be_alone_is(model: Model) -> None:
    made = batcher(model)
    await busy(made, model)
    results = [made.submit("attention", number, most=1) for number in range(3)]
    model.go.set()
    await asyncio.gather(*results)
    assert [items for _, items in model.batches[1:]] == [[0], [1], [2]]


@in_loop
async def test_beyond_the_queue_it_is_refused_with_a_time(model: Model) -> None:
    made = batcher(model, queue=2)
    first = await busy(made, model)
    rest = [made.submit("a", number) for number in (1, 2)]
    assert made.full
    with pytest.raises(ErrorResponse, match="503: the queue is full") as refused:
        made.submit("a", 3)
    assert int(refused.value.headers["Retry-After"]) >= 1
    model.go.set()
    assert [await result for result in [first, *rest]] == ["stopstop", 2, 4]
    assert await made.submit("a", 4) == 8


@pytest.mark.parametrize(("each", "seconds"), [(0.0, 1), (0.1, 1), (1.0, 4), (2.5, 10), (1000.0, LONGEST)])
@in_loop
async def test_the_time_to_come_back_is_that_of_all_who_wait(model: Model, each: float, seconds: int) -> None:
    made = batcher(model)
    await busy(made, model)
    for number in range(3):
        made.submit("a", number)
    made.item_seconds = each
    assert made.retry_after() == seconds  # three who wait and one that runs
    model.go.set()


@in_loop
async def test_the_recent_time_is_that_of_one_item() -> None:
    def slow(key: Any, items: Sequence[int]) -> Sequence[int]:
        time.sleep(0.05)
        return items

    made = Batcher(slow, max_batch=4, queue=9, wait=0.0)
    await asyncio.gather(*[made.submit("a", number) for number in range(9)])
    assert made.item_seconds >= 0.05 / 4  # a sleep is never shorter; how much longer, only the machine knows


@in_loop
async def test_what_was_given_up_is_not_run_and_its_place_is_free(model: Model) -> None:
    made = batcher(model, queue=2)
    await busy(made, model)
    gone, stays = made.submit("a", 1), made.submit("a", 2)
    assert gone.cancel()
    assert made.waiting == 1
    late = made.submit("a", 3)
    model.go.set()
    assert [await stays, await late] == [4, 6]
    assert ("a", [2, 3]) in model.batches


@in_loop
async def test_when_all_that_waited_was_given_up_the_others_are_run(model: Model) -> None:
    made = batcher(model, wait=1e6)
    with made.expected("a"):
        gone = made.submit("a", 1)
        other = made.submit("b", 2)
        await asyncio.sleep(0)
        gone.cancel()
    assert await other == 4
    assert model.batches == [("b", [2])]


@in_loop
async def test_a_caller_who_leaves_while_the_model_runs_affects_no_other(model: Model) -> None:
    made = batcher(model)
    await busy(made, model)
    both = [made.submit("a", number) for number in (1, 2)]
    first = made._items[0].result
    assert first is both[0]
    model.go.set()
    while made.running != 2:
        await asyncio.sleep(0)
    first.cancel()
    assert await both[1] == 4


@in_loop
async def test_an_error_is_reported_to_its_own_batch_only(model: Model) -> None:
    made = batcher(model)
    await busy(made, model)
    bad = [made.submit("a", item) for item in ("fail", 1)]
    good = made.submit("b", 2)
    short = made.submit("c", "short")
    model.go.set()
    for result in bad:
        with pytest.raises(ValueError, match="a bad batch"):
            await result
    assert await good == 4
    with pytest.raises(RuntimeError, match="0 results for 1 items"):
        await short
    assert await made.submit("a", 3) == 6


@in_loop
async def test_closing_waits_for_the_batch_that_runs_but_not_for_ever(model: Model) -> None:
    made = batcher(model)
    await busy(made, model)
    assert not made.close(0.05)
    model.go.set()
    assert made.close(20)


def test_closing_what_never_began() -> None:
    assert Batcher(lambda key, items: items, max_batch=1, queue=1, wait=0).close()
