"""Names of files for the eye. A name may hold anything but a slash: line breaks, escape codes, bytes that are no text."""

from __future__ import annotations


def readable(name: str) -> str:
    """The name on one line, in valid Unicode; what cannot be shown is written as \\xNN or \\uNNNN."""
    valid = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in valid)
