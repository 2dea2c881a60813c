"""The notebook is the tutorial `read-the-model.md`, cell by cell, and runs from top to bottom."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
from build_notebook import NOTEBOOK, PAGE, make_notebook  # noqa: E402


def test_the_notebook_is_the_tutorial() -> None:
    assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == make_notebook(PAGE.read_text(encoding="utf-8"))


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # nobody's own settings
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    ran.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "q, k, v (1, 3, 17, 64) A (1, 3, 17, 17)" in printed
    assert "632 million parameters" in printed  # table 1 of the paper: ViT-Huge
    drawn = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(drawn) == 1
