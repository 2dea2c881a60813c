"""What resuming needs: saved while the run continues, whole or not at all, the last two kept.

    state/step-00001200/   shard-*.safetensors   every tensor: weights, optimiser, average
                           state.json            the step, what has been counted so far, the hash of each file and its own

Tensors go through torch.distributed.checkpoint with its safetensors storage: each process writes what it holds, and any
other number of processes can read it. A state is written under another name by a background thread while training goes
on, read again to be hashed, and only then renamed; only then is the oldest one dropped. A state whose files are not those
that its `state.json` describes is passed over for the one before. (Threads write and hash, each process its own files;
`finish`, called after the step in which all processes have done so, only writes `state.json` and renames.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from vitreous.core.distributed import World, all_gather, broadcast
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import flush_to_disk, write_text
from vitreous.core.hashing import hash_file
from vitreous.core.untrusted_json import read_json
from vitreous.training.ema import PolyakAverage

DOCUMENT = "state.json"
_FAILURES = (Exception, CheckpointException)  # the latter is none of the former
# One process needs no process group, and torch warns of it from its own thread, where no context reaches.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

KEPT = 2  # one that is good, and one more in case that it is not


@dataclass(frozen=True)
class Found:
    """A state on disk that is complete."""

    folder: Path
    step: int
    counted: dict[str, Any]


def tensors_of(objective: nn.Module, optimizer: torch.optim.Optimizer, average: PolyakAverage | None) -> dict[str, Tensor]:
    """Everything that changes in training, by name. Flat, because the storage takes tensors and nothing else."""
    found: dict[str, Tensor] = {}
    for name, parameter in objective.named_parameters():
        found[f"objective.{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"optimizer.{key}.{name}"] = value
    for name, tensor in (average.tensors if average else {}).items():
        found[f"average.{name}"] = tensor
    return found


class States:
    """The folder `state/` of a run."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._writing: tuple[Future[dict[str, str]], Path, int, dict[str, Any]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.saved: int | None = None  # the step of the newest state that is known to be good

    # Writing -----------------------------------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], counted: Mapping[str, Any]) -> None:
        """Begin to write the state after `step` steps; what was begun before is finished first. All processes call this."""
        self.finish()
        part = self.folder / f".{_name(step)}.part"
        with self._as_one(f"step {step:,}"):
            if self.world.is_main:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
        # Training continues and changes them. What lies on an accelerator is copied from there by `async_save`.
        copies = {name: tensor.clone() if tensor.device.type == "cpu" else tensor for name, tensor in tensors.items()}
        written = async_save(
            copies,
            storage_writer=HuggingFaceStorageWriter(str(part), save_distributed=True),
            process_group=self.world.state_group,
            no_dist=self.world.world_size == 1,
        )
        assert isinstance(written, Future)
        self._writing = (self._thread.submit(self._hashed, written, part), part, step, dict(counted))

    def _hashed(self, written: Future[Any], part: Path) -> dict[str, str]:
        """In another thread: wait for this process's files, see that they reach the disk, and hash what lies there."""
        written.result()
        own = sorted(part.glob(f"shard-{self.world.rank + 1:05d}-*.safetensors"))  # as torch names them
        for path in own:
            flush_to_disk(path)
        return {path.name: hash_file(path) for path in own}

    @property
    def written(self) -> bool:
        """Whether this process has written its part of a state that is not sealed yet."""
        return self._writing is not None and self._writing[0].done()

    def finish(self) -> None:
        """Wait for what is being written, make it the newest state and drop the oldest. All processes call this."""
        if self._writing is None:
            return
        hashed, part, step, counted = self._writing
        self._writing, own = None, {}
        with self._as_one(f"step {step:,}"):
            own = hashed.result()
        hashes = {name: digest for files in all_gather(self.world, own) for name, digest in files.items()}
        with self._as_one(f"step {step:,}"):
            if self.world.is_main:
                self._seal(part, step, counted, hashes)
        self.saved = step

    def _seal(self, part: Path, step: int, counted: dict[str, Any], hashes: Mapping[str, str]) -> None:
        files = {path.name: hashes[path.name] for path in sorted(part.glob("*.safetensors"))}
        record = {
            "step": step,
            "counted": counted,
            "files": files,
            "processes": self.world.world_size,
            "torch": torch.__version__,
        }
        write_text(part / DOCUMENT, json.dumps({**record, "sha256": _document_hash(record)}, indent=1) + "\n")
        target = self.folder / _name(step)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)
        flush_to_disk(self.folder)
        for old in self._complete()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    @contextlib.contextmanager
    def _as_one(self, what: str) -> Iterator[None]:
        """An error of one process is an error of all: none continues as if the state had been written."""
        failure: str | None = None
        try:
            yield
        except _FAILURES as error:
            failure = _story(error)
        failures = [failure for failure in all_gather(self.world, failure) if failure]
        if failures:
            if self.world.is_main:
                for part in self.folder.glob(".*.part"):
                    shutil.rmtree(part, ignore_errors=True)
            raise VitreousError(
                f"{self.folder}: cannot save the state of {what} ({failures[0]}); {self.describe_saved()}: free some space and "
                f"start the same command again"
            )

    def describe_saved(self) -> str:
        """What is left if the run ends here."""
        return f"the state of step {self.saved:,} is kept" if self.saved is not None else "no state was saved yet"

    # Reading -----------------------------------------------------------------------------------------------------------

    def newest(self) -> tuple[Found | None, tuple[str, ...]]:
        """The newest state that is whole, and what is wrong with newer ones. The first process looks, and all hear the same."""
        found: Found | None = None
        damaged: list[str] = []
        for folder in self._complete() if self.world.is_main else ():
            try:
                record = _checked(folder)
                found = Found(folder, int(record["step"]), dict(record["counted"]))
                break
            except (VitreousError, OSError, ValueError, KeyError, TypeError) as error:
                damaged.append(f"{folder.name} is damaged ({one_line(error)})")
        found, damaged = broadcast(self.world, (found, damaged))
        self.saved = found.step if found is not None else None
        return found, tuple(damaged)

    def read(self, found: Found, tensors: Mapping[str, Tensor]) -> None:
        """Fill these tensors, however they are divided now; newer states, which are damaged, are dropped."""
        try:
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(found.folder)), no_dist=self.world.world_size == 1)
        except _FAILURES as error:
            raise VitreousError(f"{found.folder}: cannot be read as this run's state ({_story(error)}); remove it") from error
        for folder in self._complete() if self.world.is_main else ():
            if folder.name > found.folder.name:  # damaged, which has been said: not to be counted among those that are kept
                shutil.rmtree(folder, ignore_errors=True)

    def _complete(self) -> list[Path]:
        """Newest first."""
        return sorted((path for path in self.folder.glob("step-*") if path.is_dir()), reverse=True)


def _story(error: BaseException) -> str:
    """What went wrong at the bottom of it: torch wraps errors of its processes and threads."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error.strerror if isinstance(error, OSError) and error.strerror else error)


def _name(step: int) -> str:
    return f"step-{step:010d}"


def _checked(folder: Path) -> dict[str, Any]:
    """The document of a state whose files are all there and as they were written."""
    record: dict[str, Any] = read_json(folder / DOCUMENT)
    if record.pop("sha256") != _document_hash(record) or _name(record["step"]) != folder.name:
        raise VitreousError(f"{DOCUMENT} is not as it was written")
    for name, digest in record["files"].items():
        path = folder / name
        if not path.is_file():
            raise VitreousError(f"{name} is missing")
        if hash_file(path) != digest:
            raise VitreousError(f"{name} is not as it was written")
    return record


def _document_hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
