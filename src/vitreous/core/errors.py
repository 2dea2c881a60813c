"""Errors for the user: what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from vitreous.core.printable import printable


class VitreousError(Exception):
    """A mistake in the input or the command. The command line prints it as one line and exits with 2."""

    def __str__(self) -> str:
        return printable(super().__str__())  # it names files and what they hold


def nearest_names(word: str, choices: Iterable[str], count: int = 1) -> list[str]:
    """The choices that look most like `word`; none where nothing is near enough to be a misspelling of it."""
    by_folded = {choice.casefold(): choice for choice in reversed(list(choices))}  # of two that differ in case, the first
    hits = difflib.get_close_matches(word.casefold(), list(by_folded), n=count, cutoff=0.6)
    return [by_folded[hit] for hit in hits]


def did_you_mean(word: str, choices: Iterable[str], count: int = 1) -> str:
    """The question with a space behind it, or nothing: what follows it is said in either case."""
    close = nearest_names(word, choices, count)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def unknown_name(what: str, word: str, choices: Iterable[str]) -> VitreousError:
    """The error for a misspelt name: says what it was, the nearest valid one, and all of them if they are few."""
    choices = sorted(choices)
    hint, valid = did_you_mean(word, choices), f"valid: {first_few(choices, 30)}"
    if not hint:
        hint = valid
    elif len(choices) <= 30:
        hint += f"({valid})"
    return VitreousError(f"unknown {what} {word!r}; {hint.rstrip()}")


class NonFiniteOutput(VitreousError):
    """A model's fault, not its input's: what it gives is NaN or infinite."""


def check_at_least(least: int, **options: int | None) -> None:
    """Refuses an option below `least`, by its name on the command line; one that is None was not given."""
    for name, value in options.items():
        if value is not None and value < least:
            raise VitreousError(f"--{name.replace('_', '-')} {value}: must be at least {least}")


def check_share(**options: float | None) -> None:
    """The same of an option that is a share of something: neither none of it nor all."""
    for name, value in options.items():
        if value is not None and not 0 < value < 1:
            raise VitreousError(f"--{name.replace('_', '-')} {value:g}: must lie between 0 and 1, as 0.9")


def one_line(error: object, most: int = 300) -> str:
    """What an error says, as part of a line of ours: its own message may have several, or none."""
    # Our own errors escape line breaks when shown; here they become spaces. Those of others have a form of their own.
    message = Exception.__str__(error) if isinstance(error, VitreousError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def first_few(names: Sequence[str], most: int = 8) -> str:
    """The first few, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
