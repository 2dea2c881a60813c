"""What a finished run predicts for each image that it is evaluated on (`outcomes.csv`), to compare runs image by image."""

from __future__ import annotations

import csv
from pathlib import Path

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import atomic_file
from vitreous.core.printable import escape_formula, unescape_formula
from vitreous.evaluation.validation_result import ValidationResult

OUTCOMES = "outcomes.csv"
_COLUMNS = ("id", "label", "predicted", "correct")


def write_outcomes(folder: Path, result: ValidationResult) -> Path:
    """One row for each labelled image, by id; several labels are separated by semicolons."""
    path = folder / OUTCOMES
    with atomic_file(path) as part, part.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for image, labels, predicted in result.outcomes:
            label = ";".join(result.classes[each] for each in labels)
            cells = (image, label, result.classes[predicted])
            writer.writerow((*map(escape_formula, cells), int(predicted in labels)))
    return path


def read_outcomes(folder: Path) -> dict[str, bool]:
    """Whether each image was predicted correctly, by id."""
    path = folder / OUTCOMES
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return {unescape_formula(row["id"]): row["correct"] == "1" for row in csv.DictReader(file)}
    except (OSError, KeyError, csv.Error) as error:
        raise VitreousError(f"{path}: cannot be read as a run's outcomes ({one_line(error)}); train the run again") from error
