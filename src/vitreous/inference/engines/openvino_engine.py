"""OpenVINO as an engine: it reads the ONNX graph of a model, or a file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.core.device import PrecisionName, avoid_amx_trap
from vitreous.core.errors import VitreousError, one_line
from vitreous.inference.engines.engine import EngineName
from vitreous.inference.engines.graph import INPUT, BareGraph, export_bare_graph
from vitreous.inference.outputs import FeatureKind, Outputs
from vitreous.models.build import Model
from vitreous.models.config import Size


class OpenvinoEngine:
    """Keeps one compiled model for each image size and kind of features."""

    name: EngineName = "openvino"

    def __init__(self) -> None:
        self._compiled: dict[tuple[int, Size, FeatureKind], tuple[Any, BareGraph]] = {}  # the former reads the graph's arrays

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        key = (id(model), (images.shape[2], images.shape[3]), kind)
        if key not in self._compiled:
            source = export_bare_graph(model, key[1], kind)
            graph = read_graph(source, model.config.name)
            self._compiled[key] = compile_graph(graph, model.config.name), source
        return run_compiled(self._compiled[key][0], images, model.config.name)


@functools.cache
def _core() -> Any:
    avoid_amx_trap()  # before OpenVINO's oneDNN asks for the limit
    import openvino

    return openvino.Core()


def read_graph(source: BareGraph | bytes | Path, what: str) -> Any:
    """An ONNX graph in memory, with or without its weights; an .onnx file, or an .xml file with its .bin beside it."""
    with _raise_as_ours(what, "cannot be read by OpenVINO"):
        if isinstance(source, BareGraph):
            return _share_weights(_core().read_model(source.content), source)
        return _core().read_model(source if isinstance(source, bytes) else str(source))


def _share_weights(graph: Any, source: BareGraph) -> Any:
    """Inputs that stand for weights become constants in the arrays' memory."""
    from openvino import op

    for parameter in graph.get_parameters():
        name = parameter.get_friendly_name()
        if name != INPUT:
            constant = op.Constant(source.weights[name], shared_memory=True)
            for reader in parameter.output(0).get_target_inputs():
                reader.replace_source_output(constant.output(0))
            graph.remove_parameter(parameter)
    graph.validate_nodes_and_infer_types()
    return graph


def compile_graph(graph: Any, what: str) -> Any:
    """For the CPU, in float32 (OpenVINO alone would take bfloat16 where the processor has it), with torch's threads."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    with _raise_as_ours(what, "cannot be compiled by OpenVINO"):
        return _core().compile_model(graph, "CPU", settings)


def run_compiled(compiled: Any, images: Tensor, what: str) -> Outputs:
    with _raise_as_ours(what, "OpenVINO cannot run it"):
        found = compiled(images.float().contiguous().numpy())
        logits, features = (torch.from_numpy(found[index].copy()) for index in (0, 1))
    return Outputs(logits, features)


@contextlib.contextmanager
def _raise_as_ours(what: str, fault: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise VitreousError(f"{what}: {fault} ({one_line(error, 200)})") from error
