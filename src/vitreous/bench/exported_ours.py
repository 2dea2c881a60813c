"""Our int8 files, as `vitreous convert --int8` quantises them, without its search for layers to keep: weights are random."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from vitreous.bench.models import CHECKPOINT, IMAGES
from vitreous.bench.race import Work
from vitreous.classifier import load

_FILES = {"vitreous onnx": "vitreous-int8.onnx", "vitreous openvino": "vitreous-int8.xml"}


def exported_file(work: Work) -> Path:
    return Path(work.folder) / _FILES[work.engine]


def write_exported(work: Work) -> None:
    from vitreous.export.export_run import make_graph
    from vitreous.export.int8 import check_quantisable, write_int8
    from vitreous.inference.engines.metadata import ExportInfo

    folder = Path(work.folder)
    clf = load(folder / CHECKPOINT)
    check_quantisable(clf)
    size = clf.evaluation_size
    info = ExportInfo(dataclasses.replace(clf.checkpoint, tensors={}), size, False, "int8")
    images = torch.load(folder / IMAGES, weights_only=True)
    write_int8(make_graph(clf, size, dynamic_size=False), info, images, exported_file(work))
