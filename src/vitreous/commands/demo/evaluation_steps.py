"""The demo's measurements: evaluated with evidence, few-shot in closed form, a small suite of tasks, files predicted."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.commands.demo.training_steps import one_thread
from vitreous.commands.evaluate import evaluate
from vitreous.commands.fewshot import fewshot
from vitreous.commands.predict import predict
from vitreous.commands.vtab import vtab
from vitreous.core.progress import silence
from vitreous.core.untrusted_json import read_json
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.models.build import create
from vitreous.weights.checkpoint import Checkpoint, write_checkpoint

FILES = 40


@one_thread()
def measured(runs: Path, folder: Path) -> list[dict[str, Any]]:
    """A row for each measurement. `equal` tells whether it agrees with a second count of the same thing."""
    with silence():
        return [
            _evaluated(runs, folder / "evaluation"),
            _few_shots(runs, folder / "fewshot"),
            _suite(folder / "vtab", folder / "untrained"),
            _predicted(runs, folder / "digit-files"),
        ]


def _evaluated(runs: Path, out: Path) -> dict[str, Any]:
    found = evaluate(
        str(runs / "scratch"),
        "builtin:digits:test",
        out=str(out),
        compare=str(runs / "letters-10"),
        nearest="builtin:digits:train",
        robustness=True,
        robustness_images=200,
        workers=0,
        device="cpu",
    )
    numbers = found.numbers
    with (out / "answers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["correct"] == "yes" for row in rows)
    low, high = numbers["interval"]
    said = f"{numbers['top1']:.1%} of {numbers['n']} ({low:.1%} to {high:.1%}), calibration error {numbers['ece']:.1%}"
    return {
        "measured": "evaluate: a page of mistakes, where it looked, likely label errors",
        "result": f"{said}; {numbers['compare']['sentence']}",
        "equal": len(rows) == numbers["n"] and right == round(numbers["top1"] * numbers["n"]),
    }


def _few_shots(runs: Path, out: Path) -> dict[str, Any]:
    found = fewshot(
        str(runs / "letters"), "builtin:digits", shots="1,5,10,25,all", out=str(out), workers=0, device="cpu", no_cache=True
    )
    curve = ", ".join(f"{point.first.shots}: {point.mean('accuracy'):.0%}" for point in found.points)
    return {
        "measured": "fewshot: frozen features that never saw a digit",
        "result": f"labels a class {curve}. {found.verdicts[0].sentence}",
        "equal": len(read_json(out / "fewshot.json")["results"]) == len(found.rounds),
    }


def _suite(out: Path, start: Path) -> dict[str, Any]:
    """A model that nobody trained: what the tasks give to random features."""
    torch.manual_seed(0)
    model = create("ViT-Ti/4", classes=0, image_size=32, width=64, depth=4, heads=4, mlp=256)
    write_checkpoint(Checkpoint(model.config, dict(model.state_dict()), preprocess="resize(32)|range(-1,1)"), start)
    found = vtab(str(start), suite="small", mode="linear", out=str(out), workers=0, device="cpu")
    scores = [record for record in found.records() if record["task"] != "mean"]
    mean = next(record for record in found.records() if record["task"] == "mean")
    return {
        "measured": "vtab --suite small --mode linear: features made at random",
        "result": ", ".join(f"{record['task']} {record['accuracy']:.0%}" for record in scores),
        "equal": abs(sum(record["accuracy"] for record in scores) / len(scores) - mean["accuracy"]) < 1e-9,
    }


def _predicted(runs: Path, folder: Path) -> dict[str, Any]:
    """Digits as files, one of them torn in two: it is named in its row, and the others are classified all the same."""
    source = open_data("builtin:digits").source("test")
    assert isinstance(source, Source)
    folder.mkdir(parents=True, exist_ok=True)
    truth = {}
    for index in range(FILES):
        path = folder / f"{index:02d}.png"
        Image.fromarray(source.read(index)).save(path)  # type: ignore[arg-type]
        truth[str(path)] = source.classes[source.labels(index)[0]]
    torn = folder / "torn.png"
    torn.write_bytes(path.read_bytes()[:40])
    found = predict(str(runs / "scratch"), [str(folder / "*.png")], top=1, workers=0, device="cpu")
    rows = found.rows
    right = sum(row.error is None and row.classes[0] == truth[row.path] for row in rows)
    bad = [row for row in rows if row.error is not None]
    return {
        "measured": "predict: digits as files, one of them torn",
        "result": f"{right} of {FILES} right; {len(bad)} could not be read, and is named",
        "equal": len(rows) == FILES + 1 and [row.path for row in bad] == [str(torn)],
    }
