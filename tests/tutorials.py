"""Every command and code block of the tutorials is run: `make docs-test`. Not a part of `make test`, for the time it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from doc_pages import ROOT, code_blocks, make_reader_folder, run_page

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_reader_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    text = page.read_text(encoding="utf-8")
    assert run_page(text, tmp_path) == sum(language in ("", "bash", "python") for language, _ in code_blocks(text)) > 0
