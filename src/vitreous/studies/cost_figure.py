"""The figure of the cost study in the style of the paper's Figure 12: speed and largest batch by image size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from vitreous.inspection.figure_style import COLOURS, INK, QUIET, drawn
from vitreous.studies.cost_rows import CostRow

_MARKS = {"ViT": "o", "hybrid": "s", "ResNet": "^"}
_DASHES = {"ViT": "-", "hybrid": (0, (1, 1)), "ResNet": (0, (4, 2))}


@drawn
def draw_cost(rows: Sequence[CostRow]) -> Figure:
    figure = Figure(figsize=(10.6, 4.6), layout="constrained")
    speed, batch = figure.subplots(1, 2)
    sizes = sorted({row.image_size for row in rows})
    models = list(dict.fromkeys(row.arm for row in rows))
    for number, model in enumerate(models):
        own = sorted((row for row in rows if row.arm == model), key=lambda row: row.image_size)
        look = dict(
            color=COLOURS[number % len(COLOURS)], marker=_MARKS[own[0].family], ls=_DASHES[own[0].family], lw=1.4, ms=5.5
        )
        x = [row.image_size for row in own]
        y = [row.images_per_second for row in own]
        spread = [[row.images_per_second - row.images_per_second_low for row in own],
                  [row.images_per_second_high - row.images_per_second for row in own]]  # fmt: skip
        speed.errorbar(x, y, spread, elinewidth=0.9, label=model, **look)
        fits = [(row.image_size, row.largest_batch) for row in own if row.largest_batch]
        batch.plot(*zip(*fits, strict=True) if fits else ([], []), **look)
    first = rows[0]
    _label(speed, sizes, "images per second", f"Peak speed of inference ({first.device})")
    how = "tried" if first.largest_batch_by == "trying" else f"estimated for {first.memory_bytes / 2**30:,.1f} GiB"
    _label(batch, sizes, "images", f"Largest batch that fits ({how})")
    figure.legend(loc="outside right center")
    return figure


def _label(axes: Axes, sizes: Sequence[int], unit: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="image size (pixels)", ylabel=unit)
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(True)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(color=QUIET)
