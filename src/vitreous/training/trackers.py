"""A run's metrics, sent on to TensorBoard or Weights & Biases. Both read what metrics.jsonl holds; neither is needed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import secrets
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vitreous.core.errors import VitreousError, one_line, unknown_name
from vitreous.core.files import write_text
from vitreous.core.progress import is_silent, say
from vitreous.training.callbacks import Callback


class _Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def parse_trackers(text: str) -> tuple[str, ...]:
    """`tensorboard,wandb`: the names, each once; one that is unknown or not installed is an error."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise VitreousError(f"the tracker {name} is not installed; pip install 'vitreous[track]', or drop the tracker")
    return names


class Trackers(Callback):
    """None, one or both. What cannot begin is an error; what fails later costs the tracker and never the run."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        start_step: int,
        say: Callable[[str], None] = say,
    ) -> None:
        self._say = say
        self._open = {name: TRACKERS[name](folder, config, start_step, say) for name in names}

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """The numbers of a record, named `train/loss`, `validation/top1` and so on."""
        numbers = {key: value for key, value in record.items() if type(value) in (int, float) and key != "step"}
        values = {f"{record['split']}/{key}": float(value) for key, value in numbers.items()}
        for name, tracker in tuple(self._open.items()):
            try:
                tracker.log(int(record["step"]), values)
            except Exception as error:  # a full disk, a lost connection: whatever it is, the run is worth more
                self._say(f"{name} failed and is left out from here on: {one_line(error)}; metrics.jsonl has everything")
                del self._open[name]

    def close(self) -> None:
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:
                self._say(f"{name} did not close: {one_line(error)}; metrics.jsonl has everything")


class _TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any], start_step: int, say: Callable[[str], None]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier start wrote after the state that this one resumes from is hidden: it comes again.
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=start_step + 1 if start_step else 0)
        if not start_step:
            lines = json.dumps(dict(config), indent=2, ensure_ascii=False, default=str)
            self._writer.add_text("config", textwrap.indent(lines, "    "), 0)  # an indented block is code

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a killed run has shown what it did

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, config: Mapping[str, Any], start_step: int, say: Callable[[str], None]) -> None:
        wandb: Any = importlib.import_module("wandb")
        mode = None  # wandb's own choice: WANDB_MODE, or what its settings say
        if not os.environ.get("WANDB_MODE") and not _answers(str(wandb.Settings().base_url)):
            mode = "offline"
            say(f"wandb: no connection, so the run is kept in {folder / 'wandb'}; `wandb sync` sends it later")
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "vitreous",
                name=folder.resolve().name,
                id=_lasting_id(folder),
                dir=str(folder),
                config=json.loads(json.dumps(dict(config), default=str)),
                resume="allow",
                mode=mode,
                # The bar is no output worth keeping, and --quiet is meant for wandb too.
                settings=wandb.Settings(console="off", **({"silent": True} if is_silent() else {})),
            )
        except Exception as error:
            raise VitreousError(
                f"wandb could not start: {one_line(error)}; `wandb login`, or set WANDB_MODE=offline, or drop the tracker"
            ) from error
        self._first = int(self._run.step or 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._first:  # before it, an exact resume repeats what is there, which wandb would refuse line by line
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path, Mapping[str, Any], int, Callable[[str], None]], _Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
}


def _lasting_id(folder: Path) -> str:
    """Kept in the run folder, so that a run that is moved stays itself and a new one in an old place does not become it."""
    path = folder / "wandb" / "id.txt"
    if path.exists() and (known := path.read_text(encoding="utf-8").strip()).isalnum():
        return known
    made = secrets.token_hex(8)
    write_text(path, made + "\n")
    return made


def _answers(address: str) -> bool:
    """Whether anything answers there, through a proxy if the environment names one. A refusal is an answer."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
