"""onnxruntime and OpenVINO as a user of timm has them: on its model, exported by `torch.onnx.export`, float32 or int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vitreous.bench.models import IMAGES, load_peer
from vitreous.bench.race import Work

ENGINES = {"onnxruntime": "onnx", "openvino": "openvino"}  # and the engine of ours that uses it
PRECISIONS = {"onnxruntime": ("float32", "int8"), "openvino": ("float32", "bfloat16", "int8")}
_FLOAT, _INT8 = "timm.onnx", {"onnxruntime": "timm-int8.onnx", "openvino": "timm-int8.xml"}


def write_exported(work: Work) -> None:
    """The file that this contender runs; the float32 one is written once for all."""
    folder = Path(work.folder)
    if not (folder / _FLOAT).exists():
        _export(folder)
    if work.precision == "int8":
        quantise = _quantise_onnxruntime if work.library == "onnxruntime" else _quantise_openvino
        quantise(folder, folder / _INT8[work.library])


def _export(folder: Path) -> None:
    model, _ = load_peer("timm", folder)
    images = torch.load(folder / IMAGES, weights_only=True)
    torch.onnx.export(
        model.eval(), (images,), folder / _FLOAT, input_names=["images"], output_names=["logits"], dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
    )  # fmt: skip


def _quantise_onnxruntime(folder: Path, out: Path) -> None:
    """Dynamic int8. The exporter's shape annotations contradict what the quantiser infers: they are removed first."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    graph = onnx.load(folder / _FLOAT)
    del graph.graph.value_info[:]
    bare = folder / "bare.onnx"
    onnx.save(graph, bare, save_as_external_data=True, location="bare.bin")
    quantize_dynamic(bare, out)


def _quantise_openvino(folder: Path, out: Path) -> None:
    """NNCF's static int8 for transformers, calibrated on the images that outputs are compared on."""
    import nncf
    import openvino

    images = torch.load(folder / IMAGES, weights_only=True)
    calibration = nncf.Dataset([image[None].numpy() for image in images])
    graph = openvino.Core().read_model(folder / _FLOAT)
    openvino.save_model(nncf.quantize(graph, calibration, model_type=nncf.ModelType.TRANSFORMER), out)


def load_exported(work: Work) -> Callable[[Tensor], Tensor]:
    path = Path(work.folder) / (_INT8[work.library] if work.precision == "int8" else _FLOAT)
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
