"""The worst mistakes as data, beside the page that shows them: for those who watch a run, and for scripts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from vitreous.core.files import write_text
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.reports.images import image_uri

MISTAKES = "mistakes.json"


def write_mistakes(folder: Path, outcome: ValidationResult, step: int) -> Path:
    """Writes the file whole. `step` says how long the model had learnt when it was validated."""
    path = folder / MISTAKES
    found = {
        "split": outcome.split,
        "step": step,
        "images": outcome.n,
        "mistakes": [_as_data(mistake) for mistake in outcome.mistakes],
    }
    write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    return path


def _as_data(mistake: Mistake) -> dict[str, Any]:
    guess, probability = mistake.guesses[0] if mistake.guesses else (None, math.nan)
    return {
        "id": mistake.id,
        "labels": list(mistake.truth),
        "guess": guess,
        "probability": _finite(probability),
        "guesses": [[name, _finite(share)] for name, share in mistake.guesses],
        "loss": _finite(mistake.loss),
        "picture": image_uri(mistake.pixels),
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
