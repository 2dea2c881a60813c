"""docs/architecture.md names every module, in the row of its package, and none that does not exist."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitreous"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = [line for line in PAGE.splitlines() if line.startswith("| `")]
PACKAGES = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())


def words(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def described() -> dict[str, list[str]]:
    """What each row names: of a package, the words of its second cell; of files at the root, those of the first."""
    found: dict[str, list[str]] = {"": []}
    for line in TABLE:
        part, ideas = line.strip("|").split("|")
        for name in words(part):
            if name.endswith("/"):
                assert name[:-1] not in found, f"{name} has two rows"
                found[name[:-1]] = words(ideas)
            else:
                found[""].append(name.removesuffix(".py"))
    return found


def existing(package: str) -> set[str]:
    """Modules, and folders with a slash; Python's own names, as `__init__`, need no word."""
    files = {path.stem for path in (SOURCE / package).glob("*.py") if not path.stem.startswith("__")}
    folders = {f"{path.name}/" for path in (SOURCE / package).iterdir() if path.is_dir() and path.name != "__pycache__"}
    return files | (folders if package else set())


def test_every_package_has_a_row() -> None:
    assert sorted(described()) == ["", *PACKAGES]


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_module_is_named_and_every_name_is_a_module(package: str) -> None:
    names, modules = described()[package], existing(package)
    assert not {module for module in modules if not any(fnmatchcase(module, name) for name in names)}
    assert not {name for name in names if not any(fnmatchcase(module, name) for module in modules)}
