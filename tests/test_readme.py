"""The README's commands and code run as they stand, on small stand-ins for photos and weights."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from doc_pages import ROOT, make_reader_folder, run_page
from vitreous.cli import _parse


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("README*.md")))
def test_the_commands_of_the_readme_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_reader_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    assert run_page((ROOT / page).read_text(encoding="utf-8"), tmp_path) >= 3


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("README*.md")))
def test_the_commands_in_its_table_can_be_typed(page: str) -> None:
    commands = re.findall(r"\| `vitreous (.*?)` \|", (ROOT / page).read_text(encoding="utf-8"))
    assert len(commands) >= 10
    for command in commands:
        name, *words = shlex.split(command)
        _parse(name, words)
