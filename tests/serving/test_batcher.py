"""What waits for the same model is run at once, in order; the queue is bounded, and what nobody wants any more is not run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as all_of
from typing import Any

import pytest

from vitreous.serving.batcher import LONGEST, Batcher, Full


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


def batcher(model: Model, max_batch: int = 4, queue: int = 100, wait: float = 0.0, **options: Any) -> Batcher:
    return Batcher(model, max_batch=max_batch, queue=queue, wait=wait, **options)


def busy(made: Batcher, model: Model) -> Future[Any]:
    """While the model is at work, what is submitted waits."""
    first = made.submit("stop", "stop")
    assert model.begun.wait(20)
    return first


def test_what_waits_is_taken_together_up_to_a_batch_and_the_oldest_decides(model: Model) -> None:
    made = batcher(model)
    busy(made, model)
    results = [made.submit(key, number) for number, key in enumerate("abababaab")]
    assert made.waiting == 9
    model.go.set()
    assert [result.result(20) for result in results] == [2 * number for number in range(9)]
    assert model.batches[1:] == [("a", [0, 2, 4, 6]), ("b", [1, 3, 5, 8]), ("a", [7])]
    assert made.close(20)


def test_results_reach_their_own_caller_from_many_threads(model: Model) -> None:
    sizes: list[int] = []
    made = batcher(model, max_batch=8, wait=0.001, ran=sizes.append)

    def ask(number: int) -> bool:
        with made.expected(number % 3):
            time.sleep(0.0005 * (number % 5))
            waiting = made.submit(number % 3, number)
        return waiting.result(20) == 2 * number

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(400)))
    assert all(len({item % 3 for item in items}) == 1 and len(items) <= 8 for _, items in model.batches)
    assert made.close(20)
    assert sum(sizes) == 400


def test_one_that_is_alone_is_run_at_once_and_one_that_is_not_waits_for_its_company(model: Model) -> None:
    made = batcher(model, wait=1e6)  # it would wait for ever
    assert made.submit("a", 1).result(20) == 2
    with made.expected("b"):  # company for somebody else
        assert made.submit("a", 1).result(20) == 2
    with made.expected("a"):
        first = made.submit("a", 1)
        with made.expected("a"):
            time.sleep(0.02)
            assert not first.running()
            second = made.submit("a", 2)
    assert [first.result(20), second.result(20)] == [2, 4]
    assert model.batches[-1] == ("a", [1, 2])


def test_company_that_does_not_come_is_not_waited_for_longer_than_said(model: Model) -> None:
    made = batcher(model, wait=0.01)
    with made.expected("a"):
        assert made.submit("a", 1).result(20) == 2


def test_a_full_batch_does_not_wait(model: Model) -> None:
    made = batcher(model, max_batch=2, wait=1e6)
    with made.expected("a"):
        results = [made.submit("a", number) for number in (1, 2)]
        assert [result.result(20) for result in results] == [2, 4]


def test_what_wants_to_be_alone_is(model: Model) -> None:
    made = batcher(model)
    busy(made, model)
    results = [made.submit("attention", number, most=1) for number in range(3)]
    model.go.set()
    all_of(results, 20)
    assert [items for _, items in model.batches[1:]] == [[0], [1], [2]]


def test_beyond_the_queue_it_is_refused_with_a_time(model: Model) -> None:
    made = batcher(model, queue=2)
    first = busy(made, model)
    rest = [made.submit("a", number) for number in (1, 2)]
    assert made.full
    with pytest.raises(Full) as refused:
        made.submit("a", 3)
    assert refused.value.seconds >= 1
    model.go.set()
    assert [result.result(20) for result in [first, *rest]] == ["stopstop", 2, 4]
    assert made.submit("a", 4).result(20) == 8


@pytest.mark.parametrize(("pace", "seconds"), [(0.0, 1), (0.1, 1), (1.0, 4), (2.5, 10), (1000.0, LONGEST)])
def test_the_time_to_come_back_is_that_of_all_who_wait(model: Model, pace: float, seconds: int) -> None:
    made = batcher(model)
    busy(made, model)
    for number in range(3):
        made.submit("a", number)
    made._pace = pace
    assert made.retry_after() == seconds  # three who wait and one that runs


def test_the_pace_is_that_of_one_item() -> None:
    def slow(key: Any, items: Sequence[int]) -> Sequence[int]:
        time.sleep(0.05)
        return items

    made = Batcher(slow, max_batch=4, queue=9, wait=0.0)
    held = [made.submit("a", number) for number in range(9)]
    all_of(held, 20)
    until = time.monotonic() + 5
    while made._running and time.monotonic() < until:
        time.sleep(0.001)
    assert made._pace >= 0.05 / 4  # a sleep is never shorter; how much longer, only the machine knows


def test_what_was_given_up_is_not_run_and_its_place_is_free(model: Model) -> None:
    made = batcher(model, queue=2)
    busy(made, model)
    gone, stays = made.submit("a", 1), made.submit("a", 2)
    assert gone.cancel()
    assert made.waiting == 1
    late = made.submit("a", 3)
    model.go.set()
    assert [stays.result(20), late.result(20)] == [4, 6]
    assert ("a", [2, 3]) in model.batches


def test_an_error_is_told_to_its_own_batch_only(model: Model) -> None:
    made = batcher(model)
    busy(made, model)
    bad = [made.submit("a", item) for item in ("fail", 1)]
    good = made.submit("b", 2)
    short = made.submit("c", "short")
    model.go.set()
    for result in bad:
        with pytest.raises(ValueError, match="a bad batch"):
            result.result(20)
    assert good.result(20) == 4
    with pytest.raises(RuntimeError, match="0 results for 1 items"):
        short.result(20)
    assert made.submit("a", 3).result(20) == 6


def test_closing_finishes_what_waits_and_takes_nothing_more(model: Model) -> None:
    made = batcher(model)
    busy(made, model)
    rest = [made.submit("a", number) for number in range(6)]
    closing = ThreadPoolExecutor(1).submit(made.close, 20)
    while not made.full:
        time.sleep(0.001)
    with pytest.raises(Full):
        made.submit("a", 9)
    model.go.set()
    assert closing.result(20)
    assert [result.result(0) for result in rest] == [0, 2, 4, 6, 8, 10]


def test_closing_does_not_wait_for_ever(model: Model) -> None:
    made = batcher(model)
    busy(made, model)
    rest = made.submit("a", 1)
    assert not made.close(0.05)
    with pytest.raises(CancelledError):
        rest.result(0)


def test_it_settles_when_there_is_nothing_to_do(model: Model) -> None:
    made = batcher(model)
    assert made.settle(0)
    first = busy(made, model)
    assert not made.settle(0.02)
    settling = ThreadPoolExecutor(1).submit(made.settle, 20)
    assert not first.done()
    model.go.set()
    assert settling.result(20)
    assert first.result(0) == "stopstop"
    assert made.submit("a", 1).result(20) == 2  # it goes on


def test_closing_what_never_began() -> None:
    assert Batcher(lambda key, items: items, max_batch=1, queue=1, wait=0).close()
