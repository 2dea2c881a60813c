from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import ImageSize
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.bench.bench_result import BenchResult


def bench(
    checkpoint: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT]")] = None,
    against: str | None = None,
    what: str = "inference,latency,training,loader,cold-start",
    precision: str = "float32",
    batch_size: int = 8,
    image_size: ImageSize = None,
    data: str | None = None,
    merge_tokens: int = 0,
    clock: Literal["wall", "processor"] = "wall",
    quick: bool = False,
    out: str | None = None,
) -> BenchResult:
    """Measure speed and memory beside timm, transformers and others.

    Each contender is a process of its own with the same weights on the CPU. Their outputs are compared first, then they take
    turns; a row has the median over rounds, its ratio to the best peer in the same precision, and its share of this
    machine's matrix-multiply peak. Exit code 1 means that a peer's outputs differ from ours. Only compare within one run.

    Example: vitreous bench ViT-S/16 --against timm --what inference,latency --quick

    Args:
        checkpoint: a run, a file, a folder, a name from `vitreous list weights`; or a model's name, for random weights.
            Default: ViT-B/16, and for training ViT-Ti/4 and a smaller one at 32 pixels.
        against: libraries to compare with: timm,transformers,torchvision,onnxruntime,openvino. Default: all that are
            installed.
        what: which of inference, latency (one image), training, loader, cold-start and serving (64 clients, beside LitServe
            and FastAPI).
        precision: float32, or several of float32,bfloat16,int8; int8 of random weights says nothing of accuracy.
        batch_size: images of a batch of inference, and of training where a checkpoint is given.
        image_size: pixels, as 384 or 224,320; the checkpoint's own if not given.
        data: photographs in class folders for loaders; rendered ones if not given.
        merge_tokens: measure ours with this many similar tokens merged in each layer too; this changes its outputs.
        clock: wall time, or processor for CPU time, on a machine that is shared; best with OMP_NUM_THREADS=1.
        quick: a third of the rounds, short turns, and nothing compiled with torch.compile.
        out: a page to write, as benchmarks.md; its chart is written beside it.
    """
    from vitreous.bench.bench_run import BenchOptions, run_bench

    return run_bench(
        BenchOptions(
            checkpoint=checkpoint,
            against=tuple(against.split(",")) if against else None,
            what=tuple(word.replace("-", " ") for word in what.split(",")),
            precision=tuple(precision.split(",")),
            batch_size=batch_size,
            image_size=image_size,
            photographs=None if data is None else user_path(data),
            merge_tokens=merge_tokens,
            clock=clock,
            quick=quick,
            out=None if out is None else user_path(out),
        )
    )
