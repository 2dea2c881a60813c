"""Find the shards that a pattern names, and read the `index.json` beside them.

Patterns are a path, a glob, a brace range (`train-{000..127}.tar`), or a folder; here, or at an address.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import user_path
from vitreous.core.untrusted_json import parse_json
from vitreous.data.conventions import SPLIT_NAMES, TARS
from vitreous.data.shards.byte_stream import (
    Fault,
    Missing,
    base_name,
    is_http,
    is_remote,
    open_bytes,
    open_filesystem,
    printable_address,
    strip_query,
)
from vitreous.data.source import ALL, SPLITS

INDEX = "index.json"
INDEX_BYTES = 1 << 30
MOST_SHARDS = 1_000_000


def expand_braces(text: str) -> list[str]:
    """`{0..2}`, `{000..127}`, `{train,val}-{0..3}`: what a shell would make of it."""
    parts = re.split(r"\{([^{}]*)\}", text)
    if any("{" in plain for plain in parts[::2]):
        raise VitreousError(f"{text}: a brace is not closed, or lies in another; write {{000..127}} or {{train,val}}")
    choices = [_list_choices(text, part) if at % 2 else [part] for at, part in enumerate(parts)]
    if (count := math.prod(map(len, choices))) > MOST_SHARDS:
        raise VitreousError(f"{text}: {count:,} shards; at most {MOST_SHARDS:,}")
    return ["".join(words) for words in itertools.product(*choices)]


def _list_choices(text: str, group: str) -> Sequence[str]:
    """What stands between braces: a list, or a range with as many digits as its longer end where one begins with 0."""
    if "," in group:
        return group.split(",")
    span = re.fullmatch(r"(\d+)\.\.(\d+)", group)
    if not span:
        raise VitreousError(f"{text}: {{{group}}} is neither a range, as {{000..127}}, nor a list, as {{train,val}}")
    first, last = int(span[1]), int(span[2])
    if abs(last - first) >= MOST_SHARDS:
        raise VitreousError(f"{text}: {abs(last - first) + 1:,} shards; at most {MOST_SHARDS:,}")
    padded = any(len(end) > 1 and end.startswith("0") for end in span.groups())
    width, step = max(map(len, span.groups())) if padded else 0, 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


def find_shards(pattern: str) -> list[str]:
    pattern = re.sub(r"^(file|local)://", "", pattern)
    if not is_remote(pattern):
        pattern = str(user_path(pattern))
        if Path(pattern).exists():
            return _list_folder(pattern) if Path(pattern).is_dir() else [pattern]
    found: list[str] = []
    for text in expand_braces(pattern):
        if re.search(r"[*\[]" if is_http(text) else r"[*?\[]", text):
            found += _glob(text)
        elif is_remote(text) and not strip_query(text).endswith(TARS):
            found += _list_folder(text)
        else:
            found.append(text)
    return list(dict.fromkeys(found))


def _list_folder(folder: str) -> list[str]:
    join = f"{folder.rstrip('/')}/" if is_remote(folder) else f"{folder}{os.sep}"
    index = _read_index(f"{join}{INDEX}")
    if index is not None and index.lengths:
        return [f"{join}{name}" for name in index.lengths]
    if is_http(folder):
        return [folder]  # an address may look like anything, and such a server lists nothing
    found = [shard for suffix in TARS for shard in _glob(f"{glob.escape(join)}*{suffix}", must=False)]
    if not found:
        raise VitreousError(f"{folder}: neither shards (*.tar) nor an {INDEX} in it; name the shards, as in out/train-*.tar")
    return sorted(found)


def _glob(text: str, must: bool = True) -> list[str]:
    if not is_remote(text):
        found = [path for path in glob.glob(text, recursive=True) if Path(path).is_file()]  # noqa: PTH207
    elif is_http(text):
        raise VitreousError(
            f"{printable_address(text)}: an http server does not list its files; write a range, as {{000..127}}"
        )
    else:
        files, path = open_filesystem(text)
        try:
            found = [files.unstrip_protocol(path) for path in files.glob(path)]
        except Exception as error:  # each kind of storage has its own errors
            raise VitreousError(
                f"{printable_address(text)}: cannot be listed ({one_line(error)}); write a range, as {{000..127}}"
            ) from error
    if must and not found:
        raise VitreousError(f"{printable_address(text)}: no shard matches")
    return sorted(found)


def assign_splits(where: str, shards: Sequence[str], index: Index | None) -> dict[str, list[str]]:
    """The shards by split: as the index says, else as their names or folders do, else all in one."""
    found: dict[str | None, list[str]] = {}
    for shard in shards:
        split = index.splits.get(base_name(shard)) if index is not None else None
        if split is None:
            folder = strip_query(shard).replace(os.sep, "/").rpartition("/")[0].rpartition("/")[2]
            words = [*re.split(r"[-_.]", base_name(shard).lower()), folder.lower()]
            split = next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)
        found.setdefault(split, []).append(shard)
    if None in found and len(found) > 1:
        raise VitreousError(
            f"{where}: {printable_address(found[None][0])} is of no split, others are; name them train-, val- or "
            f"test-*.tar, or choose some"
        )
    order = [*SPLITS, *sorted(split for split in found if split and split not in SPLITS), None]
    return {split or ALL: found[split] for split in order if split in found}


def distinct_names(shards: Sequence[str]) -> tuple[str, ...]:
    """What ids begin with: the shards' own names, and folders above them only where those alone are not distinct."""
    parts = [strip_query(shard).replace(os.sep, "/").split("/") for shard in shards]
    depth = 1
    while len({tuple(part[-depth:]) for part in parts}) < len(parts) and depth < max(len(part) for part in parts):
        depth += 1
    return tuple("/".join(part[-depth:]) for part in parts)


# The index ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """What `index.json` says. `lengths` and `splits` are by the shard's name, in its order."""

    classes: tuple[str, ...]
    lengths: dict[str, int]
    splits: dict[str, str]
    own_classes: dict[str, tuple[str, ...]]


def read_index_beside(shards: Sequence[str]) -> Index | None:
    folders = {strip_query(shard)[: len(strip_query(shard)) - len(base_name(shard))] for shard in shards}
    return _read_index(f"{folders.pop()}{INDEX}") if len(folders) == 1 else None


def _read_index(path: str) -> Index | None:
    try:
        with open_bytes(path) as file:
            text = file.read(INDEX_BYTES)
    except Missing:
        return None
    except Fault as fault:
        raise VitreousError(f"{printable_address(path)}: {fault}; try again later") from fault
    try:
        document = parse_json(text)
        classes, shards = document["classes"], document.get("shards", [])
        index = Index(
            tuple(classes),
            {shard["name"]: shard["count"] for shard in shards},
            {shard["name"]: shard["split"] for shard in shards},
            {split: tuple(names) for split, names in document.get("own_classes", {}).items()},
        )
        strings = [*classes, *index.splits.values(), *(name for names in index.own_classes.values() for name in names)]
        if not isinstance(classes, list) or not all(isinstance(text, str) for text in strings):
            raise ValueError("classes and splits must be names")
        if not all(re.fullmatch(r"[^/\\:]+\.(tar|tar\.gz|tgz)", name) for name in index.lengths):
            raise ValueError("shards must be plain .tar names")
        if not all(type(count) is int and count >= 0 for count in index.lengths.values()) or len(index.lengths) != len(shards):
            raise ValueError("each shard must be there once, with a count")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VitreousError(
            f"{printable_address(path)}: not an index of shards ({type(error).__name__}: {error}); expected at least "
            f'{{"classes": ["cat", "dog"]}}'
        ) from error
    return index
