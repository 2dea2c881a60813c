"""`vitreous fewshot` as a whole: features of every data set, fits for every number of shots, a verdict and its files."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from vitreous.classifier import Classifier, load
from vitreous.core.device import choose_device
from vitreous.core.distributed import init_distributed
from vitreous.core.errors import VitreousError, check_at_least
from vitreous.core.files import atomic_folder
from vitreous.core.output_dir import check_result_folder, find_data_folder
from vitreous.core.progress import progress_bar
from vitreous.core.table import table
from vitreous.data.source import Policy, Source
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.closed_form_head import fit_head
from vitreous.evaluation.fewshot import (
    FIXED,
    Choice,
    Draw,
    FewshotResult,
    FewshotTask,
    Shots,
    draw_subset,
    fewshot,
    fits,
    smallest_class,
)
from vitreous.evaluation.fewshot_curve import Point, Verdict, draw_curve, points, verdicts
from vitreous.evaluation.fewshot_tasks import choose_preprocess, load_task, open_task, possible_shots, split_names
from vitreous.evaluation.majority import describe_majority
from vitreous.evaluation.saved_head import SavedHead, check_left_out, check_save_folder, format_l2, save_head
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.engines.exported_file import refuse_exported
from vitreous.inference.precision import agreed_precision
from vitreous.inference.runner import default_batch_size
from vitreous.models.config import Size
from vitreous.models.token_merging import set_token_merging

RECORD, MADE_BY = "fewshot.json", "vitreous fewshot"
FILES = (RECORD, "learning_curve.png", "learning_curve.svg")


@dataclass(frozen=True, kw_only=True)
class FewshotOptions:
    """What is measured and how; checked when it is made, before anything is loaded."""

    checkpoint: str
    data: str
    shots: tuple[Shots, ...] | None  # None: as many of the default ones as every class has images for
    seeds: int
    seed: int
    data_seed: int
    subset: int | None
    per_class: int | None
    l2: Choice
    draw: Draw
    out: Path | None
    save: Path | None
    preprocess: str | None
    image_size: Size | None
    cache: bool
    bad_images: Policy
    batch_size: int | None
    workers: int | None
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    engine: EngineOption = "torch"
    merge_tokens: int = 0

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, data_seed=self.data_seed, workers=self.workers, merge_tokens=self.merge_tokens)
        check_at_least(1, seeds=self.seeds, subset=self.subset, per_class=self.per_class, batch_size=self.batch_size)
        check_engine(self.engine)
        if self.subset is not None and self.per_class is not None:
            raise VitreousError("--subset and --per-class both choose images; give one of them")
        if self.l2 == "joint" and len(self.names) < 2:
            raise VitreousError("--l2 joint: chosen over several data sets; name more than one, or use leave-one-out")
        if self.out is not None:
            for folder in map(find_data_folder, self.names):
                check_result_folder(self.out, RECORD, MADE_BY, FILES, folder)
        if self.save is not None:
            refuse_exported(self.checkpoint, "--save")
            if self.engine != "torch":
                raise VitreousError("--save writes a head fitted to torch's features; leave out --engine")
            if self.merge_tokens:
                raise VitreousError("--save writes a head for all tokens; leave out --merge-tokens, and give it to `predict`")
            if len(self.names) > 1:
                raise VitreousError(f"--save {self.save}: a head is for one data set; name one")
            if self.shots is not None and (len(self.shots) > 1 or self.shots == (1,)):
                raise VitreousError("--save: a head is fitted to one number of --shots, of 2 or more, or to all; name that one")
            check_save_folder(self.save, find_data_folder(self.data))

    @property
    def names(self) -> tuple[str, ...]:
        return split_names(self.data)


@dataclass(frozen=True)
class Fewshot:
    """What a few labels are worth with this checkpoint's frozen features."""

    rounds: tuple[FewshotResult, ...]
    points: tuple[Point, ...]
    verdicts: tuple[Verdict, ...]
    about: dict[str, Any]
    notes: tuple[str, ...]
    out: str | None = None
    saved: SavedHead | None = None
    exit_code: int = 0

    def text(self) -> str:
        lines = self._curve() if self.rounds else [f"added {', '.join(self.about['added'])}"]
        if self.out is not None:
            lines += ["", f"{self.out}: fewshot.json, learning_curve.png and .svg"]
        if self.saved is not None:
            lines += ["", self.saved.text()]
        return "\n".join(lines)

    def _curve(self) -> list[str]:
        several = len({point.first.data for point in self.points}) > 1
        rows = []
        for point in self.points:
            one, spread = point.first, f" ± {100 * point.spread:.1f}" if point.spread is not None else ""
            l2 = ", ".join(format_l2(l2) for l2 in sorted({found.l2 for found in point.rounds}))
            accuracy = f"{100 * point.mean('accuracy'):.1f}{spread} %"
            knn = f"{100 * point.mean('knn'):.1f} %"
            cells = (str(one.shots), accuracy, knn, len(point.rounds), l2, one.n_train, one.n_test)
            rows.append((one.data, *cells) if several else cells)
        headings = ("shots", "accuracy", "k-NN", "seeds", "l2", "training images", "test images")
        lines = [table(("data", *headings) if several else headings, rows), ""]
        rates = {point.first.data: point.first.majority for point in self.points}
        lines += [f"{name}: {describe_majority(rate)}" for name, rate in rates.items()]
        return [*lines, *(verdict.sentence for verdict in self.verdicts)]

    def record(self) -> dict[str, Any]:
        found = [found.record() for found in self.rounds]
        said = [verdict.record() for verdict in self.verdicts]
        saved = {} if self.saved is None else {"saved": self.saved.record()}
        return {"results": found, "verdicts": said, **self.about, **saved}

    def records(self) -> Iterator[dict[str, Any]]:
        yield self.record()


