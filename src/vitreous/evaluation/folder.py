"""An evaluation's folder, whole or not at all.

evaluation.json    every number
answers.csv        every image: its label, the guess, how sure, right or wrong
report.html        the page (see `report`)
relabel.csv        images to look at again; a person fills in its column new_label
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError
from vitreous.evaluation.answers import Answers
from vitreous.files import whole_folder
from vitreous.hygiene.places import check_writable

MADE_BY = "vitreous evaluate"
NUMBERS, ANSWERS, PAGE, RELABEL = "evaluation.json", "answers.csv", "report.html", "relabel.csv"
FILES = (NUMBERS, ANSWERS, PAGE, RELABEL)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet compute a cell; names come from strangers


def check_folder(out: Path, data: Path | None = None) -> None:
    """Before the long work begins: the folder is new, empty or an earlier evaluation, and holds nobody's own work."""
    if data is not None and out.resolve().is_relative_to(data.resolve()):
        raise VitreousError(f"--out {out}: lies inside the data; choose a folder elsewhere")
    try:
        inside = {entry.name for entry in os.scandir(out)} if out.exists() else set()
    except OSError as error:
        raise VitreousError(f"--out {out}: must be a folder ({error.strerror}); choose another name") from error
    if inside:
        before = _before(out)
        if before is None or inside - set(FILES):
            strange = sorted(inside - set(FILES)) or sorted(inside)
            raise VitreousError(f"--out {out}: holds other files ({strange[0]!a}), which would be lost; choose a new folder")
        if (out / RELABEL).exists() and before.get("relabel_sha256") != _digest(out / RELABEL):
            raise VitreousError(f"--out {out}: its {RELABEL} was changed, which would be lost; move it, or choose a new folder")
    check_writable("--out", out)


def write_folder(
    out: Path, numbers: Mapping[str, Any], answers: Answers, write_page: Callable[[Path], object] | None = None
) -> None:
    """`write_page` gets the folder to write the page and its table into."""
    with whole_folder(out) as part:
        write_answers(part / ANSWERS, answers)
        if write_page is not None:
            write_page(part)
        relabel = _digest(part / RELABEL) if (part / RELABEL).exists() else None
        whole = {"made_by": MADE_BY, **numbers, "relabel_sha256": relabel}
        (part / NUMBERS).write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="ascii")
        check_folder(out)  # once more: what somebody has put there in the meantime must not be lost


def write_answers(path: Path, answers: Answers) -> None:
    """A row for each image, in the order of the data."""
    more = [name for rank in range(2, answers.top.shape[1] + 1) for name in (f"guess_{rank}", f"probability_{rank}")]
    columns = ("id", "label", "guess", "probability", "correct", "label_probability", "loss", *more)
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        right = answers.right()
        for row in range(len(answers)):
            writer.writerow(_cells(answers, row, bool(right[row])))


def _cells(answers: Answers, row: int, right: bool) -> Iterator[str]:
    named = bool(answers.labels[row])
    yield _harmless(answers.ids[row])
    yield _harmless(";".join(answers.mapping.data[label] for label in answers.given[row]))
    for rank, (guess, probability) in enumerate(zip(answers.top[row], answers.probabilities[row], strict=True)):
        yield _harmless(answers.classes[guess])
        yield f"{probability:.6g}"
        if not rank:
            yield ("yes" if right else "no") if named else ""
            yield f"{answers.truth[row]:.6g}" if named else ""
            yield f"{answers.losses[row]:.6g}" if named else ""


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _before(out: Path) -> Mapping[str, Any] | None:
    """The numbers of an earlier evaluation; None where something else lies there."""
    try:
        found = json.loads((out / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("made_by") == MADE_BY else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
