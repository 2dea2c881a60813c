"""README and docs: links resolve, and files and modules that they or the source name exist."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

import vitreous

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = [path for folder in ("src", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub makes of headings: lower case, spaces as hyphens, other punctuation dropped."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_of_a_page_resolve(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        target, _, fragment = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert not [page for page in pages if page != Path("README.md") and f"({page.as_posix()})" not in index]


def test_pages_that_the_source_names_exist() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert not {name for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|png|jpg)", text) if not (ROOT / name).is_file()}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_files_that_a_page_names_exist(page: Path) -> None:
    """The changelog and the log tell of the past, so what they name may have moved since."""
    if page.name in ("CHANGELOG.md", "log.md"):
        return
    names = re.findall(r"\b(?:src|tests|benchmarks|docs)/[\w/-]+\.(?:py|md|png|jpg|toml)", page.read_text(encoding="utf-8"))
    assert not [name for name in names if not (ROOT / name).is_file()]


def test_the_diagram_of_layers_is_the_contract_that_is_enforced() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    enforced = [set(re.findall(r"vitreous\.(\w+)", layer)) for layer in contract["layers"]]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    diagram = page.partition("## Layers")[2].split("```")[1].strip().splitlines()
    assert [set(re.findall(r"(\w+)(?:/|\.py)", line)) for line in diagram] == enforced


def test_python_names_in_the_pages_exist() -> None:
    """The changelog and the log tell of the past."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name not in ("CHANGELOG.md", "log.md"))
    for module, names in re.findall(r"^from (vitreous[\w.]*) import ([\w, ]+)$", text, flags=re.MULTILINE):
        assert [name for name in names.split(", ") if not hasattr(importlib.import_module(module), name)] == []
    assert set(re.findall(r"\bvitreous\.(\w+)\(", text)) <= set(vitreous.__all__)
