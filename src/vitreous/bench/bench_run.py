"""`vitreous bench`: which contenders run what, from options to a result."""

from __future__ import annotations

import dataclasses
import os
import shlex
import statistics
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitreous.bench.bench_page import check_page, write_page
from vitreous.bench.bench_result import FORWARD, OURS, TORCH, BenchResult, Row, make_rows
from vitreous.bench.cold_start import SCRIPTS
from vitreous.bench.exported_peers import ENGINES, PRECISIONS
from vitreous.bench.loaders import EPOCH
from vitreous.bench.machine import MATMUL_FLOPS
from vitreous.bench.model_steps import outputs_file
from vitreous.bench.models import IMAGES, PEERS, PHOTOGRAPHS, check_peers, is_installed, write_weights
from vitreous.bench.photographs import draw_photographs, link_photographs
from vitreous.bench.race import Failed, Work, race, started
from vitreous.bench.serving_load import SERVERS
from vitreous.core.errors import VitreousError, check_at_least, unknown_name
from vitreous.core.processor import describe_processor
from vitreous.core.progress import progress_bar
from vitreous.models import names
from vitreous.models.config import ModelConfig, Size

if TYPE_CHECKING:
    from vitreous.weights.checkpoint import Checkpoint

WHAT = ("inference", "latency", "training", "loader", "cold start", "serving")
WALL_ONLY = ("loader", "serving")
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.3}  # of the logits, in norm; int8 of random weights is coarse
DEFAULT = "ViT-B/16"
_SMALL = {"ViT-Ti/4": {}, "96x6/4": dict(width=96, depth=6, heads=3, mlp=384)}  # trained where no checkpoint is given
_BATCH = {"latency": 1, "cold start": 1, "loader": 64, "serving": 64}  # of the last one: clients
_SERVED = "ViT-Ti/16"  # where no checkpoint is given
_IMAGES = 4  # whose logits are compared


@dataclass(frozen=True)
class BenchOptions:
    checkpoint: str | None = None
    against: tuple[str, ...] | None = None
    what: tuple[str, ...] = WHAT[:-1]
    precision: tuple[str, ...] = ("float32",)
    batch_size: int = 8
    image_size: Size | None = None
    photographs: Path | None = None
    merge_tokens: int = 0
    clock: str = "wall"
    out: Path | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size)
        check_at_least(0, merge_tokens=self.merge_tokens)
        for word in self.what:
            if word not in WHAT:
                raise unknown_name("measurement", word, WHAT)
        for word in self.precision:
            if word not in TOLERANCE:
                raise unknown_name("precision", word, TOLERANCE)
        if self.clock != "wall" and {*self.what} & {*WALL_ONLY}:
            raise VitreousError(
                f"--clock {self.clock}: not for {' and '.join(WALL_ONLY)}, where other processes work; leave them out"
            )
        check_peers(self.against or ())
        if self.out is not None:
            check_page(self.out)

    @property
    def peers(self) -> tuple[str, ...]:
        return self.against if self.against is not None else tuple(filter(is_installed, PEERS))

    @property
    def command(self) -> str:
        """What gives these options when it is typed."""
        words = ["vitreous", "bench", *([self.checkpoint] if self.checkpoint else [])]
        default = BenchOptions()
        for field in ("against", "what", "precision"):
            if (value := getattr(self, field)) != getattr(default, field):
                words += [f"--{field}", ",".join(value).replace(" ", "-")]
        if self.batch_size != default.batch_size:
            words += ["--batch-size", str(self.batch_size)]
        if self.image_size:
            words += ["--image-size", ",".join(map(str, self.image_size))]
        words += ["--merge-tokens", str(self.merge_tokens)] if self.merge_tokens else []
        words += ["--data", "photos/"] if self.photographs else []
        words += ["--clock", self.clock] if self.clock != default.clock else []
        return shlex.join([*words, *(["--quick"] if self.quick else [])])


@dataclass(frozen=True)
class Job:
    """One race: what is measured on which model."""

    what: str
    checkpoint: Checkpoint
    batch: int


