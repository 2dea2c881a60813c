"""Map the classes of a data set to those of a model.

Names decide. A model may know more classes than the data has (ImageNet's thousand, evaluated on a folder of ten), and their
order may differ. Numbers are trusted only where one side has nothing else. What names cannot say, a file says (`read_mapping`):

    {"bicycle": ["mountain bike", "tandem"], "clock": [409, 530], "sandal": "sandal; clog", "air freshener": []}

as JSON, as TOML, or as CSV with the columns `data` and `model` and a row for each pair. This is how ObjectNet is evaluated by
ImageNet's classes (PAPER 5): an image is right if the model names any of its classes; a class with none is left out.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.core.errors import VitreousError, did_you_mean, first_few, nearest_names
from vitreous.core.untrusted_json import parse_json

Among = Literal["all", "mapped"]

_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ClassMapping:
    data: tuple[str, ...]
    model: tuple[str, ...]
    to: tuple[tuple[int, ...], ...]  # of each data class, the model classes that are right; none: it is left out
    among: tuple[int, ...] | None = None  # the model classes that compete; None: all
    notes: tuple[str, ...] = ()

    def labels(self, own: Iterable[int]) -> tuple[int, ...]:
        """An image's labels, as classes of the model."""
        return tuple(dict.fromkeys(number for label in own for number in self.to[label]))

    @property
    def competing(self) -> int:
        return len(self.model) if self.among is None else len(self.among)


def align_classes(
    data: tuple[str, ...],
    model: tuple[str, ...],
    *,
    where: str = "the data",
    there: Iterable[int] | None = None,
    model_named: bool = True,
    among: Among = "all",
) -> ClassMapping:
    """By name; by number only where one side has nothing else, which is noted.

    `there`: the data classes that have images; the others need not be known. `model_named` is False where the model's names
    are its numbers because its names are unknown.
    """
    needed = sorted(set(range(len(data)) if there is None else there))
    found = [*range(len(data))] if data == model else _by_name(data, model)
    to: tuple[tuple[int, ...], ...] = tuple(() if number is None else (number,) for number in found)
    notes: tuple[str, ...] = ()
    if unknown := [data[label] for label in needed if found[label] is None]:
        numbered = _by_number(data, model, needed, model_named)
        if numbered is None:
            raise _unknown(where, unknown, data, model, model_named)
        to, note = numbered
        notes = (f"{where}: {note}",)
    found_there = {number for label in needed for number in to[label]}
    mapping = _among(ClassMapping(data, model, to, None, notes), among)
    if len(found_there) < len(model) and not notes:
        may = f"; it chooses among the {mapping.competing:,} that the data names"
        if mapping.among is None:
            may = ", and may name any (--among mapped: only the data's)"
        return replace(mapping, notes=(f"{where}: has {len(found_there):,} of the model's {len(model):,} classes{may}",))
    return mapping


def read_mapping(
    path: Path,
    data: tuple[str, ...],
    model: tuple[str, ...],
    *,
    there: Iterable[int] | None = None,
    among: Among = "all",
) -> ClassMapping:
    """As the file says, and no guess beside it: a data class that it does not name is left out."""
    entries = _entries(path)
    place, find = _finder(data), _finder(model)
    to: list[tuple[int, ...]] = [()] * len(data)
    elsewhere = []
    for name, targets in entries.items():
        label = place(name)
        if label is None:
            elsewhere.append(name)
        elif to[label]:
            raise VitreousError(f"{path}: {name!r} and another entry are both {data[label]!r}; give it one entry")
        else:
            to[label] = tuple(dict.fromkeys(n for target in targets for n in _targets(path, name, target, model, find)))
    needed = sorted(set(range(len(data)) if there is None else there))
    if not any(to[label] for label in needed):
        raise VitreousError(
            f"{path}: maps none of the data's classes ({first_few([data[label] for label in needed], 3)}) "
            f"to a class of the model"
        )
    notes = []
    if left := [data[label] for label in needed if not to[label]]:
        said = f"{len(left):,} of the data's {len(needed):,} classes map to nothing and are left out ({first_few(left, 3)})"
        notes.append(f"{path}: {said}")
    if elsewhere:
        notes.append(f"{path}: {len(elsewhere):,} of its entries are no classes of the data ({first_few(elsewhere, 3)})")
    return _among(ClassMapping(data, model, tuple(to), None, tuple(notes)), among)


def _among(mapping: ClassMapping, among: Among) -> ClassMapping:
    if among == "all":
        return mapping
    own = tuple(sorted({number for several in mapping.to for number in several}))
    if len(own) < 2:
        raise VitreousError("--among mapped leaves the model one class to choose from; use --among all")
    return replace(mapping, among=own)


# By name ---------------------------------------------------------------------------------------------------------------


def fold_name(name: str) -> str:
    """A name without what people spell in different ways."""
    return " ".join(re.split(r"[\s_\-]+", name.casefold().strip()))


def _first_word(name: str) -> str:
    """Of 'tench, Tinca tinca' the first: ImageNet's classes are written with all their synonyms or with one."""
    return fold_name(name.partition(",")[0])


def _finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """The number of a name: as it is, else whatever its case and spacing, else by its first synonym; where that is one."""
    tables: list[tuple[Callable[[str], str], dict[str, int | None]]] = []
    for key in (str, fold_name, _first_word):
        keys = [key(name) for name in names]
        # Two of them: none rather than a wrong one.
        several = dict.fromkeys(name for name, count in Counter(keys).items() if count > 1)
        tables.append((key, {name: number for number, name in enumerate(keys)} | several))
    return lambda name: next((table[key(name)] for key, table in tables if key(name) in table), None)


