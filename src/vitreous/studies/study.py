"""What a study is: arms (chains of runs), claims about them that are fixed before any run, and how they are drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from vitreous.core.errors import VitreousError
from vitreous.training.options import Command

Measure = Literal["test", "fewshot", "distance"]
SUPERIORITY_SEEDS, EQUIVALENCE_SEEDS = 6, 16
TRIAL_SEEDS = (1000, 1001)  # of learning-rate trials: never those of a verdict
TUNED = "tuned:"  # in `Stage.set`: "tuned:ViT" is the rate that ViT's trials have chosen
MARGIN = 1.0  # points: less is no difference
Factors = Mapping[str, float | str]


@dataclass(frozen=True)
class Stage:
    """One run: `vitreous pretrain` or `finetune` with these options. A later stage begins from the one before it."""

    command: Command
    options: Mapping[str, Any]
    set: Mapping[str, Any] = field(default_factory=dict)  # of --set


@dataclass(frozen=True)
class Arm:
    """One way to train, run with several seeds."""

    name: str
    stages: tuple[Stage, ...]
    factors: Factors = field(default_factory=dict)  # what the figure and the tables are arranged by
    measure: Measure = "test"
    fewshot_data: str = ""


@dataclass(frozen=True)
class Tuning:
    """Learning rates to try for a family of arms: by the stages of `arm` up to `stage`, on held-out training images."""

    family: str
    arm: str
    rates: tuple[float, ...]
    stage: int = 0


@dataclass(frozen=True)
class Cell:
    """One row of runs.csv: an arm with one seed, or a trial of a learning rate."""

    arm: str
    seed: int
    stages: tuple[Stage, ...]
    factors: Factors
    measure: Measure = "test"
    fewshot_data: str = ""
    role: Literal["main", "trial"] = "main"

    def key(self) -> str:
        """The same for the same cell on every machine."""
        return hash_json(asdict(self))


@dataclass(frozen=True)
class Claim:
    """A contrast between arms: the effect of a seed is the weighted sum of its cells' values, in points."""

    text: str  # the claim, in one sentence
    metric: str  # the effect, in words
    weights: Mapping[str, float]  # by arm
    kind: Literal["superiority", "equivalence"] = "superiority"
    smallest: float = 1.0  # the smallest effect of interest, in points
    value: str = "accuracy"  # the column of runs.csv
    minus: float = 0.0  # what the sum is compared with, in points

    @property
    def seeds(self) -> int:
        return EQUIVALENCE_SEEDS if self.kind == "equivalence" else SUPERIORITY_SEEDS

    def rule(self, primary: bool) -> str:
        two_tests = f"two one-sided paired t tests over at least {EQUIVALENCE_SEEDS} seeds, margin {MARGIN:g} point, p < 0.05"
        if self.kind == "equivalence":
            outside = f"'contradicted' if the 95 % interval of at least {SUPERIORITY_SEEDS} seeds lies outside the margin"
            return f"'no difference within 1 point' by {two_tests}; {outside}; otherwise 'undecided'"
        after = " after Holm over the eleven primary claims" if primary else ""
        return (
            f"two-sided paired t over at least {SUPERIORITY_SEEDS} seeds, p < 0.05{after}: "
            f"'holds' with an effect of at least {self.smallest:g} points, 'contradicted' with one below 0; else "
            f"'no difference within 1 point' by {two_tests}; otherwise 'undecided'"
        )

    def describe(self, primary: bool) -> dict[str, Any]:
        """What is fixed before any run, for `vitreous list studies --json`."""
        about = {"claim": self.text, "metric": self.metric, "kind": self.kind, "smallest_effect": self.smallest}
        return {**about, "seeds": self.seeds, "rule": self.rule(primary), "primary": primary}


@dataclass(frozen=True)
class Axes:
    """How the figure is arranged: a line for each value of `series` over a numeric `x`, or, without x, a point for each arm."""

    x: str | None = None
    x_label: str = ""
    y: str = "accuracy"
    y_label: str = "test accuracy (%)"
    series: str = "family"
    log: bool = True  # x


