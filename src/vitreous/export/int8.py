"""Eight-bit graphs: products with weights in int8, accuracy measured before and after, sensitive layers kept in float.

An .onnx file is quantised by onnxruntime (weights per channel beforehand, activations while it runs), an .xml by NNCF (both
beforehand, calibrated on images, as a transformer). Which layers are sensitive is measured: each kind of layer is left in float
in turn, and those whose absence from int8 brings the logits closest to the float ones are kept in float first.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError, one_line
from vitreous.core.progress import progress_bar, say
from vitreous.evaluation.fewshot_tasks import open_task
from vitreous.evaluation.intervals import share_interval
from vitreous.evaluation.predictions import predict_dataset
from vitreous.export.write import write_onnx, write_openvino
from vitreous.inference.engines.exported_file import SUFFIXES, FileEngine
from vitreous.inference.engines.metadata import ExportInfo, with_metrics
from vitreous.inference.engines.openvino_engine import read_graph
from vitreous.inspection.images import data_images
from vitreous.models.vit import ViT

CALIBRATION = 128  # images
FEWEST = 16
# Kinds of layers that may stay in float, as their nodes are called.
LAYERS = ("attention/qkv", "attention/out", "mlp/up", "mlp/down")


@dataclass(frozen=True)
class Accuracy:
    right: int
    n: int

    @property
    def top1(self) -> float:
        return self.right / self.n

    def text(self) -> str:
        low, high = share_interval(self.right, self.n)
        return f"{100 * self.top1:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True)
class Quantised:
    """What int8 costs on held-out images."""

    data: str
    before: Accuracy
    after: Accuracy
    tolerance: float  # points
    kept: tuple[str, ...]  # kinds of layers in float

    @property
    def loss(self) -> float:
        """Points of top-1 accuracy; negative where int8 happens to be better."""
        return 100 * (self.before.top1 - self.after.top1)

    @property
    def within(self) -> bool:
        return self.loss <= self.tolerance + 1e-9

    def text(self) -> str:
        # Layers are kept until these very images are within the tolerance, so that their accuracy flatters a little.
        kept = f"; in float, as chosen by these images: {', '.join(self.kept)}" if self.kept else ""
        verdict = "within" if self.within else "NOT within"
        return (
            f"int8: top-1 on {self.before.n:,} held-out images of {self.data} {self.before.text()} in float32, "
            f"{self.after.text()} in int8, {abs(self.loss):.2f} points {'lost' if self.loss >= 0 else 'gained'} "
            f"({verdict} --tolerance {self.tolerance:g}){kept}"
        )


def check_quantisable(clf: Classifier) -> None:
    if not clf.config.classes or not isinstance(clf.model, ViT):
        raise VitreousError(f"--int8: is for ViTs with a head, whose accuracy can be measured; {clf.config.name} is none")


def quantise_graph(clf: Classifier, graph: bytes, info: ExportInfo, data: str, tolerance: float, path: Path) -> Quantised:
    """Write the int8 graph to `path`; whether it is good enough is for the caller to act on."""
    task = open_task(data, bad_images="skip")
    count = task.train.count()
    if count is not None and count < FEWEST:
        raise VitreousError(f"--int8 {data}: {count} training images are too few to calibrate on; give {FEWEST} or more")
    reading = data_images(task.train, clf.preprocess, CALIBRATION, 32, seed=0)
    images = torch.stack([image.pixels for image in reading.images])
    before = _measure(clf, task.test)
    order: Sequence[str] | None = None
    kept: tuple[str, ...] = ()
    while True:
        quantised = _quantise(graph, info, images, path, kept)
        _write(quantised, replace_precision(info, None), path)
        after = _measure(Classifier(info.checkpoint, engine=FileEngine(path)), task.test)
        found = Quantised(data, before, after, tolerance, kept)
        if found.within or len(kept) == len(LAYERS):
            break
        say(f"int8 loses {found.loss:.2f} points; looking for layers to keep in float")
        order = order or _most_sensitive(clf, graph, info, images, path)
        kept = tuple(order[: len(kept) + 1])
    _write(quantised, replace_precision(info, after), path)
    return found


def replace_precision(info: ExportInfo, after: Accuracy | None) -> ExportInfo:
    info = info._replace(precision="int8")
    return info if after is None else with_metrics(info, {"int8_top1": after.top1, "int8_images": after.n})


def _measure(clf: Classifier, data: Any) -> Accuracy:
    predictions = predict_dataset(clf, data, bad_images="skip", title=f"accuracy with {clf.engine.name}")
    right = predictions.right()[predictions.labelled()]
    return Accuracy(int(right.sum()), len(right))


def _most_sensitive(clf: Classifier, graph: bytes, info: ExportInfo, images: Tensor, path: Path) -> tuple[str, ...]:
    """Kinds of layers, that first which brings logits closest to those of float32 when it alone stays in float."""
    some = images[:32]
    with torch.no_grad():
        expected = clf.model(some)
    distance = {}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        trial = Path(folder) / path.name
        for layer in LAYERS:
            write_int8(graph, info, images, trial, (layer,))
            logits = FileEngine(trial).run(clf.model, some, "head", "float32").logits
            distance[layer] = float((logits - expected).square().mean())
    return tuple(sorted(LAYERS, key=lambda layer: distance[layer]))


def write_int8(graph: bytes, info: ExportInfo, images: Tensor, path: Path, kept: Sequence[str] = ()) -> None:
    """The graph in int8, to an .onnx or .xml file. `images` calibrate the latter; layers that are `kept` stay in float."""
    _write(_quantise(graph, info, images, path, kept), info, path)


def _quantise(graph: bytes, info: ExportInfo, images: Tensor, path: Path, kept: Sequence[str]) -> bytes | Any:
    """An ONNX graph, or a model of OpenVINO's, by what `path` ends in."""
    engine = SUFFIXES[path.suffix.lower()]
    try:
        return _quantise_onnx(graph, kept) if engine == "onnx" else _quantise_openvino(graph, images, kept)
    except VitreousError:
        raise
    except Exception as error:  # of two libraries, each with errors of its own
        raise VitreousError(f"{info.checkpoint.config.name}: {engine} cannot quantise it ({one_line(error, 200)})") from error


