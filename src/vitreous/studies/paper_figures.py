"""`vitreous study NAME --paper`: the paper's own figure from the numbers that it published, without training anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_writable
from vitreous.inspection.figure_style import save
from vitreous.models.names import model_family
from vitreous.studies.paper_tables import PaperValue, read_table
from vitreous.studies.registry import COST, find_study
from vitreous.studies.study import Axes, Point
from vitreous.studies.study_figure import draw_study

PAPER = "paper"  # paper.png, paper.svg
_IMAGES = {"imagenet": 1.28e6, "imagenet21k": 14.2e6, "jft": 303e6}  # to pre-train on
_OPTIMIZERS = {"adam": "Adam", "sgd": "SGD"}
_ATTENTION = {"axial": "axial attention", "full": "full attention", "convolutions": "convolutions"}


@dataclass(frozen=True)
class PaperFigure:
    """How a study's numbers in the paper are arranged."""

    source: str
    axes: Axes
    points: Callable[[], Sequence[Point]]


@dataclass(frozen=True)
class PaperResult:
    """The figure that was drawn, and its numbers."""

    out: str
    source: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    exit_code: int = 0

    def text(self) -> str:
        return f"{self.out}/{PAPER}.png shows {self.source}: {len(self.points)} numbers of the paper, none of ours"

    def records(self) -> list[dict[str, Any]]:
        return [point._asdict() for point in self.points]


def draw_paper_figure(name: str, out: str) -> PaperResult:
    """Write OUT/paper.png and paper.svg; an error for a study whose numbers the paper does not print."""
    if name in UNPUBLISHED:
        raise VitreousError(f"--paper: the paper prints no numbers that {name} could draw; {UNPUBLISHED[name]}")
    study, _ = find_study(name)
    folder, figure = user_path(out), FIGURES[name]
    check_writable("--out", folder)
    points = tuple(figure.points())
    folder.mkdir(parents=True, exist_ok=True)
    drawing = draw_study(replace(study, axes=figure.axes), points, f"Numbers of the paper: {figure.source}")
    save(drawing, folder, PAPER)
    return PaperResult(out, figure.source, points)


# The points of each study ----------------------------------------------------------------------------------------------


def _accuracies(table: str, **wanted: str) -> list[PaperValue]:
    rows = [row for row in read_table(table) if row.metric.endswith("accuracy")]
    return [row for row in rows if all(getattr(row, field) == value for field, value in wanted.items())]


def _data_size() -> list[Point]:
    return [Point(row.model, _IMAGES[row.pretraining], row.value) for row in _accuracies("table5", task="imagenet")]


def _compute() -> list[Point]:
    """The mean of five tasks, as in Figure 5: all of the table but ImageNet-ReaL."""
    points = []
    for row in read_table("table6"):
        if row.metric == "exaFLOPs":
            own = [other for other in _accuracies("table6", model=row.model) if other.epochs == row.epochs]
            five = [other.value for other in own if other.task != "imagenet-real"]
            points.append(Point(model_family(row.model), 1e18 * row.value, sum(five) / len(five)))
    return points


def _transfer() -> list[Point]:
    return [Point(row.pretraining, row.task, row.value) for row in _accuracies("table5", model="ViT-B/16")]


def _self_supervision() -> list[Point]:
    rows = read_table("self_supervision")
    return [Point(row.setting, f"{row.setting}, {row.pretraining}".removesuffix(", none"), row.value) for row in rows]


def _positions() -> list[Point]:
    return [Point("", row.setting, row.value) for row in read_table("table8")]


def _optimizer() -> list[Point]:
    return [Point(_OPTIMIZERS[row.setting], f"{row.model}, {row.task}", row.value) for row in _accuracies("table7")]


def _axial() -> list[Point]:
    """Bounds that the order of the figure's labels and ticks gives; in the middle of two, or at the only one."""
    points = []
    for row in read_table("figure13"):
        bounds = [bound for bound in (row.low, row.high) if bound is not None]
        label = row.model if row.setting == "convolutions" or "Axial" in row.model else f"{row.model}, {row.setting}"
        label += " (at least)" if row.high is None else ""
        points.append(Point(_ATTENTION[row.setting], label, math.fsum(bounds) / len(bounds), row.low, row.high))
    return points


_FINE_TUNED, _FIVE_SHOT = "ImageNet accuracy, fine-tuned (%)", "ImageNet 5-shot accuracy (%)"

FIGURES = {
    "data-size": PaperFigure(
        "Table 5, fine-tuned at 384 pixels", Axes("images", "pre-training images", y_label=_FINE_TUNED), _data_size
    ),
    "compute": PaperFigure(
        "Table 6, mean of five tasks; the 859 exaFLOPs of R50+ViT-L/16 are a misprint for 834",
        Axes("flops", "pre-training compute (FLOPs)", y_label="transfer accuracy (%)"),
        _compute,
    ),
    "transfer": PaperFigure("Table 5, ViT-B/16 by pre-training data", Axes(y_label="accuracy, fine-tuned (%)"), _transfer),
    "self-supervision": PaperFigure("section 4.6 and Table 5, ViT-B/16", Axes(y_label=_FINE_TUNED), _self_supervision),
    "positions": PaperFigure("Table 8, ViT-B/16", Axes(y_label=_FIVE_SHOT), _positions),
    "optimizer": PaperFigure("Table 7, ResNets fine-tuned", Axes(y_label="accuracy, fine-tuned (%)"), _optimizer),
    "axial": PaperFigure(
        "Figure 13; bounds, because it prints no numbers", Axes(y_label=_FIVE_SHOT, series="attention"), _axial
    ),
}

UNPUBLISHED = {
    "head": "Figure 9 has learning rates alone: average pooling at 3e-4 matches the class token at 8e-4",
    "shape": "Figure 8 has lines without a table: from a base of 8 layers, depth pays most and width least",
    "resolution": "section 3.2 says in words that higher resolution often helps",
    "distance": "Figures 7 and 11 are scatter plots without a table",
    COST: "Figure 12 has lines without a table",
}
