"""The figure in docs/reference/exactness.md: what the paper's models cost, by `vitreous.cost` and by table 6.

python benchmarks/compute_figure.py docs/images/compute.png
"""

from __future__ import annotations

import sys

import numpy as np
from matplotlib.figure import Figure

from vitreous import cost
from vitreous.models.names import model_family
from vitreous.studies.paper_tables import read_table

FAMILIES = {"ViT": ("#2457a6", "o"), "hybrid": ("#7a4fa3", "D"), "ResNet": ("#c0622d", "s")}
PLACES = {"ViT": (-7, -3, "right"), "hybrid": (7, 4, "left"), "ResNet": (7, -10, "left")}  # neighbours do not collide
JFT = 303_000_000  # images


def main() -> None:
    longest = {row.model: row for row in read_table("table6") if row.metric == "exaFLOPs"}
    figure = Figure(figsize=(12, 5))
    axes = figure.subplots(1, 2, width_ratios=(3, 2))
    for name, paper in longest.items():
        price, family = cost(name), model_family(name)
        ours = price.training_flops(JFT * int(paper.epochs or 0)) / 1e18
        colour, mark = FAMILIES[family]
        axes[0].scatter(price.parameters, ours, c=colour, marker=mark, s=45, zorder=3)
        axes[1].scatter(paper.value, 100 * (ours / paper.value - 1), c=colour, marker=mark, s=45, zorder=3)
        right, up, side = PLACES[family]
        point = (price.parameters, ours)
        axes[0].annotate(name, point, xytext=(right, up), textcoords="offset points", fontsize=8, ha=side)
    axes[0].set(xscale="log", yscale="log", xlim=(18e6, 1.1e9), title="What the paper's models cost")
    axes[0].set(xlabel="million parameters", ylabel="exaFLOPs of pre-training")
    axes[0].set_xticks([m * 1e6 for m in (25, 50, 100, 200, 400, 800)], ["25", "50", "100", "200", "400", "800"])
    axes[0].minorticks_off()
    axes[1].axhspan(-3, 3, color="#2457a6", alpha=0.08, lw=0)
    axes[1].axhline(0, color="0.4", lw=1)
    axes[1].set(xscale="log", ylim=(-7, 7), xlabel="exaFLOPs in table 6", ylabel="vitreous.cost against the paper, %")
    axes[1].set(title="Difference from table 6 (band: 3 %)")
    for axis in np.ravel(axes):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, lw=0.6)
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main()
