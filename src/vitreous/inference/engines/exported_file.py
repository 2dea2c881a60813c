"""An exported file as a model: .onnx runs in onnxruntime, .xml in OpenVINO, each without the torch model.

A file's classifier has its modules on the meta device: they say what the architecture is and have no memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.core.device import PrecisionName
from vitreous.core.errors import VitreousError
from vitreous.core.files import did_you_mean_path
from vitreous.core.hashing import hash_file
from vitreous.inference.engines.engine import EngineName, check_engine
from vitreous.inference.engines.metadata import FORMAT, decode_metadata
from vitreous.inference.engines.onnx_engine import open_session, run_session
from vitreous.inference.engines.openvino_engine import compile_graph, read_graph, run_compiled
from vitreous.inference.outputs import FeatureKind, Outputs
from vitreous.models.build import Model

SUFFIXES: dict[str, EngineName] = {".onnx": "onnx", ".xml": "openvino"}


def is_exported(source: str | Path) -> bool:
    """Whether its name is that of an exported file."""
    return Path(source).suffix.lower() in SUFFIXES


def refuse_exported(source: str | Path, command: str) -> None:
    """For commands that need a model's weights."""
    if is_exported(source):
        raise VitreousError(f"{source}: an exported file only runs; {command} needs the checkpoint that it was made from")


class FileEngine:
    """Runs one file, whatever the model."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            hint = did_you_mean_path(path) or "`vitreous convert CHECKPOINT NAME.onnx` makes one"
            raise VitreousError(f"{path}: no such file; {hint.rstrip()}")
        self.path, self.name = path, SUFFIXES[path.suffix.lower()]
        check_engine(self.name, f"{path}: engine")
        self._loaded: Any
        if self.name == "onnx":
            self._loaded = open_session(path, str(path))
            self.info = decode_metadata(self._loaded.get_modelmeta().custom_metadata_map, path)
        else:
            if not path.with_suffix(".bin").is_file():
                raise VitreousError(f"{path}: its weights, {path.with_suffix('.bin').name}, are not beside it; copy both")
            graph = read_graph(path, str(path))
            self.info = decode_metadata(_read_rt_info(graph), path)
            self._loaded = compile_graph(graph, str(path))

    def run(self, model: Model, images: Tensor, kind: FeatureKind, precision: PrecisionName) -> Outputs:
        self.check(kind, precision)
        size = (images.shape[2], images.shape[3])
        if size != self.info.size and not self.info.dynamic_size:
            raise VitreousError(
                f"{self.path}: takes images of {self.info.size[0]} x {self.info.size[1]} pixels, not {size[0]} x {size[1]}; "
                f"export it with --dynamic-size, or with --image-size"
            )
        run = run_session if self.name == "onnx" else run_compiled
        return run(self._loaded, images, str(self.path))

    def check(self, kind: FeatureKind, precision: PrecisionName) -> None:
        """Refuses what a file cannot give."""
        if kind != "head":
            raise VitreousError(f"{self.path}: an exported file has only its head's features; leave out --pool and --tokens")
        if precision != "float32":
            raise VitreousError(f"{self.path}: its precision was decided when it was exported; leave out --precision")

    def hash(self) -> str:
        """Stands for the weights, which cannot be read out of it."""
        weights = self.path if self.name == "onnx" else self.path.with_suffix(".bin")
        return hash_file(weights)


def _read_rt_info(graph: Any) -> dict[str, str]:
    if not graph.has_rt_info(["vitreous", "format"]) or graph.get_rt_info(["vitreous", "format"]).astype(str) != FORMAT:
        return {}
    return {name: value.astype(str) for name, value in graph.get_rt_info(["vitreous"]).astype(dict).items()}
