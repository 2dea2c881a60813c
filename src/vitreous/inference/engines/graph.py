"""A torch model as an ONNX graph: input `images` (B, C, H, W), outputs `logits`, then `features`; B is free.

The graph is traced (the TorchScript exporter). torch.export, the newer way, took three times as long (ViT-S/16: 14 s against
4.5 s) and did not translate relative positions; docs/decisions.md has the figures. Tracing writes down whatever the example
did, so an exported file is run at other batch sizes before it is believed (export/check.py).
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.errors import VitreousError, one_line
from vitreous.inference.engines.replaced_linear import ReplacedLinear
from vitreous.inference.eval_mode import eval_mode
from vitreous.inference.outputs import FeatureKind, OutputsModule
from vitreous.models.build import Model
from vitreous.models.config import Size
from vitreous.models.positions import FactorisedPositions, LearnedPositions, RelativePositions, SineCosinePositions
from vitreous.models.vit import ViT

OPSET = 17  # the first with layer normalisation as one operation
INPUT, OUTPUTS = "images", ("logits", "features")
MOST_BYTES = 2_000_000_000  # of one protobuf message

_TRACED_BATCH = 2  # not 1, which broadcasts


class BareGraph(NamedTuple):
    """A graph whose weights are inputs, and the arrays for them by name: the model's own memory, which an engine shares."""

    content: bytes
    weights: dict[str, np.ndarray]


def export_bare_graph(model: Model, size: Size, kind: FeatureKind = "head") -> BareGraph:
    """As `export_graph`, for an engine in this process: the weights are neither copied nor limited to 2 GB."""
    with ReplacedLinear(_flat_linear):
        content = _trace(model, size, kind, dynamic_size=False, with_weights=False)
    return BareGraph(content, {f"model.{name}": tensor.contiguous().numpy() for name, tensor in model.state_dict().items()})


def _flat_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """On (B N, D) it becomes Gemm, which reads weights as torch stores them. MatMul needs a transposed copy."""
    product = F.linear(input.reshape(-1, weight.shape[1]), weight, bias)
    return product.reshape(-1, *map(int, input.shape[1:-1]), len(weight))  # only the first axis grows with the batch


def export_graph(model: Model, size: Size, kind: FeatureKind = "head", *, dynamic_size: bool = False) -> bytes:
    """The model as it computes now, for images of this size; with `dynamic_size`, of any that its patches divide.

    The last layer is computed only for the tokens that the head reads.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if 4 * parameters > MOST_BYTES:
        raise VitreousError(
            f"{model.config.name}: its weights take {4 * parameters / 1e9:.1f} GB, and one ONNX graph holds at most 2 GB"
        )
    return _trace(model, size, kind, dynamic_size=dynamic_size, with_weights=True)


def _trace(model: Model, size: Size, kind: FeatureKind, *, dynamic_size: bool, with_weights: bool) -> bytes:
    lean, model_lean = isinstance(model, ViT), getattr(model, "lean", False)
    like = next(model.parameters())
    example = torch.zeros(_TRACED_BATCH, model.config.channels, *size).to(like)
    axes = {0: "batch", 2: "height", 3: "width"} if dynamic_size else {0: "batch"}
    buffer = io.BytesIO()
    try:
        fixed = contextlib.nullcontext() if dynamic_size else _positions_for(model, size)
        with eval_mode(model), torch.no_grad(), fixed, warnings.catch_warnings(), _quiet_exporter():
            warnings.simplefilter("ignore")
            if lean:
                model.lean = True
            torch.onnx.export(
                OutputsModule(model, kind),
                (example,),
                buffer,  # type: ignore[arg-type]
                input_names=[INPUT],
                output_names=list(OUTPUTS),
                dynamic_axes={INPUT: axes, **{name: {0: "batch"} for name in OUTPUTS}},
                opset_version=OPSET,
                export_params=with_weights,
                do_constant_folding=with_weights,
                dynamo=False,
            )
    except VitreousError:
        raise
    except Exception as error:
        raise VitreousError(f"{model.config.name}: cannot be written as an ONNX graph ({one_line(error, 200)})") from error
    finally:
        if lean:
            model.lean = model_lean
    return _keep_zero_padding(buffer.getvalue())


@contextlib.contextmanager
def _positions_for(model: Model, size: Size) -> Iterator[None]:
    """Position tables resized to this size once, here: in the graph they are constants."""
    if not isinstance(model, ViT):
        yield
        return
    grid, changed = model.config.grid_of(size), []
    for module in model.modules():
        name = "resized" if isinstance(module, RelativePositions) else "forward"
        if isinstance(module, (RelativePositions, LearnedPositions, FactorisedPositions, SineCosinePositions)):
            table = getattr(module, name)(grid)
            setattr(module, name, lambda grid, table=table: table)
            changed.append((module, name))
    try:
        yield
    finally:
        for module, name in changed:
            delattr(module, name)


class _quiet_exporter:
    """The exporter logs what it folds; nobody can act on that."""

    def __enter__(self) -> None:
        self.log = logging.getLogger("torch.onnx")
        self.level = self.log.level
        self.log.setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        self.log.setLevel(self.level)


def _keep_zero_padding(content: bytes) -> bytes:
    """Zeros before a max pool, as BiT's root has them, stay zeros.

    onnxruntime 1.31 merges a padding of exactly 0 into the pool behind it, whose own padding is minus infinity: features of
    R50x1 were wrong by 0.1. The smallest normal number instead of 0 is not merged, and is 0 for every sum.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(content)
    pooled = {node.input[0] for node in model.graph.node if node.op_type == "MaxPool"}
    pads = [node for node in model.graph.node if node.op_type == "Pad" and node.output[0] in pooled]
    if not pads:
        return content
    value = numpy_helper.from_array(np.array(np.finfo(np.float32).tiny), "nearly_zero")
    constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}
    for pad in pads:
        given = constants[pad.input[2]].attribute[0].t if len(pad.input) > 2 and pad.input[2] else None
        if given is None or not numpy_helper.to_array(given).any():
            del pad.input[2:]
            pad.input.append(value.name)
    model.graph.initializer.append(value)
    return model.SerializeToString()
