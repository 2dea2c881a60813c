"""onnxruntime as an engine: a graph made of the model on its first batch, or a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.core.device import PrecisionName
from vitreous.core.errors import VitreousError, one_line
from vitreous.inference.engines.engine import EngineName
from vitreous.inference.engines.graph import INPUT, OUTPUTS, BareGraph, export_bare_graph
from vitreous.inference.outputs import FeatureKind, Outputs
from vitreous.models.build import Model
from vitreous.models.config import Size

_FATAL = 4  # of onnxruntime's levels of logging: errors are raised as ours


class OnnxEngine:
    """Keeps one session for each image size and kind of features."""

    name: EngineName = "onnx"

    def __init__(self) -> None:
        self._sessions: dict[tuple[int, Size, FeatureKind], tuple[Any, BareGraph]] = {}  # a session reads the graph's arrays

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        key = (id(model), (images.shape[2], images.shape[3]), kind)
        if key not in self._sessions:
            graph = export_bare_graph(model, key[1], kind)
            self._sessions[key] = open_session(graph, model.config.name), graph
        return run_session(self._sessions[key][0], images, model.config.name)


def open_session(source: BareGraph | Path, what: str) -> Any:
    """An onnxruntime session on the CPU, of a model in memory or of a file, with torch's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Memory of the largest batch would stay; one block per batch costs nothing that could be measured.
    options.enable_cpu_mem_arena = False
    with _raise_as_ours(what, "cannot be read by onnxruntime"):
        content = str(source) if isinstance(source, Path) else _share_weights(source, options)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _share_weights(graph: BareGraph, options: Any) -> bytes:
    """The graph with its weights as initialisers that are elsewhere: in the arrays, which the options hand over."""
    import onnx
    from onnxruntime import OrtValue

    model = onnx.load_model_from_string(graph.content)
    names = [value.name for value in model.graph.input if value.name != INPUT]
    for name in names:
        array = graph.weights[name]
        initializer = model.graph.initializer.add(name=name, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
        initializer.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        initializer.external_data.add(key="location", value="memory")
    images = [value for value in model.graph.input if value.name == INPUT]
    del model.graph.input[:]
    model.graph.input.extend(images)
    options.add_external_initializers(names, [OrtValue.ortvalue_from_numpy(graph.weights[name]) for name in names])
    return bytes(model.SerializeToString())


def run_session(session: Any, images: Tensor, what: str) -> Outputs:
    with _raise_as_ours(what, "onnxruntime cannot run it"):
        logits, features = session.run(list(OUTPUTS), {INPUT: images.float().contiguous().numpy()})
    return Outputs(torch.from_numpy(logits), torch.from_numpy(features))


@contextlib.contextmanager
def _raise_as_ours(what: str, fault: str) -> Iterator[None]:
    """onnxruntime's errors have a class each and nothing in common."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise VitreousError(f"{what}: {fault} ({one_line(error, 200)})") from error
