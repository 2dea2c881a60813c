"""A model of a few thousand weights, served: what the tests of the API share."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from vitreous.classifier import Classifier
from vitreous.serving.app import Service, build_app
from vitreous.serving.served_model import ServedModel

from conftest import random_checkpoint

NAMES = ("ant", "bee, the", 'cat "tom"', "dog", "eel é")
CROP = "resize_small(36,bilinear)|central_crop(32)|range(-1,1)"


def classifier(name: str = "ViT-B/16", **options: Any) -> Classifier:
    given = dict(width=24, depth=2, heads=3, mlp=24, image_size=32, classes=len(NAMES), names=NAMES, preprocess=CROP)
    given |= options
    if not given["classes"]:
        given["names"] = None
    return Classifier(random_checkpoint(name, **given))


def loaded(name: str = "small", **options: Any) -> ServedModel:
    return ServedModel(name, classifier(**options))


def picture(seed: int = 0, size: tuple[int, int] = (50, 40), format: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """Encoded; width and height as Pillow has them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, format, **options)
    return out.getvalue()


@contextmanager
def client(*models: ServedModel, **options: Any) -> Iterator[TestClient]:
    app = build_app(models, **options)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made
    app.state.service.close()


def service(of: TestClient) -> Service:
    found: Service = of.app.state.service  # type: ignore[attr-defined]
    return found


def post(of: TestClient, path: str, content: bytes, **options: Any) -> Any:
    return of.post(path, files={"file": ("a.png", content, "image/png")}, **options)


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.002)


class Together:
    """Requests at the same time, each from a thread of its own."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(64)

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()

    def ask(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        return self.pool.submit(function, *arguments, **options)


@contextmanager
def model_is_busy(model: ServedModel) -> Iterator[None]:
    """While this is open, whatever is given to the model waits."""
    free = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with model.lock:
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    held.wait(10)
    try:
        yield
    finally:
        free.set()
        holder.join(10)


def run_folder(folder: Path) -> Path:
    """A folder with one run in it, such as training leaves."""
    run = folder / "pets" / "first"
    run.mkdir(parents=True)
    (run / "config.json").write_text(
        '{"version": 2, "command": "pretrain", "model": {"name": "ViT-Ti/2"}, "recipe": {"steps": 4}}'
    )
    lines = [f'{{"step": {step}, "split": "train", "loss": {1 / step}, "seconds": {step}}}\n' for step in range(1, 5)]
    (run / "metrics.jsonl").write_text("".join(lines))
    return folder