def _write(quantised: bytes | Any, info: ExportInfo, path: Path) -> None:
    (write_onnx if SUFFIXES[path.suffix.lower()] == "onnx" else write_openvino)(quantised, info, path)


def _quantise_onnx(graph: bytes, kept: Sequence[str]) -> bytes:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(graph)
    del model.graph.value_info[:]  # shapes that the quantiser would find to differ
    excluded = [node.name for node in model.graph.node if any(f"/{layer}/" in node.name for layer in kept)]
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises to run a tool of its own first
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "int8.onnx"
            quantize_dynamic(
                model,
                out,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=excluded,
                extra_options={"MatMulConstBOnly": True},
            )
            return out.read_bytes()
    finally:
        root.setLevel(level)


def _quantise_openvino(graph: bytes, images: Tensor, kept: Sequence[str]) -> Any:
    import nncf

    nncf.set_log_level(logging.ERROR)
    scope = nncf.IgnoredScope(patterns=[f".*/{layer}/.*" for layer in kept], validate=False)
    with _silent_rich(), progress_bar("calibrating int8", None) as advance:

        def read(image: Tensor) -> NDArray[np.float32]:
            advance(1)
            return image[None].numpy()

        return nncf.quantize(
            read_graph(graph, "int8"),
            nncf.Dataset(images, read),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(images),
            ignored_scope=scope,
        )


@contextlib.contextmanager
def _silent_rich() -> Iterator[None]:
    """NNCF draws bars on rich's own console, which is standard output: they would stand among the JSON of --json."""
    console = rich.get_console()
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
