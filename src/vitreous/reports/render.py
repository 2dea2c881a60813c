"""Renders every HTML page: one Jinja2 environment in which all text is escaped and a missing name is an error."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitreous.core.printable import printable


def render(template: str, **context: Any) -> str:
    """A whole page, self-contained: styles, script and images are inside it, and it may load nothing else."""
    return environment().get_template(template).render(context)


@functools.cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("vitreous.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(fmt=format, percent=format_percent, count=format_count, csp_hash=_csp_hash)
    made.globals.update(assets=_read_assets, version=version("vitreous"))
    return made


def format_percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """`1 image`, `1,200 images`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _make_printable(value: Any) -> Any:
    """Names of files and classes are untrusted input: what would move a cursor or reverse a line is spelt out."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    # A data URI of a megabyte is printable as it is.
    return text if text.isprintable() else printable(text)


def _read_assets(names: Iterable[str]) -> Markup:
    """Styles or scripts of this package, one after the other. They are ours, so they are not escaped."""
    folder = resources.files("vitreous.reports") / "assets"
    return Markup("").join(Markup((folder / name).read_text(encoding="utf-8")) for name in names)


def _csp_hash(script: str) -> str:
    """As a Content-Security-Policy names the one script that may run."""
    return base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
