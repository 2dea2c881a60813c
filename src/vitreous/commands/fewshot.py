from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.commands.table import table
from vitreous.commands.types import BadImages, Checkpoint, ImageSize
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.evaluation.fewshot import Choice, FewshotResult, Shots
    from vitreous.evaluation.fewshot_curve import Point, Verdict


RECORD, MADE_BY = "fewshot.json", "vitreous fewshot"
FILES = (RECORD, "learning_curve.png", "learning_curve.svg")


@dataclass(frozen=True)
class Fewshot:
    """What a few labels are worth with this checkpoint's frozen features."""

    rounds: tuple[FewshotResult, ...]
    points: tuple[Point, ...]
    verdicts: tuple[Verdict, ...]
    about: dict[str, Any]
    notes: tuple[str, ...]
    out: str | None = None
    exit_code: int = 0

    def text(self) -> str:
        from vitreous.evaluation.majority import majority_words

        several = len({point.data for point in self.points}) > 1
        rows = []
        for point in self.points:
            spread = f" ± {100 * point.spread:.1f}" if point.spread is not None else ""
            l2 = ", ".join(_power(l2) for l2 in sorted(set(point.l2)))
            cells = (str(point.shots), f"{100 * point.accuracy:.1f}{spread} %", point.seeds, l2, point.n_train, point.n_test)
            rows.append((point.data, *cells) if several else cells)
        headings = ("shots", "accuracy", "drawings", "l2", "training images", "test images")
        lines = [table(("data", *headings) if several else headings, rows), ""]
        rates = {point.data: point.majority for point in self.points}
        lines += [f"{name}: {majority_words(rate)}" for name, rate in rates.items()]
        lines += [verdict.sentence for verdict in self.verdicts]
        if self.out is not None:
            lines += ["", f"{self.out}: fewshot.json, learning_curve.png and .svg"]
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        found = [found.record() for found in self.rounds]
        said = [verdict.record() for verdict in self.verdicts]
        return {"results": found, "verdicts": said, **self.about}

    def records(self) -> Iterator[dict[str, Any]]:
        yield self.record()


def _power(l2: float) -> str:
    import math

    return f"2^{math.log2(l2):.0f}" if math.log2(l2).is_integer() else f"{l2:g}"


