"""A reader of .pt and .pth files that accepts tensors and containers of tensors, and nothing else.

Such a file is a zip archive with one pickle, which says how tensors are laid out, and one raw file for each
storage. A pickle is a small program. Here its instructions are followed by a machine that can build dicts,
lists, numbers and strings and can describe a tensor; asked for any other function or class, it stops. No
function that the file names is ever called, so there is nothing to trust.
"""

from __future__ import annotations

import math
import pickletools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError, one_line
from vitreous.weights.bounded_zip import ZIP_ERRORS, open_zip

_STORAGES: dict[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_ALLOWED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {storage}" for storage in _STORAGES),
}


# A state dict of 10,000 tensors takes 1.5 MB and 400,000 instructions, and its names have fewer than 100 characters.
_PROGRAM, _STEPS = 16 << 20, 1_000_000
_DEPTH, _NAME, _AXES = 64, 1000, 16
_ELEMENTS = 1 << 24  # that tensors may have beyond four times what the file holds: weights are shared here and there


class _Refused(Exception):
    """What stands in the pickle is not a container of tensors."""


@dataclass(frozen=True)
class _Name:
    """A function or class that the file mentions. Never called: only recognised."""

    text: str


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype
    size: int


@dataclass(frozen=True)
class View:
    """A tensor as the file describes it: a window on a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def check(self) -> None:
        numbers = (self.offset, *self.shape, *self.stride)
        possible = all(isinstance(number, int) and 0 <= number < 1 << 48 for number in numbers)
        if not possible or not len(self.shape) == len(self.stride) <= _AXES:
            raise _Refused("a tensor with an impossible layout")
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        # A stride of 0 could blow a few bytes up to any size; weights never overlap, so more elements than bytes is a trick.
        if self.elements and (last >= self.storage.size or self.elements > self.storage.size):
            raise _Refused("a tensor that reaches beyond its data")


class TensorsOnlyFile:
    """`tensors` maps dotted names to their descriptions; `read` fetches one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = open_zip(path)
            names = self._archive.namelist()
            programs = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(programs) != 1 or any("/code/" in name or name.endswith("constants.pkl") for name in names):
                raise _Refused("not a saved state dict (a TorchScript program, perhaps)")
            self._folder = programs[0].removesuffix("data.pkl")
            if self._folder + "byteorder" in names and self._archive.read(self._folder + "byteorder") != b"little":
                raise _Refused("numbers in big-endian order")
            if self._archive.getinfo(programs[0]).file_size > _PROGRAM:
                raise _Refused(f"its pickle has more than {_PROGRAM:,} bytes")
            content = _run_pickle(self._archive.read(programs[0]))
            self.tensors: dict[str, View] = {}
            self._seen: set[int] = set()
            self._collect(content, "")
            self._check_sizes()
        except _Refused as error:
            raise VitreousError(
                f"{path}: refused, because it holds more than tensors: {error}. "
                f"Have its owner save only the state dict, best as .safetensors"
            ) from error
        except (*ZIP_ERRORS, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise VitreousError(f"{path}: truncated or corrupt torch file ({one_line(error)}); fetch it again") from error

    def _check_sizes(self) -> None:
        """Before any data is read: each storage as large as the pickle says, and all tensors together not much larger."""
        self._users = Counter(view.storage.key for view in self.tensors.values())
        self._shared: dict[str, bytearray] = {}
        held = 0
        for storage in {view.storage for view in self.tensors.values()}:
            found = self._archive.getinfo(f"{self._folder}data/{storage.key}").file_size
            if found != storage.size * storage.dtype.itemsize:
                raise ValueError(f"storage {storage.key} has {found:,} bytes where the pickle says {storage.size:,} numbers")
            held += storage.size
        if sum(view.elements for view in self.tensors.values()) > 4 * held + _ELEMENTS:
            raise _Refused("tensors that overlap, and together are far larger than the file")

    def _collect(self, value: Any, name: str, depth: int = 0) -> None:
        if depth > _DEPTH or len(name) > _NAME:
            raise _Refused(f"containers nested more than {_DEPTH} deep, or names of more than {_NAME:,} characters")
        if isinstance(value, View):
            value.check()
            self.tensors[name] = value
        # Once each: lists of one list, nested, would unfold to any size.
        elif isinstance(value, (dict, list, tuple)) and id(value) not in self._seen:
            self._seen.add(id(value))
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._collect(item, f"{name}.{key}" if name else str(key), depth + 1)

    def read(self, name: str) -> Tensor:
        view = self.tensors[name]
        key = view.storage.key
        try:
            data = self._shared.get(key) or bytearray(self._archive.read(f"{self._folder}data/{key}"))
        except (*ZIP_ERRORS, KeyError) as error:
            raise VitreousError(
                f"{self.path}: the data of tensor {name!r} is missing or corrupt ({one_line(error)})"
            ) from error
        if self._users[key] > 1:  # each of many small tensors in one storage would read all of it again
            self._shared[key] = data
        if len(data) != view.storage.size * view.storage.dtype.itemsize:
            raise VitreousError(f"{self.path}: the data of tensor {name!r} has the wrong size; the file is corrupt")
        if not view.elements:
            return torch.empty(view.shape, dtype=view.storage.dtype)
        flat = torch.frombuffer(data, dtype=view.storage.dtype)
        return torch.as_strided(flat, view.shape, view.stride, view.offset).clone()


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
}
_EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _Refused(f"it treats a {type(value).__name__} as a {kind.__name__}")
    return value


