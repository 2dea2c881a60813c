from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.commands.types import ImageSize
from vitreous.core.files import user_path
from vitreous.core.printable import printable

if TYPE_CHECKING:
    from vitreous.serving.server import Running


@dataclass(frozen=True, eq=False)
class Serving:
    """A server that is ready to start. `run()` serves until a signal ends it; `with serve(...) as server:` serves inside."""

    url: str
    models: tuple[str, ...]
    runs: str | None
    server: Running = field(repr=False)
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
        for _ in self._served():
            pass

    def lines(self) -> Iterator[str]:
        what = ", ".join(self.models) or f"the runs in {self.runs}"
        for record in self._served():
            if record["state"] == "serving":
                yield f"serving {printable(what)} at {self.url} (Ctrl-C ends it)"
            else:
                yield f"ended after {record['requests']:,} requests and {record['images']:,} images"

    def text(self) -> str:
        return "\n".join(self.lines())

    def records(self) -> Iterator[dict[str, Any]]:
        return self._served()

    def _served(self) -> Iterator[dict[str, Any]]:
        """Told when it answers, and when it has ended."""
        about = {"url": self.url, "models": list(self.models), "preprocess": list(self.preprocess), "runs": self.runs}
        metrics = self.server.service.metrics
        with self._until_signal():
            self.server.start()
            try:
                yield {"state": "serving", **about}
                if not self.server.wait() and self.signals:
                    self._leave(self.signals[0])  # the model is stuck; to end in the usual way would end in a crash
            except GeneratorExit:  # whoever listened has left
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


def serve(
    checkpoints: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT...]")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    runs: str | None = None,
    examples: str | None = None,
    image_size: ImageSize = None,
    device: str = "auto",
    max_batch: int = 16,
    queue: int = 64,
    upload_mb: float = 20,
    max_pixels: float = 50,
    timeout: float = 30,
) -> Serving:
    """Serve models over HTTP: an API to predict, and a page to look inside them and at runs.

    Requests at the same time are run together. Only this machine can reach the server unless --host says otherwise; nothing
    that a caller names is ever opened. Ctrl-C and SIGTERM let what is at work be finished, a second one ends it at once.

    Example: vitreous serve runs/pets/checkpoint --port 8000 --runs runs

    Args:
        checkpoints: runs, files, folders, or names from `vitreous list weights`; none, to show --runs only.
        host: address to listen on; 0.0.0.0 lets everybody in who can reach this machine.
        port: 0 takes any that is free.
        runs: a folder of runs, whose curves a page shows while they grow.
        examples: DATA of which the page offers a few pictures; drawn scenes (and scikit-learn's photographs) if not given.
        image_size: run the models at another size than the checkpoints'.
        device: cpu, cuda, mps; the best there is if not given.
        max_batch: how many pictures to run at once.
        queue: how many may wait; more are refused with 503 and the time to come back.
        upload_mb: how large an uploaded picture may be, in megabytes.
        max_pixels: how many pixels it may have, in millions.
        timeout: how long a request may take, in seconds.
    """
    from vitreous.core.errors import VitreousError

    words = [os.fspath(one) for one in ([checkpoints] if isinstance(checkpoints, (str, os.PathLike)) else checkpoints)]
    folder = None if runs is None else user_path(runs)
    if not words and folder is None:
        raise VitreousError("nothing to serve; name a checkpoint, or a folder of runs with --runs")
    if folder is not None and not folder.is_dir():
        raise VitreousError(f"--runs {runs}: no such folder")
    if examples is not None and not words:
        raise VitreousError(f"--examples {examples}: pictures to try on a model; name a checkpoint too")
    if not 0 <= port <= 65_535:
        raise VitreousError(f"--port {port}: must be from 0 to 65535; 0 takes any that is free")
    for name, value in (("max-batch", max_batch), ("queue", queue)):
        if value < 1:
            raise VitreousError(f"--{name} {value}: must be at least 1")
    for name, amount in (("upload-mb", upload_mb), ("max-pixels", max_pixels), ("timeout", timeout)):
        if not 0 < amount < 1e6:
            raise VitreousError(f"--{name} {amount:g}: must be above 0")
    _check_packages()

    from vitreous.serving.app import build_app
    from vitreous.serving.examples import examples as examples_of
    from vitreous.serving.limits import Limits
    from vitreous.serving.middleware import LOOPBACK
    from vitreous.serving.served_model import load_models
    from vitreous.serving.server import ALL, Running, bind_socket, is_loopback, url_of

    limits = Limits(
        max_batch=max_batch,
        queue=queue,
        upload_bytes=round(upload_mb * 1e6),
        pixels=round(max_pixels * 1e6),
        seconds=timeout,
    )
    listening = bind_socket(host, port)
    try:
        private = is_loopback(listening)
        models = load_models(words, image_size, device)
        pictures = examples_of(examples, models[0].clf.config.channels) if models else ()
        hosts = {*LOOPBACK, f"[{host}]" if ":" in host else host} if private else None
        app = build_app(models, limits=limits, examples=pictures, runs=folder, hosts=hosts)
    except BaseException:
        listening.close()
        raise
    notes = [f"{loaded.name}: {note}" for loaded in models for note in (*loaded.clf.notes, loaded.clf.preprocessing_note())]
    if not private:
        where = "every address of this machine" if host in ALL else host
        notes.append(f"it listens on {where}: whoever can reach this machine can use it, and there is no password")
    names, strings = tuple(loaded.name for loaded in models), tuple(str(loaded.clf.preprocess) for loaded in models)
    return Serving(
        url_of(host, listening), names, None if folder is None else str(folder), Running(app, listening), tuple(notes), strings
    )


def _check_packages() -> None:
    from importlib.util import find_spec

    from vitreous.core.errors import VitreousError

    missing = [name for name in ("starlette", "uvicorn", "python_multipart") if find_spec(name) is None]
    if missing:
        names = ", ".join(name.replace("_", "-") for name in missing)
        raise VitreousError(f'serving needs {names}, which is not installed; run: pip install "vitreous[serve]"')
