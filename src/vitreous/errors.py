"""Errors for the person at the keyboard: what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class VitreousError(Exception):
    """A mistake in the input or the command. The command line prints it as one line and exits with 2."""


def nearest(word: str, choices: Iterable[str], count: int = 1) -> list[str]:
    """The choices that look most like `word`, however unlike it they are: a hint must never be empty."""
    choices = list(choices)
    by_folded: dict[str, str] = {}
    for choice in choices:
        by_folded.setdefault(choice.casefold(), choice)
    hits = difflib.get_close_matches(word.casefold(), list(by_folded), n=count, cutoff=0.0)
    return [by_folded[hit] for hit in hits]


def unknown(what: str, word: str, choices: Iterable[str]) -> VitreousError:
    """The error for a misspelt name: says what it was, the nearest valid one, and all of them if they are few."""
    choices = sorted(choices)
    message = f"unknown {what} {word!r}; did you mean {nearest(word, choices)[0]!r}?"
    if len(choices) <= 30:
        message += f" (valid: {', '.join(choices)})"
    return VitreousError(message)


def one_line(error: object, most: int = 300) -> str:
    """What an error says, as part of a line of ours: its own message may have several, or none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def some(names: Sequence[str], most: int = 8) -> str:
    """The first few, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
