"""onnxruntime and OpenVINO as a user of timm has them: on its model, exported by `torch.onnx.export`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vitreous.bench.models import IMAGES, load_peer
from vitreous.bench.race import Work

ENGINES = {"onnxruntime": "onnx", "openvino": "openvino"}  # and the engine of ours that uses it
PRECISIONS = {"onnxruntime": ("float32", "int8"), "openvino": ("float32", "bfloat16")}
_FILE, _INT8 = "timm.onnx", "timm-int8.onnx"


def export_step(work: Work) -> Callable[[], None]:
    """Writes the files while it is built: in a process of its own, whose memory counts for nobody."""
    folder = Path(work.folder)
    model, _ = load_peer("timm", folder)
    images = torch.load(folder / IMAGES, weights_only=True)
    torch.onnx.export(
        model.eval(), (images,), folder / _FILE, input_names=["images"], output_names=["logits"], dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
    )  # fmt: skip
    if work.precision == "int8":
        _quantise(folder)
    return lambda: None


def _quantise(folder: Path) -> None:
    """onnxruntime's dynamic int8. The exporter's shape annotations contradict what it infers: they are removed first."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    graph = onnx.load(folder / _FILE)
    del graph.graph.value_info[:]
    bare = folder / "bare.onnx"
    onnx.save(graph, bare, save_as_external_data=True, location="bare.bin")
    quantize_dynamic(bare, folder / _INT8)


def load_exported(work: Work) -> Callable[[Tensor], Tensor]:
    path = Path(work.folder) / (_INT8 if work.precision == "int8" else _FILE)
    return _load_onnxruntime(path) if work.library == "onnxruntime" else _load_openvino(path, work)


def _load_onnxruntime(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _load_openvino(path: Path, work: Work) -> Callable[[Tensor], Tensor]:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time, as all contenders have
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "bf16" if work.precision == "bfloat16" else "f32",  # or it would choose bfloat16 itself
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda images: torch.from_numpy(compiled([images.numpy()])[0])
