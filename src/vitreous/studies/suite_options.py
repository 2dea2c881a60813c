"""From what is typed to a study: which suite, which tasks, and which settings differ from the suite's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitreous.classifier import read_checkpoint
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path
from vitreous.core.output_dir import check_outside, find_data_folder
from vitreous.studies.suite import Protocol, Suite, read_suite
from vitreous.studies.suite_run import Mode, Study
from vitreous.studies.suite_task import Machine
from vitreous.studies.vtab import vtab_suite
from vitreous.training.recipes.recipe import parse_set, parse_value

# Of the recipe's fields: what the suite itself decides for each task, and why it is not to be set for all.
_NOT_SET = {
    "preprocess": "follows from each task's crop and flip",
    "evaluation": "is the suite's: straight to --image-size, without a crop",
    "patience": "would choose by the test images",
    "epochs": "would differ from task to task; use --steps",
    "sweep": "is given in the suite's file, as sweep_lr",
    "sweep_share": "is a fifth of the examples",
}


def study_of(
    *,
    checkpoint: str,
    data: str,
    suite: str,
    tasks: str,
    out: str,
    mode: Mode,
    seeds: int | None,
    seed: int,
    data_seed: int,
    sweep: bool,
    image_size: tuple[int, int] | None,
    steps: int | None,
    batch_size: int | None,
    changes: tuple[str, ...],
    keep_weights: bool,
    machine: Machine,
) -> Study:
    """Everything checked that can be checked before data and weights are touched."""
    given = parse_set(changes)
    _check(mode, seeds, seed, data_seed, sweep, steps, batch_size, given, keep_weights, machine)
    check_outside(user_path(out), find_data_folder(data))
    chosen = _suite(data, suite, tuple(word.strip() for word in tasks.split(",") if word.strip()))
    if mode == "linear" and image_size is None and not suite:  # quick: the size that the features were made for
        image_size = read_checkpoint(checkpoint).evaluation_size
    own = {name: parse_value(name, value) for name, value in given.items() if name in ("lr", "warmup", "steps", "batch_size")}
    if "image_size" in given:
        own["image_size"] = (int(parse_value("image_size", given["image_size"])),) * 2
    asked = {"steps": steps, "image_size": image_size, "batch_size": None if mode == "linear" else batch_size, "seeds": seeds}
    for name in asked:
        if asked[name] is not None and name in own:
            raise VitreousError(f"--{name.replace('_', '-')} and --set {name}={given[name]} say the same; give one of them")
    protocol = _changed(chosen.protocol, {**own, **{name: value for name, value in asked.items() if value is not None}})
    rest = tuple(f"{name}={value}" for name, value in given.items() if name not in own)
    return Study(
        suite=replace(chosen, protocol=protocol),
        checkpoint=checkpoint,
        out=user_path(out),
        mode=mode,
        seed=seed,
        data_seed=data_seed,
        seeds=1 if mode == "linear" else protocol.seeds,
        sweep=sweep,
        changes=rest,
        batch_size=batch_size,
        keep_weights=keep_weights,
        machine=machine,
    )


def _suite(data: str, suite: str, tasks: tuple[str, ...]) -> Suite:
    if suite:
        if data:
            raise VitreousError(f"{data}: a suite names its own data; leave DATA out, or --suite {suite}")
        found = read_suite(suite)
        return found.only(tasks) if tasks else found
    if not data:
        raise VitreousError("DATA is missing: the folder that holds VTAB's task folders; or name a suite, as --suite small")
    if not user_path(data).is_dir():
        raise VitreousError(f"{data}: no such folder; DATA holds VTAB's task folders, as caltech101/ (see docs/how-to/vtab.md)")
    return vtab_suite(data, tasks)


def _changed(protocol: Protocol, values: Mapping[str, Any]) -> Protocol:
    try:
        return protocol.at(**values)
    except VitreousError as error:
        raise VitreousError(f"these settings do not fit together: {error}") from None


def _check(
    mode: Mode,
    seeds: int | None,
    seed: int,
    data_seed: int,
    sweep: bool,
    steps: int | None,
    batch_size: int | None,
    changes: Mapping[str, str],
    keep_weights: bool,
    machine: Machine,
) -> None:
    for option, value in (("--seeds", seeds), ("--steps", steps), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise VitreousError(f"{option} {value}: must be at least 1")
    for option, value in (("--seed", seed), ("--data-seed", data_seed)):
        if value < 0:
            raise VitreousError(f"{option} {value}: must be 0 or more")
    if machine.workers is not None and machine.workers < 0:
        raise VitreousError(f"--workers {machine.workers}: must be 0 (none) or more")
    if mode == "linear":
        pointless = {
            "--seeds": seeds is not None, "--sweep": sweep, "--steps": steps is not None, "--set": bool(changes),
            "--keep-weights": keep_weights, "--seed": seed != 0,
        }  # fmt: skip
        for option, there in pointless.items():
            if there:
                raise VitreousError(f"{option} is for --mode finetune: closed form takes no steps and draws nothing at random")
    for name, text in changes.items():
        if name in _NOT_SET:
            raise VitreousError(f"--set {name}={text}: {_NOT_SET[name]}")
        if not name.startswith("model."):
            parse_value(name, text)  # a typo is an error now, not after the first task's data is read
    if sweep and "lr" in changes:
        raise VitreousError(f"--sweep chooses the learning rate, and --set lr={changes['lr']} gives it; leave one of them out")
