from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.commands.types import EngineOption, ImageSize, as_words
from vitreous.core.errors import VitreousError, check_at_least, check_share
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.serving.serve import Serving


def serve(
    checkpoints: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT...]")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    runs: str | None = None,
    examples: str | None = None,
    image_size: ImageSize = None,
    device: str = "auto",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
    coverage: float | None = None,
    max_batch: int = 16,
    queue: int = 64,
    upload_mb: float = 20,
    max_pixels: float = 50,
    timeout: float = 30,
) -> Serving:
    """Serve models over HTTP: API, attention explorer, live training runs.

    Concurrent requests are batched. Only this machine can reach the server unless --host says otherwise; no path or URL in a
    request is ever opened. On Ctrl-C and SIGTERM running requests are finished; a second signal stops at once.

    Example: vitreous serve runs/pets/checkpoint --port 8000 --runs runs

    Args:
        checkpoints: runs, files, folders, or names from `vitreous list weights`; none, to show --runs only.
        host: address to listen on; 0.0.0.0: open to every machine that can reach this one.
        port: port to listen on; 0: any free one.
        runs: a folder of runs, whose curves a page shows live.
        examples: DATA of which the page offers a few images; rendered scenes (and scikit-learn's photographs) if not given.
        image_size: run the models at another size than the checkpoints'.
        device: cpu, cuda, mps; the best there is if not given.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
        merge_tokens: merge this many similar tokens in each layer: faster, a little less accurate; 0 merges none.
        coverage: as 0.9: POST /predict adds prediction sets that hold the true class for this share of images.
        max_batch: how many images to run at once.
        queue: how many requests may wait; more get 503 with Retry-After.
        upload_mb: how large an uploaded image may be, in megabytes.
        max_pixels: how many pixels an image may have, in millions.
        timeout: how long a request may take, in seconds.
    """
    from importlib.util import find_spec

    words = as_words(checkpoints)
    folder = None if runs is None else user_path(runs)
    if not words and folder is None:
        raise VitreousError("nothing to serve; name a checkpoint, or a folder of runs with --runs")
    if folder is not None and not folder.is_dir():
        raise VitreousError(f"--runs {runs}: no such folder")
    if examples is not None and not words:
        raise VitreousError(f"--examples {examples}: images to try on a model; name a checkpoint too")
    if not 0 <= port <= 65_535:
        raise VitreousError(f"--port {port}: must be from 0 to 65535; 0 takes any that is free")
    check_at_least(1, max_batch=max_batch, queue=queue)
    check_at_least(0, merge_tokens=merge_tokens)
    check_share(coverage=coverage)
    for name, amount in (("upload-mb", upload_mb), ("max-pixels", max_pixels), ("timeout", timeout)):
        if not 0 < amount < 1e6:
            raise VitreousError(f"--{name} {amount:g}: must be above 0")
    missing = [name for name in ("starlette", "uvicorn", "python_multipart") if find_spec(name) is None]
    if missing:
        names = ", ".join(name.replace("_", "-") for name in missing)
        raise VitreousError(f'serving needs {names}, which is not installed; run: pip install "vitreous[serve]"')

    from vitreous.inference.engines.engine import check_engine
    from vitreous.serving.limits import Limits
    from vitreous.serving.serve import build_server

    check_engine(engine)
    limits = Limits(
        max_batch=max_batch,
        queue=queue,
        upload_bytes=round(upload_mb * 1e6),
        pixels=round(max_pixels * 1e6),
        seconds=timeout,
    )
    return build_server(
        words,
        host=host,
        port=port,
        runs=folder,
        examples=examples,
        image_size=image_size,
        device=device,
        engine=engine,
        merge_tokens=merge_tokens,
        coverage=coverage,
        limits=limits,
    )
