"""The demo's runs: from scratch, by masked patches or printed letters and then few labels, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from vitreous.commands.demo.model_steps import save_figure
from vitreous.commands.finetune import finetune
from vitreous.commands.pretrain import pretrain
from vitreous.commands.training_run import Run
from vitreous.core.hashing import hash_file
from vitreous.core.progress import silence
from vitreous.core.untrusted_json import parse_json, read_json

SMALL = ("model.width=64", "model.depth=4", "model.heads=2", "model.mlp=256", "lr=2e-3")
COMMON: dict[str, Any] = dict(batch_size=64, workers=0, precision="float32", device="cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """Models as small as these gain little from two threads, and on a busy machine the two wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def runs(folder: Path) -> list[dict[str, Any]]:
    """A row for each run. Real digits: 1,097 to learn from, 200 to evaluate on.

    `equal` tells whether a run made the same bytes as another; None where there is no other to compare it with.
    """
    digits, small = "builtin:digits", dict(model="ViT-Ti/2", set=SMALL)
    few: dict[str, Any] = dict(per_class=10, steps=150, eval_every=0)

    def run(command: Callable[..., Run], data: str, name: str, **options: Any) -> Run:
        return command(data, out=str(folder / name), **{**COMMON, **options})

    def tune(start: str, *changes: str) -> Run:
        return run(finetune, digits, f"{start}-10", from_=str(folder / start), set=("optimizer=adam", *changes), **few)

    letters = "builtin:letters?size=8&count=6000"
    with silence():
        made = [
            ("from scratch, all labels", run(pretrain, digits, "scratch", **small, epochs=20)),
            ("from scratch, 10 labels a class", run(pretrain, digits, "scratch-10", **small, **few)),
            ("masked patches, no labels", run(pretrain, digits, "masked", **small, objective="masked-patch", epochs=20)),
            ("then fine-tuned, 10 labels a class", tune("masked", "lr=2e-3", "layer_decay=0.8")),
            (
                "6,000 printed letters, no digit",
                run(pretrain, letters, "letters", **small, batch_size=128, epochs=10, eval_every=0),
            ),
            ("then fine-tuned, 10 labels a class", tune("letters", "lr=5e-4")),
        ]
    return [*(_shown(name, run) for name, run in made), _killed(folder / "killed", made[0][1])]


def _shown(name: str, run: Run) -> dict[str, Any]:
    config = read_json(Path(run.out) / "config.json")
    masked = config["recipe"]["objective"] == "masked-patch"
    right = f"{run.result['top1']:.1%}" + (" of hidden patches' colours" if masked else "")
    return {
        "run": name,
        "objective": config["recipe"]["objective"],
        "images": config["data"]["train"],
        "steps": run.result["steps"],
        "seconds": run.result["seconds"],
        "right": right,
        "equal": None,
    }


def _killed(out: Path, whole: Run) -> dict[str, Any]:
    """The first run once more, in a process that is killed after its first state; then the same command again."""
    config = read_json(Path(whole.out) / "config.json")
    options = ["--set", ",".join(SMALL), "--epochs", "20", "--save-every", "40", "--quiet", "--out", str(out)]
    options += [word for name, value in COMMON.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "vitreous", "pretrain", "builtin:digits", "--model", "ViT-Ti/2", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(config["threads"])}  # other threads would round otherwise
    process = subprocess.Popen(command, env=environment)
    while process.poll() is None and not list((out / "state").glob("step-*")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    killed = process.wait() == -signal.SIGKILL
    subprocess.run(command, env=environment, check=True)
    digests = [hash_file(Path(run) / "checkpoint" / "model.safetensors") for run in (whole.out, out)]
    again = Run(str(out), read_json(out / "state" / "done.json"), already=False)
    row = _shown("killed with -9, started again", again)
    same = killed and digests[0] == digests[1]
    return {**row, "right": f"{row['right']}, the same bytes as undisturbed" if same else "other bytes", "equal": same}


def draw_runs(folder: Path, path: Path) -> Path:
    """Learning curves: what labels, few labels, masked patches and other signs give."""
    figure = Figure(figsize=(12, 4.2))
    axes = figure.subplots(1, 2)
    names = {
        "scratch": "from scratch, all labels",
        "scratch-10": "from scratch, 10 a class",
        "masked-10": "masked patches first, 10 a class",
        "letters-10": "printed letters first, 10 a class",
    }
    for (name, label), colour in zip(names.items(), ("#2457a6", "#c0622d", "#1e7b34", "#7a4fa3"), strict=True):
        records = [parse_json(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        train = [record for record in records if record["split"] == "train"]
        axes[0].plot([r["seconds"] for r in train], [r["loss"] for r in train], color=colour, lw=1.2, label=label)
        final = [record for record in records if record["split"] != "train"][-1]
        axes[1].barh(label, 100 * final["top1"], color=colour)
        axes[1].annotate(f" {final['top1']:.1%}", (100 * final["top1"], label), va="center", fontsize=9)
    axes[0].set(xlabel="seconds on this machine", ylabel="training loss", title="Learning the digits")
    axes[0].legend(frameon=False)
    axes[1].set(xlim=(0, 110), xlabel="% of 200 held-out digits right", title="Validated")
    axes[1].invert_yaxis()
    return save_figure(figure, axes, path)
