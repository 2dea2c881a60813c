"""A model on a device in a precision: preprocessed images in, logits and features out.

This is the only place that calls a model outside of training and inspection; what computes it is an engine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.engines.engine import Engine, is_torch
from vitreous.inference.engines.torch_engine import TorchEngine
from vitreous.inference.eval_mode import eval_mode, on_device
from vitreous.inference.outputs import FeatureKind, Outputs, check_feature_kind, concatenate
from vitreous.models.build import Model
from vitreous.models.vit import ViT

# Pixels of a batch on a processor: enough to keep it busy, and small beside the model.
_CPU_PIXELS = 32 * 224 * 224
_MAX_BATCH = 512


class LoadedModel(Protocol):
    """A model and what travels with its weights: a `Classifier`, which is built on this package."""

    model: Model
    preprocess: Preprocess
    engine: Engine

    @property
    def notes(self) -> tuple[str, ...]: ...

    def preprocessing_note(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def sigmoid(self) -> bool: ...

    @property
    def conformal(self) -> Mapping[str, Any]: ...


class Runner:
    """Runs a model while it is open; afterwards the model is where and as it was.

    >>> with Runner(model, device="cuda", precision="bfloat16") as runner:
    ...     outputs = runner.run(images)
    """

    def __init__(
        self,
        model: Model,
        device: torch.device | str | None = None,
        precision: Precision = "float32",
        *,
        lean: bool = False,
        kind: FeatureKind = "head",
        flip: bool = False,
        engine: Engine | None = None,
    ) -> None:
        """Without a device, the model runs where it is.

        `lean` computes the last layer only for the tokens that the head reads. That is faster, and the same numbers up to
        rounding: the last bit may differ, so that each command keeps to one of the two. Features are of this `kind`; of
        another than "head" the logits are not computed, and are the features. With `flip`, outputs are the means of an image's
        and its mirror image's. The `engine` is torch if not given.
        """
        check_feature_kind(model, kind)
        self.model, self.precision, self.lean, self.kind, self.flip = model, precision, lean, kind, flip
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.engine = engine or TorchEngine()
        self.seconds = 0.0
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if is_torch(self.engine):
            self._open.enter_context(on_device(self.model, self.device))
        self._open.enter_context(eval_mode(self.model))
        if self.lean and isinstance(self.model, ViT):
            self._open.callback(setattr, self.model, "lean", self.model.lean)
            self.model.lean = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def run(self, images: Tensor) -> Outputs:
        """Logits and features of preprocessed images (B, C, H, W).

        A batch that proves too large for the device is halved: its free memory changes while others use it.
        """
        began = time.monotonic()
        try:
            return self.run_once(images)
        except torch.OutOfMemoryError:
            # The rest is outside of the handler, whose traceback holds the tensors.
            half = len(images) // 2
        finally:
            self.seconds += time.monotonic() - began
        if not half:
            raise out_of_memory(self.device)
        return concatenate(self.run(part) for part in (images[:half], images[half:]))

    def run_once(self, images: Tensor) -> Outputs:
        """The same at once: a batch that does not fit into memory is an error."""
        outputs = self._pass(images)
        if self.flip:
            mirrored = self._pass(images.flip(-1))
            outputs = Outputs(*((own + other) / 2 for own, other in zip(outputs, mirrored, strict=True)))
        return outputs

    @torch.no_grad()
    def _pass(self, images: Tensor) -> Outputs:
        return self.engine.run(self.model, images, self.kind, self.precision)


def out_of_memory(device: torch.device | str) -> VitreousError:
    return VitreousError(f"one image does not fit into the memory of {device}; use a smaller --image-size")


def default_batch_size(preprocess: Preprocess, device: torch.device | str) -> int:
    """Images at once: more of small ones, and more for an accelerator, which has to be filled."""
    height, width = preprocess.size or (224, 224)
    pixels = _CPU_PIXELS * (1 if torch.device(device).type == "cpu" else 4)
    return max(1, min(_MAX_BATCH, pixels // (height * width)))
