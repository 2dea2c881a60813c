"""What an engine is, what the engines are called, and whether they are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, Protocol

from torch import Tensor

from vitreous.core.device import PrecisionName
from vitreous.core.errors import VitreousError
from vitreous.data.option_types import EngineOption as EngineOption
from vitreous.inference.outputs import FeatureKind, Outputs
from vitreous.models.build import Model

EngineName = Literal["torch", "compile", "onnx", "openvino"]

# What each of them imports; torch is always there.
_NEEDS: dict[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "nncf": ("nncf",),
}


class Engine(Protocol):
    """Computes outputs of preprocessed images (B, C, H, W). It may keep what it made of a model for the next batch."""

    @property
    def name(self) -> EngineName: ...

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        """Without gradients; `model` is in eval mode, and on its device where the engine is torch's."""
        ...


def is_torch(engine: Engine) -> bool:
    """Whether it computes with the model's own modules, so that they must be on the device."""
    return engine.name in ("torch", "compile")


def missing_packages(engine: str) -> list[str]:
    return [name for name in _NEEDS.get(engine, ()) if find_spec(name) is None]


def check_engine(engine: str, option: str = "--engine") -> None:
    """Refuses one that is not installed, before anything is loaded, with the line to type."""
    if missing := missing_packages(engine):
        raise VitreousError(
            f"{option} {engine}: needs {', '.join(missing)}, which is not installed; run: pip install 'vitreous[export]'"
        )