def run_fewshot(options: FewshotOptions) -> Fewshot:
    clf = load(options.checkpoint, image_size=options.image_size)
    set_token_merging(clf.model, options.merge_tokens)
    preprocess = choose_preprocess(clf, options.preprocess)
    with init_distributed(choose_device(options.device)) as world:
        precision = agreed_precision(options.precision, world)
        batch_size = options.batch_size or default_batch_size(preprocess, world.device)
        how = choose_engine(clf, options.engine, world=world, precision=precision.name, batch_size=batch_size)
        notes = [*clf.notes, *how, *([precision.note] if precision.note else []), clf.preprocessing_note(preprocess)]
        tasks = []
        for name in options.names:
            images = open_task(
                name,
                shots=options.shots or (),
                data_seed=options.data_seed,
                subset=options.subset,
                per_class=options.per_class,
                bad_images=options.bad_images,
            )
            if options.save is not None and isinstance(images.train, Source) and isinstance(images.test, Source):
                targets = (images.train.targets(), images.test.targets())
                check_left_out(name, smallest_class(*targets, images.train.classes))
            task, said = load_task(
                clf,
                images,
                preprocess,
                batch_size=options.batch_size,
                workers=options.workers,
                precision=precision.name,
                world=world,
                bad_images=options.bad_images,
                cache=options.cache,
            )
            tasks.append(task)
            notes += said
        shots, left_out = possible_shots(tasks) if options.shots is None else (options.shots, ())
        notes += left_out
        seeds = tuple(range(options.seed, options.seed + options.seeds))
        l2, draw = options.l2, options.draw
        with progress_bar("few-shot fits", fits(len(tasks), shots, seeds, l2, draw)) as advance:
            rounds = fewshot(tasks, shots=shots, seeds=seeds, l2=l2, draw=draw, advance=advance)
        if l2 == "joint":
            notes.append("l2 was chosen by the test images, as in the paper: accuracies are a little better than on new ones")
        if l2 == "leave-one-out" and 1 in shots:
            notes.append(f"1 shot: leave-one-out is impossible, so l2 is {format_l2(FIXED)}")
        about = {
            "checkpoint": options.checkpoint,
            "preprocess": str(preprocess),
            "precision": precision.name,
            **({"engine": clf.engine.name} if clf.engine.name != "torch" else {}),
            **({"merge_tokens": options.merge_tokens} if options.merge_tokens else {}),
            **{name: getattr(options, name) for name in ("l2", "draw", "data_seed", "subset", "per_class")},
        }
        out = None if options.out is None else str(options.out)
        saves = options.save is not None and world.is_main
        saved = _save(options, clf, tasks[0], preprocess, precision.name) if saves else None
        found = Fewshot(rounds, points(rounds), verdicts(rounds), about, tuple(notes), out, saved)
        if options.out is not None and world.is_main:
            title = f"{clf.config.name}, frozen" + (f": {tasks[0].name}" if len(tasks) == 1 else "")
            _write(options.out, found, title)
    return found


def _save(options: FewshotOptions, clf: Classifier, task: FewshotTask, preprocess: Preprocess, precision: str) -> SavedHead:
    """The fit to all training images, or to the subset of the first seed."""
    assert options.save is not None
    check_left_out(task.name, task.fewest())
    shots = options.shots[0] if options.shots is not None else "all"
    seed = None if shots == "all" or options.draw == "first" else options.seed
    fitted = task.train.some(draw_subset(task, shots, seed))
    return save_head(
        options.save,
        clf,
        fit_head(fitted, options.l2),
        fitted,
        source=options.checkpoint,
        preprocess=preprocess,
        about={"data": task.name, "shots": shots, "seed": seed, "data_seed": options.data_seed, "precision": precision},
        test=task.test,
    )


def _write(out: Path, found: Fewshot, title: str) -> None:
    with atomic_folder(out) as part:
        draw_curve(found.rounds, title, part)
        record = json.dumps({"made_by": MADE_BY, **found.record()}, indent=1, ensure_ascii=False)
        (part / RECORD).write_text(record + "\n", encoding="utf-8")


def parse_l2(text: str | float) -> Choice:
    if text in get_args(get_args(Choice)[1]):
        return cast(Choice, text)
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise VitreousError(f"--l2 {text}: give a number above 0, as 1024, or leave-one-out or joint")
