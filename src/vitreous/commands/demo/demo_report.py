"""The demo's page: the verdict, the images that the models learnt from, curves, faults, attention, and what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from vitreous.commands.demo.story import DIGITS, LABELS, LETTERS
from vitreous.core.files import write_text
from vitreous.core.untrusted_json import parse_json
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.splits import reduce_training_images
from vitreous.evaluation.intervals import wilson
from vitreous.reports.charts import Curve, line_chart
from vitreous.reports.images import EmbeddedImage, Figure, data_uri, embed_image
from vitreous.reports.render import render
from vitreous.reports.series import read_series

RUNS = {"letters": "letters", "digits": "digits, after letters", "scratch": "digits, from scratch"}
FIGURES = {
    "attention_distance": "Mean attention distance of every head (figure 7, right)",
    "position_similarity": "Similarity of position embeddings (figure 7, centre)",
    "filters": "Principal components of the patch embedding (figure 7, left)",
}
LETTERS_SHOWN = 20


def write_demo_report(
    out: Path, verdict: str, parts: Mapping[str, Mapping[str, Any]], serve: str, own_folder: Sequence[str]
) -> None:
    accuracy = parts["transfer"]["accuracy"]
    tested = len(open_data(DIGITS).source("test"))  # type: ignore[arg-type]
    page = render(
        "demo.html",
        title="vitreous demo",
        verdict=verdict,
        verdict_style="good" if parts["transfer"]["won"] else "plain",
        facts=f"{tested} test digits, one draw of {LABELS} labels a class. All numbers were measured on this machine.",
        parts=parts,
        accuracy=[(name, top1, *wilson(top1, tested)) for name, top1 in accuracy.items()],
        curves=_draw_curves(out),
        letters=_example_figures(_train(LETTERS).subset(range(LETTERS_SHOWN), "train")),
        digits=_example_figures(_one_of_each(reduce_training_images(_train(DIGITS), None, LABELS, seed=0)[0])),
        looks=list(_attention_figures(out / "inside")),
        figures=[
            (title, _embed_png(path))
            for name, title in FIGURES.items()
            if (path := out / "inside" / "figures" / f"{name}.png").is_file()
        ],
        serve=serve,
        own_folder=own_folder,
    )
    write_text(out / "report.html", page)


def _draw_curves(out: Path) -> Markup | None:
    curves = []
    for colour, (run, name) in enumerate(RUNS.items()):
        history = [parse_json(line) for line in (out / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps, losses = read_series(history, "loss", "train")
        curves.append(Curve(name, steps, losses, colour=colour, smoothed=True))
    return line_chart("training loss", curves)


def _train(data: str) -> Source:
    source = open_data(data).source("train")
    assert isinstance(source, Source)
    return source


def _one_of_each(source: Source) -> Source:
    _, first = np.unique(source.targets(), return_index=True)
    return source.subset(first, source.split)


def _example_figures(source: Source) -> list[Figure]:
    labels = [source.classes[source.labels(index)[0]] for index in range(len(source))]
    return [Figure(embed_image(np.asarray(source.read(k))), alt=label, caption=label) for k, label in enumerate(labels)]


def _attention_figures(inside: Path) -> Iterator[Figure]:
    for path in sorted((inside / "rollout").glob("*.png")):
        with Image.open(path) as image:
            yield Figure(
                embed_image(np.asarray(image.convert("RGB"))), alt=f"attention rollout of {path.stem}", caption=path.stem
            )


def _embed_png(path: Path) -> EmbeddedImage:
    return EmbeddedImage(data_uri("png", path.read_bytes()))
