"""The demo's steps are real: what they report is what was computed, and their pictures exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitreous.classifier import load
from vitreous.errors import VitreousError
from vitreous.verbs import demo_steps


def test_formats_are_all_equal(tmp_path: Path) -> None:
    rows = demo_steps.formats(tmp_path)
    assert [row["format"] for row in rows] == ["vitreous", "official", "timm", "huggingface"]
    assert all(row["equal"] and row["operations compared"] > 30 for row in rows)


def test_digits_are_classified_by_the_saved_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = demo_steps.digits(tmp_path, demo_steps.load_digits())
    accuracy = float((found.predictions == found.labels).float().mean())
    assert accuracy > 0.85  # ten classes: chance is 0.1
    again = load(tmp_path / "checkpoint").predict([tmp_path / "images" / f"{i}.png" for i in range(10)], top=1)
    assert [int(p.classes[0]) for p in again] == found.predictions[:10].tolist()
    for picture in (
        demo_steps.draw_digits(found, tmp_path / "digits.png"),
        demo_steps.draw_positions(tmp_path / "positions.png"),
    ):
        with Image.open(picture) as image:
            assert min(image.size) > 300


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(VitreousError, match=r"pip install 'vitreous\[demo\]'"):
        demo_steps.load_digits()
