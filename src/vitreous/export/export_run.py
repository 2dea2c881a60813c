"""`vitreous convert` to .onnx and .xml: the graph is made, written aside, run against the original, and kept if they agree."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.export.check import Agreement, compare_engines, read_check_images
from vitreous.export.dynamic_size import any_size
from vitreous.export.int8 import Quantised, check_quantisable, quantise_graph
from vitreous.export.write import kept_on_success, write_onnx, write_openvino
from vitreous.inference.engines.engine import check_engine
from vitreous.inference.engines.exported_file import FileEngine
from vitreous.inference.engines.graph import export_graph
from vitreous.inference.engines.metadata import ExportInfo
from vitreous.models.config import Size
from vitreous.models.vit import ViT
from vitreous.weights.checkpoint import Checkpoint

GraphFormat = Literal["onnx", "openvino"]
_SUFFIXES: dict[GraphFormat, str] = {"onnx": ".onnx", "openvino": ".xml"}


@dataclass(frozen=True)
class Exported:
    """A file and how it compares; where they differ, no file was kept."""

    path: Path
    agreement: Agreement  # of the float32 graph
    notes: tuple[str, ...]
    quantised: Quantised | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.agreement.agrees and (self.quantised is None or self.quantised.within) else 1


class _Differs(Exception):
    """Takes the unfinished file along."""


def check_target(target: Path, format: GraphFormat) -> None:
    """Refuses a wrong name, or an engine that is not installed, before anything is read."""
    suffix = _SUFFIXES[format]
    if target.suffix.lower() != suffix:
        raise VitreousError(f"{target}: --format {format} writes a file that ends in {suffix}; name it so")
    if target.is_dir():
        raise VitreousError(f"{target}: is a folder; name a file")
    check_engine(format, "--format")


def export_checkpoint(
    checkpoint: Checkpoint,
    target: Path,
    format: GraphFormat,
    *,
    dynamic_size: bool = False,
    check: str | None = None,
    int8: str | None = None,
    tolerance: float = 0.5,
) -> Exported:
    clf = Classifier(checkpoint, copy=False)
    if int8 is not None:
        check_quantisable(clf)
    quantised: Quantised | None = None
    size = checkpoint.evaluation_size
    data, images, notes = read_check_images(clf, check)
    info = ExportInfo(dataclasses.replace(checkpoint, tensors={}), size, dynamic_size, "float32")
    graph = make_graph(clf, size, dynamic_size)
    agreements: list[Agreement] = []
    try:
        with kept_on_success(target) as part:
            (write_onnx if format == "onnx" else write_openvino)(graph, info, part)
            engine = FileEngine(part)
            agreements = [compare_engines(clf, engine, each, data) for each in _sizes(clf, images, dynamic_size)]
            if not all(agreement.agrees for agreement in agreements):
                raise _Differs("differs from the original")
            if int8 is not None:
                quantised = quantise_graph(clf, graph, info, int8, tolerance, part)
                if not quantised.within:
                    raise _Differs(f"loses more than {tolerance:g} points in int8")
    except _Differs as why:
        notes = (*notes, f"{target}: not written, because it {why}")
    worst = max(agreements, key=lambda agreement: max(agreement.logits, agreement.features))
    return Exported(target, worst, notes, quantised)


def make_graph(clf: Classifier, size: Size, dynamic_size: bool) -> bytes:
    if not dynamic_size:
        return export_graph(clf.model, size)
    with any_size(clf.model):
        return export_graph(clf.model, size, dynamic_size=True)


def _sizes(clf: Classifier, images: torch.Tensor, dynamic_size: bool) -> list[torch.Tensor]:
    """The images as they are, and where the size is free, enlarged by a step and by two."""
    if not dynamic_size:
        return [images]
    step = clf.config.step if isinstance(clf.model, ViT) else (32, 32)
    larger = (images.shape[2] + step[0], images.shape[3] + 2 * step[1])
    return [images, torch.nn.functional.interpolate(images, larger, mode="bilinear")]
