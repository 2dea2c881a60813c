"""Every module says in one sentence what it is for, and docs/architecture.md names every package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitreous"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_names_every_package(package: str) -> None:
    assert f"`{package}/`" in PAGE


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_module_has_a_docstring(package: str) -> None:
    files = (SOURCE / package).rglob("*.py") if package else SOURCE.glob("*.py")
    # Commands are described by their function's docstring, which is their help.
    silent = [path for path in files if path.parent.name != "commands" and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent
