"""Graph and metadata to a file: NAME.onnx, or NAME.xml with its weights in NAME.bin."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.core.files import flush_to_disk, make_part
from vitreous.inference.engines.metadata import ExportInfo, encode_metadata
from vitreous.inference.engines.openvino_engine import read_graph


def write_onnx(graph: bytes, info: ExportInfo, path: Path) -> None:
    import onnx

    model = onnx.load_model_from_string(graph)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, encode_metadata(info))
    model.producer_name = "vitreous"
    path.write_bytes(model.SerializeToString())


def write_openvino(graph: bytes | Any, info: ExportInfo, path: Path) -> None:
    """`graph` is an ONNX graph or a model of OpenVINO's."""
    import openvino

    model = read_graph(graph, info.checkpoint.config.name) if isinstance(graph, bytes) else graph
    for name, value in encode_metadata(info).items():
        model.set_rt_info(value, ["vitreous", name])
    openvino.save_model(model, path, compress_to_fp16=False)  # by default it would halve the weights' digits


@contextlib.contextmanager
def kept_on_success(target: Path) -> Iterator[Path]:
    """A path of the same name to write to, in a folder of its own; its files take their places on leaving without an error.

    Of an .xml the weights come first, and an older .xml goes before them: whoever finds an .xml finds its weights.
    """
    folder = Path(make_part(target, tempfile.mkdtemp))
    try:
        yield folder / target.name
        files = sorted(folder.iterdir())  # .bin before .xml
        for file in files:
            flush_to_disk(file)
        if len(files) > 1:
            target.unlink(missing_ok=True)
        for file in files:
            os.replace(file, target.with_name(file.name))
        flush_to_disk(target.parent)
    except OSError as error:
        raise VitreousError(f"{target}: cannot write ({error.strerror or error}); nothing was changed") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