class Point(NamedTuple):
    """A point of the figure; without an interval where there is one run, as in the paper's tables."""

    series: str
    x: float | str
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """How large a study is: chosen once, by `--budget`, and recorded in grid.json."""

    level: int
    data: str  # what is transferred to, or trained on from scratch
    upstream: str  # what is pre-trained on
    image_size: int
    images: int  # seen by a run
    width: int
    depth: int
    seeds: int | None = None  # None: as many as each claim needs
    batch_size: int = 64
    channels: int = 3

    @property
    def patch(self) -> int:
        """Sixteen tokens."""
        return self.image_size // 4

    @property
    def fine_patch(self) -> int:
        """A grid of 8 x 8, or of 7 x 7 where that divides the image."""
        return self.image_size // (7 if self.image_size % 7 == 0 else 8)


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    paper: str  # where in the paper
    sentence: str  # what the paper says
    claims: tuple[Claim, ...]  # the primary one first
    arms: Callable[[Scale], Sequence[Arm]]
    axes: Axes
    tunings: Callable[[Scale], Sequence[Tuning]] = lambda scale: ()
    points: Callable[[Sequence[Mapping[str, Any]]], Sequence[Point]] | None = None  # of the figure, where rows are not enough
    data: str = "builtin:digits"  # where no DATA is given
    upstream: str = ""  # "": nothing is pre-trained on other data

    def cells(self, scale: Scale) -> tuple[Cell, ...]:
        """Trials of learning rates, then the primary contrast seed by seed, then the other claims, then the rest."""
        arms = {arm.name: arm for arm in self.arms(scale)}
        cells = [cell for tuning in self.tunings(scale) for cell in _trials(tuning, arms[tuning.arm])]
        by_rank = []
        for arm in arms.values():
            concerned = [(rank, claim.seeds) for rank, claim in enumerate(self.claims) if arm.name in claim.weights]
            rank, seeds = min(concerned)[0] if concerned else len(self.claims), max((n for _, n in concerned), default=2)
            for seed in range(min(seeds, scale.seeds or seeds)):
                by_rank.append((rank, seed, _with_seed(arm, seed)))
        return (*cells, *(cell for *_, cell in sorted(by_rank, key=lambda entry: entry[:2])))

    def primary_cells(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """Those that the primary claim needs: its arms with its seeds, and the trials of their learning rates."""
        claim = self.claims[0]
        main = [cell for cell in cells if cell.role == "main" and cell.arm in claim.weights and cell.seed < claim.seeds]
        families = {family for cell in main for family in tuned_families(cell)}
        return (*(cell for cell in cells if cell.role == "trial" and cell.factors["family"] in families), *main)


def _with_seed(arm: Arm, seed: int) -> Cell:
    stages = tuple(_seeded(stage, seed) for stage in arm.stages)
    return Cell(arm.name, seed, stages, arm.factors, arm.measure, arm.fewshot_data)


def _trials(tuning: Tuning, arm: Arm) -> list[Cell]:
    """Each rate with the seeds of trials, validated on a tenth of the training images: the test split chooses nothing."""
    cells = []
    for rate in tuning.rates:
        for seed in TRIAL_SEEDS:
            stages = [_seeded(stage, seed) for stage in arm.stages[: tuning.stage + 1]]
            last = stages[-1]
            options = {**last.options, "held_out": 0.1}
            stages[-1] = Stage(last.command, options, {**last.set, "lr": rate})
            factors: Factors = {"family": tuning.family, "lr": rate}
            cells.append(Cell(f"{tuning.family}, lr {rate:g}", seed, tuple(stages), factors, role="trial"))
    return cells


def _seeded(stage: Stage, seed: int) -> Stage:
    """Both sides of a pair share the seed of initialisation and order, and that of the subset."""
    return Stage(stage.command, {**stage.options, "seed": seed, "data_seed": seed}, stage.set)


def tuned_rates(cells: Sequence[Cell], accuracies: Mapping[str, float]) -> dict[str, float]:
    """The best rate of each family whose trials are all done: the highest mean, of equals the lower rate."""
    found: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if cell.role == "trial":
            rates = found.setdefault(str(cell.factors["family"]), {})
            rates.setdefault(float(cell.factors["lr"]), []).append(accuracies.get(cell.key(), float("nan")))
    means = {family: {rate: sum(of) / len(of) for rate, of in rates.items()} for family, rates in found.items()}
    return {
        family: max(rates, key=lambda rate: (rates[rate], -rate))
        for family, rates in means.items()
        if all(mean == mean for mean in rates.values())
    }


def tuned_families(cell: Cell) -> set[str]:
    """The families whose trials a cell waits for."""
    rates = [str(stage.set.get("lr", "")) for stage in cell.stages]
    return {rate.removeprefix(TUNED) for rate in rates if rate.startswith(TUNED)}


def with_rates(stage: Stage, rates: Mapping[str, float]) -> Stage:
    """The stage with the learning rate that its family's trials chose."""
    lr = stage.set.get("lr")
    if not (isinstance(lr, str) and lr.startswith(TUNED)):
        return stage
    family = lr.removeprefix(TUNED)
    if family not in rates:
        raise VitreousError(f"the learning rate of {family} is not chosen yet: its trials are still to run")
    return Stage(stage.command, stage.options, {**stage.set, "lr": rates[family]})


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