def fewshot(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA[,DATA...]")],
    shots: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    seeds: int = 3,
    seed: int = 0,
    data_seed: int = 0,
    subset: int | None = None,
    per_class: int | None = None,
    l2: str = "leave-one-out",
    draw: Literal["seed", "first"] = "seed",
    out: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None,
    image_size: Annotated[ImageSize, tyro.conf.arg(help_behavior_hint="")] = None,
    no_cache: bool = False,
    bad_images: BadImages = "stop",
    batch_size: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    workers: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
) -> Fewshot:
    """Measure frozen features by a few labelled images of each class, in closed form (the paper's few-shot evaluator).

    A ridge classifier is fitted to the features of 1, 5, 10, 25 and all images of each class and judged by held-out ones. The
    curve says whether more labels would help, or whether the features are the limit. Features are kept on disk: asking again
    takes a moment. The data set's own train split is drawn from; its test split judges, or else its validation split.

    Example: vitreous fewshot ViT-B/16@imagenet21k photos/ --shots 1,5,10,25 --out fewshot

    Args:
        checkpoint: a run, a checkpoint, or a name of `vitreous list weights`.
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set; several with commas.
        shots: images of each class, as 1,5,10,25 or 5,all. Default: 1,5,10,25,all, as far as every class has them.
        seeds: how many subsets to draw for each number of shots.
        seed: of the first of them; the others follow.
        data_seed: random seed of --subset and --per-class, and of held-out images where the data has no split for testing.
        subset: draw from a fixed random subset of so many training images.
        per_class: draw from at most so many training images of each class.
        l2: a number; leave-one-out: the best for each fit by its own training images; joint: the one with the best mean rank
            over several data sets, judged by their test images, as in the paper.
        draw: seed: images of each class by chance; first: the first of each class in the order of the data, as in the paper.
        out: a folder for fewshot.json and the learning curve. Default: nothing is written.
        preprocess: instead of the checkpoint's own, as 'resize(256)|central_crop(224)|range(-1,1)'; paper: that, for the
            checkpoint's size and pixel values.
        image_size: pixels, as 384 or 224,320. Default: the checkpoint's.
        no_cache: neither use features kept from before nor keep these.
        batch_size: images that the model takes at once. Default: by their size.
        workers: processes that read images. Default: one for each core.
        device: cpu, cuda, mps; auto: the best there is.
        precision: of the model. float32 is what figures are compared in.
    """
    import json

    from vitreous.classifier import load
    from vitreous.core.device import choose_device
    from vitreous.core.distributed import init_distributed
    from vitreous.core.errors import VitreousError
    from vitreous.core.files import atomic_folder
    from vitreous.core.output_dir import check_result_folder, find_data_folder
    from vitreous.core.progress import progress_bar
    from vitreous.evaluation import fewshot as protocol
    from vitreous.evaluation.fewshot_curve import draw_curve, points, verdicts
    from vitreous.evaluation.fewshot_tasks import chosen_preprocess, names_of, possible_shots, task_of
    from vitreous.inference.precision import agreed_precision

    asked, choice, names = _shots(shots), _l2(l2), names_of(data)
    for option, number in (("--seed", seed), ("--data-seed", data_seed)):
        if number < 0:
            raise VitreousError(f"{option} {number}: must be 0 or more")
    for option, count in (("--seeds", seeds), ("--subset", subset), ("--per-class", per_class)):
        if count is not None and count < 1:
            raise VitreousError(f"{option} {count}: must be at least 1")
    if subset is not None and per_class is not None:
        raise VitreousError("--subset and --per-class both choose images; give one of them")
    if workers is not None and workers < 0:
        raise VitreousError(f"--workers {workers}: must be 0 (none) or more")
    if choice == "joint" and len(names) < 2:
        raise VitreousError("--l2 joint: chosen over several data sets; name more than one, or use leave-one-out")
    folder = user_path(out) if out is not None else None
    if folder is not None:
        for place in map(find_data_folder, names):
            check_result_folder(folder, RECORD, MADE_BY, FILES, place)
    clf = load(checkpoint, image_size=image_size)
    string = chosen_preprocess(clf, preprocess)
    with init_distributed(choose_device(device)) as world:
        arithmetic = agreed_precision(precision, world)
        notes = [*clf.notes, *([arithmetic.note] if arithmetic.note else []), clf.preprocessing_note(string)]
        tasks = []
        for name in names:
            task, said = task_of(
                clf,
                name,
                string,
                shots=asked or (),
                data_seed=data_seed,
                subset=subset,
                per_class=per_class,
                batch_size=batch_size,
                workers=workers,
                precision=arithmetic.name,
                world=world,
                bad_images=bad_images,
                cache=not no_cache,
            )
            tasks.append(task)
            notes += said
        if asked is None:
            asked, left_out = possible_shots(tasks)
            notes += left_out
        order = tuple(range(seed, seed + seeds))
        with progress_bar("few-shot fits", protocol.fits(len(tasks), asked, order, choice, draw)) as advance:
            rounds = protocol.fewshot(tasks, shots=asked, seeds=order, l2=choice, draw=draw, advance=advance)
        if choice == "joint":
            notes.append("l2 was chosen by the test images, as in the paper: accuracies are a little better than on new ones")
        if choice == "leave-one-out" and 1 in asked:
            notes.append(f"1 shot: no image can be left out to choose by, so l2 is {_power(protocol.FIXED)}")
        about = {
            "checkpoint": checkpoint,
            "preprocess": str(string),
            "precision": arithmetic.name,
            "l2": choice,
            "draw": draw,
            "data_seed": data_seed,
            "subset": subset,
            "per_class": per_class,
        }
        found = Fewshot(rounds, points(rounds), verdicts(rounds), about, tuple(notes), out)
        if folder is not None and world.is_main:
            title = f"{clf.config.name}, frozen" + (f": {names[0]}" if len(names) == 1 else "")
            with atomic_folder(folder) as part:
                draw_curve(rounds, title, part)
                record = json.dumps({"made_by": MADE_BY, **found.record()}, indent=1, ensure_ascii=False)
                (part / RECORD).write_text(record + "\n", encoding="utf-8")
    return found


def _shots(text: str | int | Sequence[Shots] | None) -> tuple[Shots, ...] | None:
    """Also of a number or several, as one writes it in Python."""
    from vitreous.core.errors import VitreousError

    if text is None:
        return None
    text = text if isinstance(text, str) else ",".join(map(str, [text] if isinstance(text, int) else text))
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word != "all" and not (word.isascii() and word.isdigit() and int(word) >= 1)]
    if wrong or len(set(words)) < len(words):
        raise VitreousError(f"--shots {text}: write numbers of images once each, as 1,5,10,25, or all")
    return tuple("all" if word == "all" else int(word) for word in words)


def _l2(text: str | float) -> Choice:
    import math

    from vitreous.core.errors import VitreousError

    if text == "leave-one-out":
        return "leave-one-out"
    if text == "joint":
        return "joint"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise VitreousError(f"--l2 {text}: give a number above 0, as 1024, or leave-one-out or joint")
    return number
