"""Build the documentation site in build/site: `make docs`.

The pages are the Markdown files of docs/ and of the repository's root, as they read on their own. This script copies them
to build/docs, points links that leave docs/ to their new places, writes the reference from signatures and docstrings, and
lets zensical make the site.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import vitreous
from vitreous.cli import COMMANDS, GROUPS, load_command, main

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "docs"
LEFT_OUT = ("*.py", "*.toml", "__pycache__", "*.npz", "*.csv", "grid.json")
FROM_ROOT = {
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}


def copy_pages() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs",
        PAGES,
        ignore=shutil.ignore_patterns(*LEFT_OUT, "README.md"),
    )
    shutil.copytree(ROOT / "docs" / "results", PAGES / "results", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.npz"))
    moved = {ROOT / name: PAGES / page for name, page in FROM_ROOT.items() if (ROOT / name).is_file()}
    moved |= {path: PAGES / path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    moved[ROOT / "docs" / "README.md"] = PAGES / "contents.md"
    for source, target in moved.items():
        write(target, repoint_links(source.read_text(encoding="utf-8"), source, target, moved))


def repoint_links(text: str, source: Path, target: Path, moved: dict[Path, Path]) -> str:
    def repoint(match: re.Match[str]) -> str:
        link, _, fragment = match[1].partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return match[0]
        file = (source.parent / link).resolve()
        if package := re.fullmatch(r"src/vitreous/(\w+)/__init__\.py", os.path.relpath(file, ROOT)):
            place, fragment = PAGES / "reference" / "packages.md", package[1]
        elif file in moved:
            place = moved[file]
        elif file.is_relative_to(ROOT / "docs"):
            place = PAGES / file.relative_to(ROOT / "docs")
        else:  # code and licence are read in the repository
            return f"({os.path.relpath(file, target.parent)})"
        return f"({os.path.relpath(place, target.parent)}{'#' if fragment else ''}{fragment})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(part if at % 2 else re.sub(r"(?<=\])\(([^)\s]+)\)", repoint, part) for at, part in enumerate(parts))


def write_reference() -> None:
    """A page for each command, one for the other public names, one for the packages."""
    os.environ["NO_COLOR"], os.environ["COLUMNS"] = "1", "84"
    for name in COMMANDS:
        function = load_command(name)
        signature = f"vitreous.{name}{inspect.signature(function)}"
        page = (
            f"# vitreous {name}\n\n```text\n{help_text(name)}```\n\nIn Python:\n\n```python\n{wrap_signature(signature)}\n```\n"
        )
        write(PAGES / "reference" / "commands" / f"{name}.md", page)
    groups = [
        f"- **{group}**: " + ", ".join(f"[{name}](commands/{name}.md)" for name in names) for group, names in GROUPS.items()
    ]
    write(PAGES / "reference" / "commands.md", "# Commands\n\n" + "\n".join(groups) + "\n")
    write(PAGES / "reference" / "python.md", "\n".join(["# Python\n", *python_names()]))
    write(PAGES / "reference" / "packages.md", "\n".join(["# Packages\n", *package_docstrings()]))


def write_config() -> None:
    """docs/site.toml with the navigation: the pages in the order of docs/README.md, which lists them all."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = [link for link in dict.fromkeys(re.findall(r"\]\(([\w./-]+\.md)\)", index)) if (ROOT / "docs" / link).is_file()]
    sections: dict[str, list[str]] = {
        "Tutorials": [],
        "How to": [],
        "Reference": ["reference/commands.md", "reference/python.md"],
    }
    sections |= {"Results": [], "Project": []}
    folders = {"tutorials": "Tutorials", "how-to": "How to", "reference": "Reference", "results": "Results"}
    for page in listed:
        if not page.startswith(".."):
            sections[folders.get(page.partition("/")[0], "Project")].append(page)
    sections["Reference"].append("reference/packages.md")
    sections["Project"] += ["contents.md", *sorted(set(FROM_ROOT.values()) - {"index.md"})]
    nav: list[object] = [{"Home": "index.md"}]
    for section, pages in sections.items():
        there = [page for page in pages if (PAGES / page).is_file()]
        nav.append({section: there[0] if len(there) == 1 else [{read_title(page): page} for page in there]})
    config = (ROOT / "docs" / "site.toml").read_text(encoding="utf-8")
    text = json.dumps(nav, ensure_ascii=False).replace('": ', '" = ')  # TOML writes = where JSON writes :
    write(ROOT / "build" / "zensical.toml", config.replace("[project]\n", f"[project]\nnav = {text}\n", 1))


def read_title(page: str) -> str:
    return (PAGES / page).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def help_text(command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return text.getvalue()


def python_names() -> Iterator[str]:
    yield "Every command is a function too: `vitreous.doctor`, `vitreous.finetune` ... ([commands](commands.md)).\n"
    for name in sorted(set(vitreous.__all__) - {*COMMANDS}):
        thing = getattr(vitreous, name)
        yield f"## vitreous.{name}\n"
        yield from describe(f"vitreous.{name}", thing)
        if inspect.isclass(thing):
            for method, function in inspect.getmembers(thing, callable):
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"### {name}.{method}\n"
                    yield from describe(method, function)


def describe(name: str, thing: object) -> Iterator[str]:
    with contextlib.suppress(TypeError, ValueError):
        yield f"```python\n{wrap_signature(f'{name}{inspect.signature(thing)}')}\n```\n"  # type: ignore[arg-type]
    if text := inspect.getdoc(thing):
        yield f"{text}\n"


def wrap_signature(signature: str) -> str:
    """One parameter a line, where all on one line would be long."""
    signature = re.sub(r"tyro\.conf\.\w+(\(.*?\))?,? ?", "", signature.replace("'", ""))
    if len(signature) <= 100:
        return signature
    name, _, rest = signature.partition("(")
    inside, _, result = rest.rpartition(")")
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(inside):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(inside[start:at].strip())
            start = at + 1
    return f"{name}(\n" + "".join(f"    {part},\n" for part in (*parts, inside[start:].strip())) + f"){result}"


def package_docstrings() -> Iterator[str]:
    for file in sorted((ROOT / "src" / "vitreous").glob("*/__init__.py")):
        found = re.match(r'"""(.*?)"""', file.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield f"## {file.parent.name}\n\n```text\n{found[1].strip() if found else ''}\n```\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    copy_pages()
    write_reference()
    write_config()
    sys.exit(
        subprocess.call(
            [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(ROOT / "build" / "zensical.toml")]
        )
    )
