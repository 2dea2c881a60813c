"""Write the output folder of an evaluation, atomically.

evaluation.json    every number
predictions.csv    every image: its label, the prediction, how sure, right or wrong
report.html        the page (see `report`)
relabel.csv        images to look at again; a person fills in its column new_label
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder
from vitreous.core.hashing import hash_file
from vitreous.core.output_dir import check_result_folder
from vitreous.core.printable import escape_formula
from vitreous.evaluation.predictions import Predictions

MADE_BY = "vitreous evaluate"
NUMBERS, PREDICTIONS, PAGE, RELABEL = "evaluation.json", "predictions.csv", "report.html", "relabel.csv"
SOUP = "checkpoint"  # the average of several
FILES = (NUMBERS, PREDICTIONS, PAGE, RELABEL, SOUP, "answers.csv")  # the last: how earlier versions called predictions.csv


def check_evaluation_dir(out: Path, data: Path | None = None) -> None:
    """Before the long work begins: the folder is new, empty or an earlier evaluation, and holds no other files."""
    before = check_result_folder(out, NUMBERS, MADE_BY, FILES, data)
    if (out / RELABEL).exists() and before.get("relabel_sha256") != hash_file(out / RELABEL):
        raise VitreousError(f"--out {out}: its {RELABEL} was changed, which would be lost; move it, or choose a new folder")


def write_evaluation_dir(
    out: Path, numbers: Mapping[str, Any], predictions: Predictions, write_page: Callable[[Path], object] | None = None
) -> None:
    """`write_page` gets the folder to write the page and its table into."""
    with atomic_folder(out) as part:
        write_predictions(part / PREDICTIONS, predictions)
        if write_page is not None:
            write_page(part)
        relabel = hash_file(part / RELABEL) if (part / RELABEL).exists() else None
        whole = {"made_by": MADE_BY, **numbers, "relabel_sha256": relabel}
        (part / NUMBERS).write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="ascii")
        check_evaluation_dir(out)  # once more: files put there in the meantime must not be lost


def write_predictions(path: Path, predictions: Predictions) -> None:
    """A row for each image, in the order of the data."""
    more = [name for rank in range(2, predictions.top.shape[1] + 1) for name in (f"prediction_{rank}", f"probability_{rank}")]
    columns = ("id", "label", "prediction", "probability", "correct", "label_probability", "loss", *more)
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row, right in enumerate(predictions.right().tolist()):
            writer.writerow(_cells(predictions, row, right))


def _cells(predictions: Predictions, row: int, right: bool) -> list[str]:
    label = ";".join(predictions.mapping.data[label] for label in predictions.given[row])
    best = [(escape_formula(name), f"{share:.6g}") for name, share, _ in predictions.best(row, predictions.classes)]
    measured = ["", "", ""]
    if predictions.labels[row]:
        measured = ["yes" if right else "no", f"{predictions.truth[row]:.6g}", f"{predictions.losses[row]:.6g}"]
    return [escape_formula(predictions.ids[row]), escape_formula(label), *best[0], *measured, *itertools.chain(*best[1:])]