def run_bench(options: BenchOptions) -> BenchResult:
    jobs = plan_jobs(options)
    rows: list[Row] = []
    notes: list[str] = []
    wrong = False
    for job in jobs:
        with tempfile.TemporaryDirectory(prefix="vitreous-bench-") as folder:
            found, said, differ = run_job(job, options, Path(folder))
        rows, notes, wrong = [*rows, *found], [*notes, *said], wrong or differ
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", *options.peers)]
    processor, features = describe_processor()
    result = BenchResult(
        tuple(rows),
        machine=f"{processor} ({features}), {torch.get_num_threads()} threads{_describe_load(options)}",
        libraries=", ".join(versions),
        command=options.command,
        notes=tuple(dict.fromkeys(notes)),
        wrong=wrong,
    )
    if options.out is not None:
        write_page(result, options.out)
    return result


def _describe_load(options: BenchOptions) -> str:
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    clock = "; seconds are CPU time" if options.clock == "processor" else ""
    return f", load {busy:.1f}{clock}"


def plan_jobs(options: BenchOptions) -> list[Job]:
    given = load_or_draw(options.checkpoint or DEFAULT, options.image_size)
    jobs = []
    for what in options.what:
        if what == "training" and options.checkpoint is None:  # what two cores can train
            jobs += [Job(what, draw_weights(_small_config(name)), 128) for name in _SMALL]
        elif what == "serving" and options.checkpoint is None:
            jobs.append(Job(what, load_or_draw(_SERVED, options.image_size), _BATCH[what]))
        else:
            jobs.append(Job(what, given, _BATCH.get(what, options.batch_size)))
    return jobs


def _small_config(name: str) -> ModelConfig:
    config = names.parse_name("ViT-Ti/4", image_size=32, classes=10, activation="gelu-erf", **_SMALL[name])
    return dataclasses.replace(config, name=f"{name} at 32 px")


def load_or_draw(source: str, image_size: Size | None) -> Checkpoint:
    """A checkpoint; or, for the name of an architecture, that one with random weights."""
    from vitreous.classifier import load
    from vitreous.inference.engines.exported_file import refuse_exported

    refuse_exported(source, "bench")
    try:
        names.check_name(source)
    except VitreousError:
        return load(source, image_size=image_size).checkpoint
    # erf: the form of GELU that all peers default to; torch computes the authors' tanh form at a third of its speed.
    return draw_weights(names.parse_name(source, image_size=image_size or 224, activation="gelu-erf"))


def draw_weights(config: ModelConfig) -> Checkpoint:
    """Random weights, in which no tensor is zero: a part that a peer misplaces or leaves out must show in its outputs."""
    from vitreous.models.build import allocate_parameters, build_on_meta
    from vitreous.weights.checkpoint import Checkpoint

    torch.manual_seed(0)
    model = allocate_parameters(build_on_meta(config))
    model.initialise()
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = tensor + 0.02 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor
    height, width = config.image_size
    size = f"({height})" if height == width else f"({height},{width})"
    preprocess = f"resize{size}|range(-1,1)"
    return Checkpoint(config=config, tensors=tensors, preprocess=preprocess, classes=None)


