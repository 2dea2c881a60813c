"""A server from what `vitreous serve` is given: checkpoints loaded, a socket bound, ready to run until a signal ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.core.printable import printable
from vitreous.inference.engines.engine import EngineOption
from vitreous.models.config import Size
from vitreous.serving.app import build_app
from vitreous.serving.examples import load_examples
from vitreous.serving.limits import Limits
from vitreous.serving.middleware import LOOPBACK
from vitreous.serving.served_model import load_models
from vitreous.serving.server import ALL_ADDRESSES, BackgroundServer, bind_socket, is_loopback, url_of


@dataclass(frozen=True, eq=False)
class Serving:
    """A server that is ready to start. `run()` serves until a signal ends it; `with serve(...) as server:` serves inside."""

    url: str
    models: tuple[str, ...]
    runs: str | None
    server: BackgroundServer = field(repr=False)
    notes: tuple[str, ...] = ()
    preprocess: tuple[str, ...] = ()  # of each model
    signals: list[int] = field(default_factory=list, repr=False)

    @property
    def exit_code(self) -> int:
        """130 or 143 after the signal that ended it."""
        return 128 + self.signals[0] if self.signals else 0

    def __enter__(self) -> Serving:
        self.server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.stop()
        self.server.wait()

    def run(self) -> None:
        list(self.records())

    def lines(self) -> Iterator[str]:
        what = ", ".join(self.models) or f"the runs in {self.runs}"
        for record in self.records():
            if record["state"] == "serving":
                yield f"serving {printable(what)} at {self.url} (Ctrl-C ends it)"
            else:
                yield f"ended after {record['requests']:,} requests and {record['images']:,} images"

    def text(self) -> str:
        return "\n".join(self.lines())

    def records(self) -> Iterator[dict[str, Any]]:
        """Serves meanwhile: the first comes when it accepts requests, the second when it has ended."""
        about = {"url": self.url, "models": list(self.models), "preprocess": list(self.preprocess), "runs": self.runs}
        metrics = self.server.service.metrics
        with self._until_signal():
            self.server.start()
            try:
                yield {"state": "serving", **about}
                if not self.server.wait() and self.signals:
                    self._leave(self.signals[0])  # the model is stuck; to end in the usual way would end in a crash
            except GeneratorExit:  # the reader has left
                self.server.stop()
                self.server.wait()
                raise
        yield {"state": "ended", **about, "requests": metrics.requests, "images": metrics.images}

    @staticmethod
    def _leave(number: int) -> None:
        """At once: threads may be in the middle of a batch, and there is nothing to be saved."""
        sys.stdout.flush()
        os._exit(128 + number)

    @contextmanager
    def _until_signal(self) -> Iterator[None]:
        """The first signal lets what is at work be finished, the second ends everything at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ended(number: int, frame: object) -> None:
            if self.signals:
                self._leave(number)
            self.signals.append(number)
            self.server.stop()

        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
        numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
        caught = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
        before = {number: signal.signal(number, ended) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def build_server(
    checkpoints: Sequence[str],
    *,
    host: str,
    port: int,
    runs: Path | None,
    examples: str | None,
    image_size: Size | None,
    device: str,
    engine: EngineOption,
    merge_tokens: int,
    coverage: float | None,
    limits: Limits,
) -> Serving:
    """Everything that can fail happens here, the socket first: a port in use is known before a model is loaded."""
    listening = bind_socket(host, port)
    try:
        private = is_loopback(listening)
        models = load_models(checkpoints, image_size, device, engine, merge_tokens, coverage, limits.max_batch)
        shown = load_examples(examples, models[0].clf.config.channels) if models else ()
        hosts = {*LOOPBACK, f"[{host}]" if ":" in host else host} if private else None
        app = build_app(models, limits=limits, examples=shown, runs=runs, hosts=hosts)
    except BaseException:
        listening.close()
        raise
    notes = [
        f"{model.name}: {note}" for model in models for note in (*model.clf.notes, *model.notes, model.clf.preprocessing_note())
    ]
    if not private:
        where = "every address of this machine" if host in ALL_ADDRESSES else host
        notes.append(f"it listens on {where}: anyone who can reach this machine can use it, and there is no password")
    return Serving(
        url_of(host, listening),
        tuple(model.name for model in models),
        None if runs is None else str(runs),
        BackgroundServer(app, listening),
        tuple(notes),
        tuple(str(model.clf.preprocess) for model in models),
    )
