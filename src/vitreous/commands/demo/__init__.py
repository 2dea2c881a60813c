"""`vitreous demo`: the whole story on built-in data.

Modules:
    data_steps        data with planted faults, batches
    evaluation_steps  evaluation, few-shot, a small suite, predictions
    inspection_steps  figures, and a request to a server
    model_steps       models, conversion, verification
    training_steps    runs, one of them killed and resumed
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.progress import say
from vitreous.core.table import table

TITLES = {
    "models": "The paper's models: cost by name, beside table 6 (exaFLOPs of pre-training on JFT)",
    "formats": "One model in four formats, there and back",
    "digits": "Real digits, a ViT that nobody has trained, and a head solved in closed form",
    "faults": "A folder of rendered images with planted faults, and what `vitreous doctor` says of it",
    "batches": "Training batches from that folder: the same for any number of workers, begun anywhere",
    "runs": "Small ViTs trained on the real digits; one was killed on its way",
    "measured": "Those models, measured",
    "looked": "One of them, from inside",
}


@dataclass(frozen=True)
class Demo:
    """What the demo found, and where its images are. `equal` in a row is None where there was nothing to compare."""

    tables: dict[str, list[dict[str, Any]]]  # by the names of TITLES
    pictures: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        rows = [row for table in self.tables.values() for row in table]
        good = all(row.get("equal") is None or row["equal"] for row in rows) and all(row.get("found", True) for row in rows)
        return 0 if good else 1

    def text(self) -> str:
        parts = [
            table(tuple(rows[0]), [tuple(row.values()) for row in rows], title=TITLES[name])
            for name, rows in self.tables.items()
        ]
        return "\n\n".join([*parts, "To look at:\n" + "\n".join(f"  {path}" for path in self.pictures)])

    def records(self) -> list[dict[str, Any]]:
        (digits,) = self.tables["digits"]
        return [{**self.tables, "digits": digits, "pictures": self.pictures, "seconds": self.seconds, "notes": self.notes}]


def demo(out: str = "demo") -> Demo:
    """Show the whole package at work, offline, on built-in data.

    Example: vitreous demo --out demo

    Args:
        out: folder for the images and checkpoints that it makes.
    """
    import torch

    from vitreous.commands.demo import data_steps as demo_data
    from vitreous.commands.demo import evaluation_steps as demo_measuring
    from vitreous.commands.demo import inspection_steps as demo_looking
    from vitreous.commands.demo import model_steps as demo_steps
    from vitreous.commands.demo import training_steps as demo_training
    from vitreous.data.open import open_data
    from vitreous.doctor.diagnosis import check_doctor_dir

    start = time.perf_counter()
    folder = Path(out)
    torch.manual_seed(0)
    data = open_data("builtin:digits")  # first, so that a missing package is said at once
    say("1/9 costing the paper's models")
    models = demo_steps.costs()
    say("2/9 writing one model in four formats, and verifying each operation by operation")
    formats = demo_steps.formats(folder / "formats")
    say("3/9 classifying real handwritten digits")
    digits = demo_steps.digits(folder / "digits", data)
    say("4/9 planting faults in a folder of images, and examining it")
    photos = _own_folder(folder / "photos")
    check_doctor_dir(folder / "doctor")
    faults = demo_data.doctor_finds(photos, folder / "doctor", demo_data.faulty_folder(photos))
    say("5/9 loading batches from it")
    batches = demo_data.batches(photos)
    say("6/9 training: from scratch, by masked patches, and a run that is killed on its way")
    trained = _own_folder(folder / "runs")
    runs = demo_training.runs(trained)
    say("7/9 measuring: evaluated with evidence, few shots in closed form, a suite of tasks, files")
    measuring = _own_folder(folder / "measured")
    measured = demo_measuring.measured(trained, measuring)
    say("8/9 looking inside: the paper's figures, and a server that answers")
    looking = _own_folder(folder / "looked")
    looked = demo_looking.looked_into(trained, measuring / "digit-files", looking)
    say("9/9 drawing")
    pictures = (
        demo_steps.draw_compute(models, folder / "compute.png"),
        demo_steps.draw_digits(digits, folder / "digits.png"),
        demo_steps.draw_positions(folder / "positions.png"),
        demo_data.draw_rendered(folder / "rendered.png"),
        demo_data.draw_augmentations(folder / "augmentations.png"),
        demo_training.draw_runs(trained, folder / "runs.png"),
        folder / "doctor" / "report.html",
        trained / "scratch" / "report.html",
        measuring / "evaluation" / "report.html",
        measuring / "fewshot" / "learning_curve.png",
        measuring / "vtab" / "vtab.png",
        looking / "inside" / "report.html",
    )
    tables = [models, formats, [digits.summary()], faults, batches, runs, measured, looked]
    return Demo(dict(zip(TITLES, tables, strict=True)), tuple(map(str, pictures)), time.perf_counter() - start)


def _own_folder(folder: Path) -> Path:
    """A new folder in place of an earlier demo's; anybody else's is left alone."""
    mark = folder / ".made-by-vitreous-demo"
    if folder.exists() and not mark.exists():
        raise VitreousError(f"{folder}: is there already and not the demo's; choose another place with --out")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    return folder
