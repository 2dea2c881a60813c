"""Templates: what comes from files is text, what is missing is an error, and markup is nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import vitreous
from vitreous.reports.render import environment, format_count, render

SOURCE = Path(vitreous.__file__).parent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
        ("a\n\x1b[31m\u202eb", "a\\n\\x1b[31m\\u202eb"),
        ("bytes\udcff", "bytes\\xff"),
        (1234, "1234"),
    ],
)
def test_what_comes_from_files_is_escaped_and_printable(value: object, shown: str) -> None:
    assert environment().from_string("{{ value }}").render(value=value) == shown


def test_a_missing_name_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("run.html", title="a run")


def test_counts_are_spelt() -> None:
    assert [format_count(n, "image") for n in (0, 1, 1200)] == ["0 images", "1 image", "1,200 images"]


def test_no_markup_in_python_strings() -> None:
    """Every tag is in a template, where escaping is automatic."""
    tag = re.compile(r"</?(?:a|br|div|figure|h[1-6]|img|li|p|path|rect|section|span|svg|t[dhr]|table|ul)[ />]")
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not tag.search(node.value), f"{path.relative_to(SOURCE)}:{node.lineno}: {node.value[:80]!r}"
