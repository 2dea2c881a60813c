"""The engine of a command: by name, or `auto`, which measures once per machine, model and batch size and remembers.

`auto` compares torch with those of onnxruntime and OpenVINO that are installed, in the same precision. torch.compile is not
among them: compiling takes longer than many commands. The answer is kept in <cache>/engines.json, which may be deleted.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from vitreous.core.device import PrecisionName, processor_name
from vitreous.core.distributed import World, broadcast
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.files import beside, cache_dir, locked, write_text
from vitreous.core.hashing import hash_words
from vitreous.core.untrusted_json import read_record
from vitreous.inference.engines.engine import Engine, EngineName, EngineOption, check_engine, missing_packages
from vitreous.inference.engines.exported_file import FileEngine
from vitreous.inference.engines.onnx_engine import OnnxEngine
from vitreous.inference.engines.openvino_engine import OpenvinoEngine
from vitreous.inference.engines.torch_engine import CompileEngine, TorchEngine, check_compiler
from vitreous.inference.outputs import FeatureKind
from vitreous.inference.runner import LoadedModel, Runner
from vitreous.models.config import config_to_json

BUILD: dict[EngineName, Callable[[], Engine]] = {
    "torch": TorchEngine,
    "compile": CompileEngine,
    "onnx": OnnxEngine,
    "openvino": OpenvinoEngine,
}
ROUNDS = 3  # of each engine, taking turns
WORTH = 1.05  # times torch's speed, from which `auto` leaves it


def choose_engine(
    clf: LoadedModel,
    option: EngineOption,
    *,
    world: World,
    precision: PrecisionName,
    batch_size: int,
    kind: FeatureKind = "head",
) -> tuple[str, ...]:
    """Give the model its engine; what is to be said about it."""
    if isinstance(clf.engine, FileEngine):
        return (_keep_file_engine(clf.engine, option, kind, precision),)
    if option == "auto":
        name, note = broadcast(world, _measured(clf, world, precision, batch_size, kind) if world.is_main else None)
        clf.engine = BUILD[name]()
        return (note,)
    named: EngineName = "torch" if option == "eager" else option
    check_engine(named)
    _check_suits(clf, named, world.device, precision)
    clf.engine = BUILD[named]()
    return () if named == "torch" else (f"engine {named}",)


def _keep_file_engine(engine: FileEngine, option: EngineOption, kind: FeatureKind, precision: PrecisionName) -> str:
    engine.check(kind, precision)
    if option not in ("torch", "eager", "auto", engine.name):  # torch is what an option says that was not given
        raise VitreousError(f"--engine {option}: {engine.path} runs in {engine.name} only; leave out --engine")
    return f"{engine.path}: runs in {engine.name}, {engine.info.precision}"


def _check_suits(clf: LoadedModel, name: EngineName, device: torch.device, precision: PrecisionName) -> None:
    """Refuses what would fail later, or silently be something else."""
    if name == "compile":
        check_compiler(device)
    if name in ("torch", "compile"):
        return
    if device.type != "cpu":
        raise VitreousError(f"--engine {name}: runs on the CPU; give --device cpu too, or use --engine torch")
    if precision != "float32":
        raise VitreousError(f"--engine {name}: computes in float32; give --precision float32, or use --engine torch")
    if getattr(clf.model, "merge_tokens", 0):
        raise VitreousError(f"--engine {name}: does not merge tokens; leave out --merge-tokens, or use --engine torch")


# auto ------------------------------------------------------------------------------------------------------------------


def _measured(
    clf: LoadedModel, world: World, precision: PrecisionName, batch_size: int, kind: FeatureKind
) -> tuple[EngineName, str]:
    candidates: list[EngineName] = ["torch"]
    for name in ("onnx", "openvino"):
        try:
            _check_suits(clf, name, world.device, precision)
        except VitreousError as error:
            return "torch", f"engine auto: torch, because {one_line(error).partition(': ')[2].partition(';')[0]} otherwise"
        if not missing_packages(name):
            candidates.append(name)
    if len(candidates) == 1:
        return "torch", "engine auto: torch, the only one installed; for others run: pip install 'vitreous[export]'"
    about = _describe(clf, candidates, precision, batch_size, kind)
    place, key = cache_dir() / "engines.json", hash_words(json.dumps(about))
    speeds = _recall(place, key, candidates)
    remembered = speeds is not None
    if speeds is None:
        speeds = measure_engines(clf, candidates, world.device, batch_size, kind)
        _remember(place, key, speeds)
    best = max(speeds, key=lambda name: speeds[name])
    if speeds[best] < WORTH * speeds["torch"]:
        best = "torch"
    listed = ", ".join(f"{name} {speed:.3g}" for name, speed in sorted(speeds.items(), key=lambda pair: -pair[1]))
    when = "as measured before" if remembered else "measured now"
    return best, f"engine auto: {best}; images/s at batch size {batch_size}, {when}: {listed}"


def measure_engines(
    clf: LoadedModel, names: list[EngineName], device: torch.device, batch_size: int, kind: FeatureKind = "head"
) -> dict[EngineName, float]:
    """Images per second of each, float32, from rounds that take turns. One that cannot run the model is left out."""
    height, width = clf.preprocess.size or clf.model.config.image_size
    images = torch.randn(batch_size, clf.model.config.channels, height, width)
    runners: dict[EngineName, Runner] = {}
    for name in names:
        runner = Runner(clf.model, device, lean=True, kind=kind, engine=BUILD[name]())
        try:
            _time(runner, images)  # warm-up, and building its graph
        except VitreousError:
            continue
        runners[name] = runner
    seconds: dict[EngineName, list[float]] = {name: [] for name in runners}
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            seconds[name].append(_time(runner, images))
    return {name: batch_size / median(times) for name, times in seconds.items()}


def _time(runner: Runner, images: Tensor) -> float:
    with runner:
        began = time.perf_counter()
        runner.run(images)
        return time.perf_counter() - began


def _describe(
    clf: LoadedModel, candidates: list[EngineName], precision: PrecisionName, batch_size: int, kind: FeatureKind
) -> list[Any]:
    """What speeds follow from."""
    from importlib.metadata import version

    versions = [version(name) for name in ("torch", "onnxruntime", "openvino") if not missing_packages(name)]
    machine = [platform.node(), processor_name(), os.cpu_count(), torch.get_num_threads()]
    size = clf.preprocess.size or clf.model.config.image_size
    return [machine, versions, candidates, config_to_json(clf.model.config), size, batch_size, precision, kind]


def _recall(place: Path, key: str, candidates: list[EngineName]) -> dict[EngineName, float] | None:
    found = read_record(place).get(key)
    if not isinstance(found, Mapping) or not isinstance(found.get("torch"), (int, float)):
        return None
    return {name: float(found[name]) for name in candidates if isinstance(found.get(name), (int, float))}


def _remember(place: Path, key: str, speeds: Mapping[EngineName, float]) -> None:
    try:
        with locked(beside(place, ".lock")):
            write_text(place, json.dumps({**read_record(place), key: speeds}, indent=1) + "\n")
    except (OSError, VitreousError):
        return  # it is measured again next time
