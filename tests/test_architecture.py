"""Every module says what it is for, every package lists its modules, and docs/architecture.md names every package."""

from __future__ import annotations

import ast
import re
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


@pytest.mark.parametrize("init", sorted(SOURCE.rglob("*/__init__.py")), ids=lambda init: str(init.parent.relative_to(SOURCE)))
def test_a_package_lists_its_modules(init: Path) -> None:
    """One line each under `Modules:` in the docstring of the package: four spaces, the name, and a few words."""
    folder = init.parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    packages = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").is_file()}
    listing = (ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "").partition("Modules:\n")[2]
    assert set(re.findall(r"^ {4}(\S+)  +\S", listing, flags=re.MULTILINE)) == modules | packages
