"""The steps of the demo, each a small use of the library as its users would use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous.classifier import Classifier, load
from vitreous.commands.verify import verify
from vitreous.core.files import atomic_file
from vitreous.data.source import Dataset
from vitreous.data.sources.arrays import Arrays
from vitreous.evaluation.ridge import BIAS, Ridge
from vitreous.models.build import create
from vitreous.models.cost import cost
from vitreous.models.names import model_family
from vitreous.models.positions import resize_grid, sine_cosine_table
from vitreous.studies.paper_tables import read_table
from vitreous.weights.checkpoint import Checkpoint

L2 = 1.0  # hardly any: a standardised feature of 1,297 examples has 1,297 on the diagonal, to which this is added


def costs() -> list[dict[str, Any]]:
    """Of the models of Table 6, each at its longest pre-training on JFT's 303 million images."""
    longest = {row.model: row for row in read_table("table6") if row.metric == "exaFLOPs"}
    rows = []
    for name, paper in longest.items():
        price, epochs = cost(name), int(paper.epochs or 0)
        ours = price.training_flops(303_000_000 * epochs) / 1e18
        rows.append(
            {"model": name, "parameters": price.parameters, "GMACs": price.macs / 1e9, "epochs": epochs, "exaFLOPs": ours,
             "table 6": paper.value, "ratio": ours / paper.value}
        )  # fmt: skip
    return rows


def formats(folder: Path) -> list[dict[str, Any]]:
    """A small ViT with random weights, in every format; each is read back and compared operation by operation."""
    model = create("ViT-Ti/16", depth=4, image_size=(64, 96), classes=10)
    torch.nn.init.normal_(model.head.weight, std=0.02)  # type: ignore[arg-type]
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    clf = Classifier(Checkpoint(model.config, tensors, "resize(64,96,bicubic)|range(-1,1)"))
    clf.save(folder / "vitreous")
    rows = []
    for format, name in (
        ("vitreous", "vitreous"),
        ("official", "official.npz"),
        ("timm", "timm"),
        ("huggingface", "huggingface"),
    ):
        clf.save(folder / name, format)  # type: ignore[arg-type]
        found = verify(str(folder / "vitreous"), against=str(folder / name))
        same = all(torch.equal(load(folder / name).checkpoint.tensors[key], tensor) for key, tensor in tensors.items())
        rows.append({"format": format, "file": name, "operations compared": found.operations, "equal": found.equal and same,
                     "first difference": found.first.operation if found.first else "none"})  # fmt: skip
    return rows


@dataclass(frozen=True)
class Digits:
    images: np.ndarray[Any, Any]  # held-out, uint8
    labels: Tensor
    predictions: Tensor
    on_pixels: float
    training: int

    def summary(self) -> dict[str, Any]:
        accuracy = float((self.predictions == self.labels).float().mean())
        return {"training images": self.training, "test images": len(self.labels), "random ViT + ridge": f"{accuracy:.1%}",
                "ridge on pixels": f"{self.on_pixels:.1%}"}  # fmt: skip


def digits(folder: Path, data: Dataset) -> Digits:
    """Frozen random features and a ridge head, saved as a checkpoint, loaded again, and asked to predict."""
    parts = [source for source in data.splits.values() if isinstance(source, Arrays)]  # train, validation, test
    pixels = np.concatenate([part.images for part in parts])
    labels = torch.from_numpy(np.concatenate([part.targets() for part in parts]))
    test = torch.arange(len(pixels) - len(parts[-1]), len(pixels))
    train = torch.arange(len(pixels) - len(parts[-1]))

    model = create("ViT-Ti/2", width=384, heads=12, mlp=1536, depth=1, channels=1, image_size=8, classes=10, pool="gap",
                   representation=2000)  # fmt: skip
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    names = tuple(map(str, range(10)))
    clf = Classifier(Checkpoint(model.config, tensors, "resize(8)|range(-1,1)", classes=names))
    known = [(label,) for label in labels[train].tolist()]
    weight, bias = _head(Ridge(clf.features(list(pixels[train])), known, len(names)))
    with torch.no_grad():
        clf.model.head.weight.copy_(weight)  # type: ignore[operator]
        clf.model.head.bias.copy_(bias)  # type: ignore[operator]
    clf.save(folder / "checkpoint")

    again = load(folder / "checkpoint")
    predictions = torch.tensor([int(p.classes[0]) for p in again.predict(list(pixels[test]), top=1, batch_size=250)])
    flat = torch.from_numpy(pixels).flatten(1).float()
    named = Ridge(flat[train], known, len(names)).classify(flat[test], L2)
    on_pixels = float((named == labels[test]).float().mean())
    for index in range(10):
        path = folder / "images" / f"{index}.png"
        with atomic_file(path) as part:
            Image.fromarray(pixels[test[index]]).save(part, format="PNG")
    return Digits(pixels[test], labels[test], predictions, on_pixels, len(train))


def _head(ridge: Ridge) -> tuple[Tensor, Tensor]:
    """The weight and bias of a linear head: a checkpoint has no place for the standardisation, so it is folded into them."""
    solved = ridge.weights(L2)
    weight = (solved[:-1] / ridge.std[:, None]).T
    return weight.float(), (BIAS * solved[-1] - weight @ ridge.mean).float()


# Images -----------------------------------------------------------------------------------------------------------

_FAMILIES = {"ViT": ("#2457a6", "o"), "hybrid": ("#7d3c98", "s"), "ResNet": ("#c0622d", "^")}


def draw_compute(rows: list[dict[str, Any]], path: Path) -> Path:
    figure = Figure(figsize=(12, 5))
    axes = figure.subplots(1, 2, width_ratios=(3, 2))
    for family, (colour, mark) in _FAMILIES.items():
        own = [row for row in rows if model_family(row["model"]) == family]
        axes[0].scatter(
            [r["parameters"] for r in own], [r["exaFLOPs"] for r in own], c=colour, marker=mark, s=45, label=family, zorder=3
        )
        axes[1].scatter(
            [r["table 6"] for r in own], [100 * (r["ratio"] - 1) for r in own], c=colour, marker=mark, s=45, zorder=3
        )
    places = {"ViT": (-7, -3, "right"), "hybrid": (7, 4, "left"), "ResNet": (7, -10, "left")}  # neighbours do not collide
    for row in rows:
        right, up, side = places[model_family(row["model"])]
        point = (row["parameters"], row["exaFLOPs"])
        axes[0].annotate(row["model"], point, xytext=(right, up), textcoords="offset points", fontsize=8, ha=side)
    axes[0].set(xscale="log", yscale="log", xlim=(18e6, 1.1e9), title="What the paper's models cost",
                xlabel="million parameters", ylabel="exaFLOPs of pre-training")  # fmt: skip
    axes[0].set_xticks([m * 1e6 for m in (25, 50, 100, 200, 400, 800)], ["25", "50", "100", "200", "400", "800"])
    axes[0].minorticks_off()
    axes[0].legend(frameon=False)
    axes[1].axhspan(-3, 3, color="#2457a6", alpha=0.08, lw=0)
    axes[1].axhline(0, color="0.4", lw=1)
    axes[1].set(xscale="log", ylim=(-7, 7), xlabel="exaFLOPs in table 6", ylabel="vitreous.cost against the paper, %",
                title="Difference from table 6 (band: 3 %)")  # fmt: skip
    return save_figure(figure, axes, path)


def draw_digits(found: Digits, path: Path) -> Path:
    figure = Figure(figsize=(12, 5.6))
    axes = figure.subplots(5, 12)
    wrong = (found.predictions != found.labels).nonzero().flatten().tolist()
    shown = wrong[:12] + [i for i in range(len(found.labels)) if i not in wrong][: 60 - len(wrong[:12])]
    for axis, index in zip(axes.flat, shown, strict=True):
        right = index not in wrong
        axis.imshow(255 - found.images[index], cmap="gray", vmin=0, vmax=255)
        axis.set_title(f"{found.predictions[index]}" if right else f"{found.predictions[index]}, is {found.labels[index]}",
                       fontsize=9, color="#1e7b34" if right else "#b3261e", pad=2)  # fmt: skip
        axis.axis("off")
    text = "Held-out digits; first row: mistakes. " + ", ".join(f"{key} {value}" for key, value in found.summary().items())
    figure.suptitle(text, fontsize=10, y=0.99)
    return save_figure(figure, None, path)


def draw_positions(path: Path) -> Path:
    """One smooth position table brought from 14 x 14 to 24 x 24 in the authors' way, and how far the others are from it."""
    table, old, new = sine_cosine_table((14, 14), 64), (14, 14), (24, 24)
    official = resize_grid(table, old, new, "bilinear-aligned")
    ways = {"bicubic-aligned": "torchvision", "bicubic": "Hugging Face", "bicubic-antialias": "timm"}
    others = {f"{mode}\n{who}": resize_grid(table, old, new, mode) for mode, who in ways.items()}  # type: ignore[arg-type]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 4)
    centre = F.normalize(official, dim=1) @ F.normalize(official[12 * 24 + 12], dim=0)
    axes[0].imshow(centre.view(24, 24).numpy(), cmap="viridis")
    axes[0].set_title("bilinear-aligned, the authors'\nsimilarity to the centre", fontsize=10)
    top = max(float((other - official).norm(dim=1).max()) for other in others.values())
    for axis, (name, other) in zip(axes[1:], others.items(), strict=True):
        share = float((other - official).norm() / official.norm())
        picture = axis.imshow((other - official).norm(dim=1).view(24, 24).numpy(), cmap="magma", vmin=0, vmax=top)
        axis.set_title(f"{name}: off by {share:.1%}", fontsize=10)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="distance from the authors' row")
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    figure.suptitle("Resizing position embeddings, 14 x 14 to 24 x 24: four ways are in use, and they differ", fontsize=11)
    return save_figure(figure, None, path)


def save_figure(figure: Figure, axes: Any, path: Path) -> Path:
    if axes is not None:
        for axis in np.ravel(axes):
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.25, lw=0.6)
        figure.tight_layout()
    with atomic_file(path) as part:
        figure.savefig(part, format="png", dpi=130, bbox_inches="tight")
    return path