def _by_name(data: tuple[str, ...], model: tuple[str, ...]) -> list[int | None]:
    """One to one: of two data classes with one match, only one that is spelt exactly so has it."""
    find = _finder(model)
    found = [find(name) for name in data]
    takers = Counter(found)
    return [
        number if number is not None and (takers[number] == 1 or name == model[number]) else None
        for name, number in zip(data, found, strict=True)
    ]


# By number -------------------------------------------------------------------------------------------------------------


def _by_number(
    data: tuple[str, ...], model: tuple[str, ...], needed: Sequence[int], model_named: bool
) -> tuple[tuple[tuple[int, ...], ...], str] | None:
    synsets = len(data) == len(model) == 1000 and all(_SYNSET.fullmatch(name) for name in data) and data == tuple(sorted(data))
    if synsets:
        why = "WordNet ids, which in their order are ImageNet's thousand classes, as the model has them"
    elif _numbers(data) and all(int(data[label]) < len(model) for label in needed):
        to = tuple((int(name),) if int(name) < len(model) else () for name in data)
        return to, f"its classes are numbers, taken for the model's own, from 0 ({model[0]!r}) on"
    elif not (model_named and not _numbers(model)) and len(data) == len(model):
        why = f"the model's classes have no names, so they are taken to be the data's, in their order ({data[0]!r} first)"
    else:
        return None
    return tuple((number,) for number in range(len(data))), why


def _numbers(names: Sequence[str]) -> bool:
    return all(name.isascii() and name.isdigit() for name in names)


def _unknown(
    where: str, unknown: Sequence[str], data: tuple[str, ...], model: tuple[str, ...], model_named: bool
) -> VitreousError:
    remedy = "say which is which with --mapping FILE"
    if not model_named or _numbers(model):
        return VitreousError(
            f"{where}: {len(data):,} classes ({first_few(data, 3)}), and a model of {len(model):,} whose names are not known; "
            f"{remedy}"
        )
    alike = ", ".join(
        repr(name) + "".join(f" (nearest: {near!r})" for near in nearest_names(name, model)) for name in unknown[:3]
    )
    more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
    return VitreousError(f"{where}: classes that the model does not know: {alike}{more}; {remedy}")


# The file --------------------------------------------------------------------------------------------------------------


def _entries(path: Path) -> Mapping[str, list[Any]]:
    readers: dict[str, Callable[[Path], Iterable[tuple[str, Any]]]] = {".json": _json, ".toml": _toml, ".csv": _csv}
    read = readers.get(path.suffix.lower())
    if read is None:
        raise VitreousError(f"{path}: a mapping is a .json, .toml or .csv file, from data classes to model classes")
    entries: dict[str, list[Any]] = {}
    try:
        for name, value in read(path):
            if name in entries and read is not _csv:
                raise VitreousError(f"{path}: {name!r} stands there twice; give it one entry")
            entries.setdefault(name, []).extend(value if isinstance(value, list) else [] if value is None else [value])
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise VitreousError(f"{path}: not {path.suffix[1:].upper()} ({error})") from error
    if not entries:
        raise VitreousError(f"{path}: maps nothing; it should name data classes and the model's classes for each")
    return entries


def _json(path: Path) -> Iterable[tuple[str, Any]]:
    # Pairs, so that what stands there twice is seen.
    pairs = parse_json(path.read_text(encoding="utf-8-sig"), object_pairs_hook=tuple)
    if not isinstance(pairs, tuple):
        raise VitreousError(f'{path}: should be an object, as {{"bicycle": ["mountain bike", "tandem"]}}')
    return pairs


def _toml(path: Path) -> Iterable[tuple[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8-sig")).items()


def _csv(path: Path) -> Iterable[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, restkey="")
        if not {"data", "model"} <= set(rows.fieldnames or ()):
            raise VitreousError(f"{path}: needs the columns data and model in its first line")
        for row in rows:
            if None in (row["data"], row["model"]) or "" in row:
                raise VitreousError(f"{path}: line {rows.line_num} has not as many cells as the first line")
            yield row["data"], [row["model"]] if row["model"].strip() else []


def _targets(path: Path, name: str, target: Any, model: tuple[str, ...], find: Callable[[str], int | None]) -> Iterable[int]:
    """One entry: a number, a name, or several names with ; between, as in ObjectNet's own file."""
    if type(target) is int:
        if not 0 <= target < len(model):
            raise VitreousError(f"{path}: {name!r} maps to class {target}; the model's are 0 to {len(model) - 1:,}")
        return [target]
    if not isinstance(target, str):
        raise VitreousError(f"{path}: {name!r} maps to {str(target)[:40]!r}, which is neither a name nor a number")
    words = [target] if find(target) is not None else [word.strip() for word in target.split(";") if word.strip()]
    numbers = []
    for word in words:
        number = find(word)
        if number is None and word.isascii() and word.isdigit() and int(word) < len(model):
            number = int(word)
        if number is None:
            twice = sum(fold_name(other) == fold_name(word) for other in model) > 1
            why = (
                "several are called so; give its number"
                if twice
                else did_you_mean(word, model) or f"it has {first_few(model, 3)}"
            )
            raise VitreousError(f"{path}: {name!r} maps to {word!r}, which is no class of the model; {why.rstrip()}")
        numbers.append(number)
    return numbers
