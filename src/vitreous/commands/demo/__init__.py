"""`vitreous demo`: one story on built-in data, from a faulty folder to an exported model.

Modules:
    demo_report  report.html with the images and curves
    faults       a folder of images with planted faults
    story        the parts: check, pre-train, transfer, evaluate, look inside, export
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import locked, user_path, write_text
from vitreous.core.progress import say
from vitreous.core.table import table
from vitreous.core.untrusted_json import read_record

RECORD, MADE_BY, EDITION = "demo.json", "vitreous demo", 1  # another edition's runs have other settings


@dataclass(frozen=True)
class Demo:
    """What the demo did. A part has its `result` as a sentence, its `seconds`, and the numbers behind it."""

    out: str
    parts: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 0 if all(part.get("good", True) for part in self.parts.values()) else 1

    @property
    def verdict(self) -> str:
        return str(self.parts["transfer"]["verdict"])

    def text(self) -> str:
        rows = [(name, part["result"], f"{part['seconds']:.0f} s") for name, part in self.parts.items()]
        total = sum(part["seconds"] for part in self.parts.values())
        lines = [table(("part", "result", "time"), [*rows, ("in all", self.verdict, f"{total:.0f} s")]), ""]
        lines += [f"{self.out}/report.html has the images", "", "Look into the model in a browser:", f"  {self.serve}", ""]
        return "\n".join([*lines, "On your own folder, photos/CLASS/IMAGE:", *(f"  {line}" for line in OWN_FOLDER)])

    @property
    def serve(self) -> str:
        return f"vitreous serve {self.out}/digits --runs {self.out} --examples {self.out}/images"

    def records(self) -> list[dict[str, Any]]:
        return [{"out": self.out, "verdict": self.verdict, "parts": dict(self.parts)}]


OWN_FOLDER = (
    "vitreous doctor photos/ --out report",
    "vitreous finetune photos/ --from ViT-B/16@imagenet21k --out runs/photos",
    "vitreous evaluate runs/photos photos/ --out evaluation",
)


def demo(out: str = "demo") -> Demo:
    """Show the whole package at work, offline, on built-in data.

    A folder with planted faults is checked; a small model learns rendered letters, then real handwritten digits with ten
    labels a class, beside one from scratch and a linear classifier on pixels; it is evaluated, looked into and exported.
    Killed anywhere and started again, it resumes.

    Example: vitreous demo --out demo

    Args:
        out: the folder to write to.
    """
    folder = user_path(out)
    parts = _read_finished_parts(folder)
    with locked(folder / ".lock", f"--out {out}: another demo is writing there; wait for it, or choose another folder"):
        from vitreous.commands.demo.demo_report import write_demo_report
        from vitreous.commands.demo.story import DIGITS, PARTS
        from vitreous.core.device import using_threads
        from vitreous.data.open import open_data
        from vitreous.inference.engines.engine import check_engine

        open_data(DIGITS)  # first, so that a missing package is named at once
        check_engine("onnx", "demo:")
        _write_record(folder, parts)
        for number, (name, part) in enumerate(PARTS.items(), start=1):
            title = " ".join((part.__doc__ or "").split())
            say(f"{number}/{len(PARTS)} {name}: {title}" + (" (finished before)" if name in parts else ""))
            if name not in parts:
                began = time.perf_counter()
                with using_threads(1):
                    result = part(folder)
                parts[name] = {**result, "seconds": round(time.perf_counter() - began, 1)}
                _write_record(folder, parts)
        done = Demo(out, parts)
        write_demo_report(folder, done.verdict, parts, done.serve, OWN_FOLDER)
    return done


def _read_finished_parts(folder: Path) -> dict[str, Any]:
    """The parts that an earlier, interrupted demo has finished in this folder, which is new, empty or its own."""
    before = read_record(folder / RECORD)
    if before.get("made_by") == MADE_BY and before.get("edition") == EDITION:
        return dict(before["parts"])
    if folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        whose = "another version's demo" if before.get("made_by") == MADE_BY else "other files"
        raise VitreousError(f"--out {folder}: holds {whose}; remove it, or choose a new folder")
    return {}


def _write_record(folder: Path, parts: Mapping[str, Any]) -> None:
    write_text(folder / RECORD, json.dumps({"made_by": MADE_BY, "edition": EDITION, "parts": parts}, indent=1) + "\n")