def _fill(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn. Other keys than strings and numbers lead to no weights, and are left out."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, (str, int)):
            target[key] = value
    return target


_FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": lambda items: _fill({}, items),
}


def _run_pickle(program: bytes) -> Any:
    """Run a pickle on a machine with a stack, a memo, and no way to call anything.

    Each instruction handles as many items as were put on the stack for it, so a limit on instructions limits memory, memo
    entries and time. Only strings and numbers are ever hashed, compared or written out: a tuple of one tuple, twice, nested
    40 deep, is small in memory and takes years to hash.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def to_mark() -> list[Any]:
        return list(iter(stack.pop, _MARK))[::-1]

    for step, (opcode, argument, _) in enumerate(pickletools.genops(program)):
        name = opcode.name
        if step > _STEPS:
            raise _Refused(f"its pickle has more than {_STEPS:,} instructions")
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in _FROM_ITEMS:
            stack.append(_FROM_ITEMS[name](to_mark()))
        elif name in ("APPEND", "APPENDS"):
            added = to_mark() if name == "APPENDS" else [stack.pop()]
            _expect(stack[-1], list).extend(added)
        elif name in ("SETITEM", "SETITEMS"):
            items = to_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _fill(_expect(stack[-1], dict), items)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(str(argument))] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(str(argument))])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            words = str(argument).split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
            text = " ".join(_expect(word, str) for word in words)
            if text not in _ALLOWED:
                raise _Refused(f"it names {text[:100].replace(' ', '.')!r}")
            stack.append(_Name(text))
        elif name == "BINPERSID":
            stack.append(_parse_storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_rebuild(stack.pop(), arguments))
        elif name == "BUILD":  # an OrderedDict may carry attributes, such as a module's versions: of no interest
            stack.pop()
            if not isinstance(stack[-1], (dict, View)):
                raise _Refused("it sets attributes of an object")
        else:
            raise _Refused(f"it uses the instruction {name}")
    raise _Refused("its pickle does not end")


def _parse_storage(identity: Any) -> _Storage:
    kind, storage, key, _, size = identity
    if kind != "storage" or not isinstance(storage, _Name) or not storage.text.startswith("torch "):
        raise _Refused("it refers to something outside the file")
    if not (isinstance(key, str) and key.isdigit() and isinstance(size, int) and size >= 0):
        raise _Refused("it names its data in an unknown way")
    return _Storage(key, _STORAGES[storage.text.removeprefix("torch ")], size)


def _rebuild(function: Any, arguments: Any) -> Any:
    """What a call would have built, for the three calls that a state dict needs."""
    if isinstance(function, _Name):
        if function.text == "collections OrderedDict":
            if arguments:  # torch fills it afterwards; a copy of what the memo holds could be made again and again
                raise _Refused("it makes an OrderedDict of something else")
            return {}
        if function.text.endswith("_rebuild_parameter") and isinstance(arguments[0], View):
            return arguments[0]
        if function.text.endswith("_rebuild_tensor_v2") and isinstance(arguments[0], _Storage):
            storage, offset, shape, stride = arguments[:4]
            return View(storage, offset, tuple(_expect(shape, tuple)), tuple(_expect(stride, tuple)))
    raise _Refused("it calls something that does not make a tensor")
