"""Torch as an engine: the model's own modules, as they are or compiled."""

from __future__ import annotations

import os
import shutil

import torch
from torch import Tensor, nn

from vitreous.core.device import PrecisionName
from vitreous.core.errors import VitreousError
from vitreous.inference.engines.engine import EngineName
from vitreous.inference.engines.onednn_linear import onednn_linear
from vitreous.inference.outputs import FeatureKind, Outputs, OutputsModule
from vitreous.models.build import Model


class TorchEngine:
    """The reference: every other engine must give its numbers."""

    name: EngineName = "torch"

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        with onednn_linear(precision):
            return _run_module(OutputsModule(model, kind), model, images, precision)


class CompileEngine:
    """torch.compile; the first batch of each shape compiles for a while."""

    name: EngineName = "compile"

    def __init__(self) -> None:
        self._compiled: dict[tuple[int, FeatureKind], nn.Module] = {}

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        key = (id(model), kind)
        if key not in self._compiled:
            check_compiler(images.device)
            module = OutputsModule(model, kind)
            module.compile()
            self._compiled[key] = module
        return _run_module(self._compiled[key], model, images, precision)


def _run_module(module: nn.Module, model: Model, images: Tensor, precision: PrecisionName) -> Outputs:
    like = next(model.parameters())
    with torch.autocast(like.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits, features = module(images.to(like))
    return Outputs(logits.float().cpu(), features.float().cpu())


def check_compiler(device: torch.device | str) -> None:
    if torch.device(device).type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise VitreousError("--engine compile needs a C++ compiler, and none was found; install g++, or use --engine torch")