def run_job(job: Job, options: BenchOptions, folder: Path) -> tuple[list[Row], list[str], bool]:
    """Rows, notes on who could not take part, and whether one had other outputs than ours."""
    from vitreous.models.cost import compute_cost

    config = job.checkpoint.config
    torch.save(torch.randn(_IMAGES, config.channels, *config.image_size), folder / IMAGES)
    if job.what in ("loader", "cold start", "serving"):
        if options.photographs is not None:
            link_photographs(options.photographs, folder / PHOTOGRAPHS)
        else:
            draw_photographs(folder / PHOTOGRAPHS, (EPOCH + 2) * job.batch if job.what == "loader" else 1)
    works = contenders(job, options, folder)
    libraries = tuple({work.library for work in works} | ({"timm"} if needs_timm(works) else set()))
    unable = write_weights(job.checkpoint, libraries, folder)
    if "timm" in unable:
        unable |= {work.library: "its model is timm's" for work in works if work.library in (*ENGINES, *SERVERS)}
    notes = [f"{library}: {why}" for library, why in unable.items()]
    works = [work for work in works if work.library not in unable]
    not_exported = export(works)
    works = [work for work in works if work not in not_exported]
    differences: dict[str, float] = {}
    wrong = False

    def check(work: Work) -> str | None:
        nonlocal wrong
        if not outputs_file(work).exists():  # a loader has none, and a new process shows its own
            return None
        reference = torch.load(outputs_file(dataclasses.replace(work, engine=OURS, precision="float32")), weights_only=True)
        theirs = torch.load(outputs_file(work), weights_only=True)
        found = float("inf") if theirs.shape != reference.shape else float((theirs - reference).norm() / reference.norm())
        differences[f"{work.engine} {work.precision}"] = found
        if work.merged:  # another computation, as its name says
            return None
        if not found <= TOLERANCE[work.precision]:
            wrong = True
            return (
                f"its logits differ from ours by {found:.2g} of their norm (at most {TOLERANCE[work.precision]:g}); not timed"
            )
        return None

    rounds, turn = (3, 0.1) if options.quick else (9, 0.5)
    with progress_bar(f"{job.what}, {config.name}", len(works) + rounds) as advance:
        turns, failures = race(works, rounds, turn, check, advance)
    failures = {**not_exported, **failures}
    notes += [f"{work.engine}, {work.precision}, {work.what}: {why}" for work, why in failures.items()]
    notes += [_describe_merging(work, differences) for work in works if work.merged and work not in failures]
    peak = next((MATMUL_FLOPS / statistics.median(each.seconds) for each in turns if each.work.what == "matmul"), None)
    flops = {"inference": 2, "latency": 2, "training": 6}.get(job.what, 0) * compute_cost(config).macs
    measured = [each for each in turns if each.work.what != "matmul"]
    return make_rows(measured, config.name, flops or None, peak, differences), notes, wrong


def needs_timm(works: list[Work]) -> bool:
    return any(work.library in (*ENGINES, *SERVERS) for work in works)


def _describe_merging(work: Work, differences: dict[str, float]) -> str:
    return (
        f"{work.engine}, {work.what}: computes less than the others, and its logits are others, here by "
        f"{differences[f'{work.engine} {work.precision}']:.2g} of their norm; measure what that costs on images of your own"
    )


def export(works: list[Work]) -> dict[Work, str]:
    """The files of those who run some, each by a process of its own, whose memory counts for nobody. Who failed, and why."""
    failures = {}
    for work in works:
        if work.library in ENGINES or work.precision == "int8":
            try:
                with started(dataclasses.replace(work, what="export")) as child:
                    child.receive()
            except Failed as failure:
                failures[work] = f"not exported: {failure}"
    return failures


def contenders(job: Job, options: BenchOptions, folder: Path) -> list[Work]:
    """Ours in float32 first: what the others' outputs are compared with."""
    peers = [name for name in options.peers if name in TORCH]
    if job.what == "serving":
        peers = [name for name in SERVERS if "timm" in peers and is_installed(name)]  # both serve timm's model
    if job.what == "loader":
        peers = [name for name in peers if name != "transformers"]  # it has none of its own
    if job.what == "cold start":
        peers = [name for name in peers if name in SCRIPTS]
    if job.what == "training":
        peers = [name for name in peers if name != "torchvision"]
    engines = [OURS, *peers]
    if job.what == "serving":
        engines[1:1] = [f"{OURS} {ours}" for engine, ours in ENGINES.items() if engine in options.peers]
    arithmetic = job.what in ("inference", "latency", "training")
    if arithmetic and not options.quick:
        engines = [name for engine in engines for name in (engine, f"{engine} compile")]
    precisions = dict.fromkeys(("float32", *options.precision)) if arithmetic else ("float32",)
    works = [
        Work(job.what, engine, precision, job.batch, str(folder), options.clock)
        for precision in precisions
        for engine in engines
        if precision == "float32" or (precision == "bfloat16" and not engine.endswith(" compile"))
    ]
    if job.what in FORWARD:
        pairs = [(f"{OURS} merged {options.merge_tokens}", "float32")] if options.merge_tokens else []
        for engine, ours in ENGINES.items():
            if engine in options.peers:
                pairs += [(f"{OURS} {ours}", precision) for precision in precisions if precision != "bfloat16"]
                pairs += [(engine, precision) for precision in precisions if precision in PRECISIONS[engine]]
        works += [Work(job.what, engine, precision, job.batch, str(folder), options.clock) for engine, precision in pairs]
    matmul = [Work("matmul", "matmul", "float32", 1, str(folder), options.clock)] if arithmetic else []
    return [*works, *matmul]
