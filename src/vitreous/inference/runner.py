"""A model on a device in a precision: preprocessed images in, logits and features out.

This is the only place that calls a model outside of training and inspection, and where other engines plug in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from vitreous.core.device import PrecisionName as Precision
from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import Model
from vitreous.models.vit import ViT

# Pixels of a batch on a processor: enough to keep it busy, and small beside the model.
_CPU_PIXELS = 32 * 224 * 224
_MAX_BATCH = 512

FeatureKind = Literal["head", "token", "mean", "patches"]
"""What enters the head; or after the final norm the class token, the mean of the patch tokens, or all of these."""


class LoadedModel(Protocol):
    """A model and what travels with its weights: a `Classifier`, which is built on this package."""

    model: Model
    preprocess: Preprocess

    @property
    def notes(self) -> tuple[str, ...]: ...

    def preprocessing_note(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def sigmoid(self) -> bool: ...


class Outputs(NamedTuple):
    """What a model gives for a batch: float32, on the CPU."""

    logits: Tensor
    """(B, C); of a model without a head, the features."""
    features: Tensor
    """(B, D): what enters the head, after the representation layer where there is one."""

    def finite(self) -> Tensor:
        """Which images have logits without NaN or infinity, (B,)."""
        return self.logits.isfinite().all(dim=1)


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
    ) -> None:
        """Without a device, the model runs where it is.

        `lean` computes the last layer only for the tokens that the head reads. That is faster, and the same numbers up to
        rounding: the last bit may differ, so that each command keeps to one of the two. Features are of this `kind`; of
        another than "head" the logits are not computed, and are the features.
        """
        check_feature_kind(model, kind)
        self.model, self.precision, self.lean, self.kind = model, precision, lean, kind
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.seconds = 0.0
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
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

    @torch.no_grad()
    def run_once(self, images: Tensor) -> Outputs:
        """The same in one pass: a batch that does not fit into memory is an error."""
        if isinstance(self.model, ViT) and self.kind != "head":
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                features = _token_features(self.model, images.to(next(self.model.parameters())), self.kind).float().cpu()
            return Outputs(features, features)
        entered: list[Tensor] = []
        hook = self.model.head.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                logits: Tensor = self.model(images.to(next(self.model.parameters())))
        finally:
            hook.remove()
        return Outputs(logits.float().cpu(), entered[0].float().cpu())


def check_feature_kind(model: Model, kind: FeatureKind) -> None:
    """Refuses what the model does not have, before anything is computed."""
    if kind != "head" and not isinstance(model, ViT):
        raise VitreousError(f"{model.config.name} has no tokens; leave out --pool and --tokens")
    if kind == "token" and isinstance(model, ViT) and not model.config.class_token:
        raise VitreousError(f"{model.config.name} has no class token; use --pool mean, or head")


def _token_features(model: ViT, images: Tensor, kind: FeatureKind) -> Tensor:
    """(B, D), or (B, patches, D). A model that normalises what is pooled has no norm for tokens that are not."""
    z_BND, late = model.tokens(images), model.config.norm_after_pool
    z_BND = z_BND if late else model.norm(z_BND)
    patches_BND = z_BND[:, model.prefix_tokens :]
    if kind == "patches":
        return patches_BND
    y_BD = z_BND[:, 0] if kind == "token" else patches_BND.mean(dim=1)
    return model.norm(y_BD) if late and model.config.pooled_width == model.config.width else y_BD


def out_of_memory(device: torch.device | str) -> VitreousError:
    return VitreousError(f"one image does not fit into the memory of {device}; use a smaller --image-size")


def concatenate(outputs: Iterable[Outputs]) -> Outputs:
    """The outputs of several batches as those of one."""
    logits, features = zip(*outputs, strict=True)
    return Outputs(torch.cat(logits), torch.cat(features))


def default_batch_size(preprocess: Preprocess, device: torch.device | str) -> int:
    """Images at once: more of small ones, and more for an accelerator, which has to be filled."""
    height, width = preprocess.size or (224, 224)
    pixels = _CPU_PIXELS * (1 if torch.device(device).type == "cpu" else 4)
    return max(1, min(_MAX_BATCH, pixels // (height * width)))


@contextlib.contextmanager
def on_device(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    """The model on this device; afterwards where it was."""
    before = next(model.parameters()).device
    try:
        model.to(device)
        yield
    finally:
        model.to(before)


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model with dropout off; afterwards each of its modules as it was: a frozen part may be in eval mode already."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
