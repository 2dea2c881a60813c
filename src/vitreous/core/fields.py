"""The one checker of types, choices and ranges of dataclass fields: options, recipes, model configs and study suites."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from vitreous.core.errors import VitreousError, did_you_mean, unknown_name

Label = Callable[[str, str], str]
"""How an error names a field and its value, as `--steps 0:`; what it must be instead follows."""


class Between(NamedTuple):
    """The range of a number, as part of its type: `Annotated[int, Between(1)]`."""

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"be at least {self.least:g}"
        return f"lie between {self.least:,.12g} and {self.most:,.12g}"


@functools.cache
def field_types(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass, evaluated once: a config may be made thousands of times."""
    return get_type_hints(kind, include_extras=True)


def check_fields(instance: Any, label: Label) -> None:
    """Refuse the first field whose value is not of its type, not among its choices or out of its range."""
    kind: Any = type(instance)
    for name, hint in field_types(kind).items():
        check_value(hint, getattr(instance, name), name, label)


def check_value(hint: Any, value: Any, name: str, label: Label) -> None:
    plain, notes = split_annotated(hint)
    problem = None if _fits(value, plain) else f"be {_describe(plain)}"
    choices = [choice for choice in _choices(plain) if isinstance(choice, str)]
    if problem and choices and isinstance(value, str):
        meant = did_you_mean(value, choices).rstrip()
        problem = f"be one of {', '.join(choices)}{meant and '; '}{meant}"
    for limits in notes if not problem else ():
        numbers = value if isinstance(value, tuple) else (value,)
        if isinstance(limits, Between) and not all(n is None or limits.least <= n <= limits.most for n in numbers):
            problem = str(limits)
    if problem:
        raise VitreousError(f"{label(name, reprlib.repr(value))} must {problem}")


def parse_text(hint: Any, text: str) -> Any:
    """Text as a value of this type, `0.01:0.03` or `8x8` for several numbers; text that is none stays, for the checker."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    for kind in _choices(split_annotated(hint)[0]):
        if kind is NoneType and text.lower() == "none":
            return None
        if kind is bool:
            return words.get(text.lower(), text)
        with contextlib.suppress(ValueError):
            if get_origin(kind) is tuple:
                numbers = tuple(map(get_args(kind)[0], filter(None, re.split(r"[:;,]|(?<=\d)x", text))))
                return numbers[0] if len(numbers) == 1 and Ellipsis not in get_args(kind) else numbers  # one for both sides
            if kind in (int, float):
                return kind(text)
    return text


def check_names(names: Mapping[str, Any], kind: Any, what: str) -> None:
    """Refuse a name that is no field of `kind`; the error has the nearest that is one."""
    for name in names:
        if name not in field_types(kind):
            raise unknown_name(what, name, field_types(kind))


def from_json(kind: type, fields: Mapping[str, Any], what: str) -> Any:
    """An instance from a JSON object: lists are tuples and objects are dataclasses where the type says so."""
    check_names(fields, kind, what)
    return kind(**{name: _from_plain(field_types(kind)[name], value, what) for name, value in fields.items()})


def _from_plain(hint: Any, value: Any, what: str) -> Any:
    if isinstance(value, list):
        return tuple(value)
    inner = next((choice for choice in _choices(split_annotated(hint)[0]) if dataclasses.is_dataclass(choice)), None)
    return from_json(inner, value, what) if isinstance(inner, type) and isinstance(value, dict) else value


def split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type itself, and what `Annotated` says about it."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    plain, *notes = get_args(hint)
    return plain, tuple(notes)


def _choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union and of a Literal, flat."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(inner for choice in get_args(hint) for inner in _choices(choice))
    return get_args(hint) if get_origin(hint) is Literal else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        right_length = isinstance(value, tuple) and (kinds[-1] is Ellipsis or len(value) == len(kinds))
        return right_length and all(_fits(inner, kinds[0]) for inner in value)
    if hint is float:
        # An integer may be too large for a float (JSON knows no bounds), and NaN fails every comparison.
        return (_fits(value, int) and abs(value) <= sys.float_info.max) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, get_origin(hint) or hint) and not (isinstance(value, bool) and hint is not bool)


_WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", NoneType: "none"}


def _describe(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_describe(choice) for choice in get_args(hint) if choice is not NoneType)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if kinds[-1] is not Ellipsis:
            return "height and width"
        return {int: "whole numbers", float: "finite numbers"}.get(kinds[0], "a list of texts")
    if get_origin(hint) in (dict, Mapping):
        return "an object"
    return _WORDS.get(hint) or (", ".join(map(str, get_args(hint))) if get_args(hint) else f"a {hint.__name__}")
