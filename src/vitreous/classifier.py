"""A checkpoint, loaded and ready: model, preprocessing and class names in one object."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.core.errors import NonFiniteOutput, VitreousError
from vitreous.core.printable import printable
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.batches import Images, as_sequence, is_single, iterate_batches, preprocess_batch
from vitreous.inference.predictions import TopClasses, top_predictions
from vitreous.inference.runner import Outputs, Runner, concatenate
from vitreous.models.attention_maps import attention_maps
from vitreous.models.build import Model, build_with_tensors
from vitreous.models.config import PositionResize, Size
from vitreous.weights.checkpoint import Checkpoint, file_hash
from vitreous.weights.formats import Family
from vitreous.weights.locate import locate
from vitreous.weights.read import read_path
from vitreous.weights.transfer import adapt
from vitreous.weights.write import save_checkpoint

_log = logging.getLogger("vitreous")


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one image, best first."""

    path: str | None
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


class Classifier:
    """Everything that travels with the weights.

    `predict`, `features` and `attention` take paths, Pillow images and uint8 arrays, one or many, and prepare them;
    a float tensor (B, C, H, W) counts as prepared already.
    """

    def __init__(self, checkpoint: Checkpoint, *, copy: bool = True) -> None:
        """The model gets weights of its own, so that training it changes no other; without `copy` it takes the checkpoint's."""
        tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()} if copy else checkpoint.tensors
        self._about = dataclasses.replace(checkpoint, tensors={})
        self.model: Model = build_with_tensors(checkpoint.config, tensors).eval()
        self.preprocess = Preprocess(checkpoint.preprocess, checkpoint.config.channels)

    @property
    def checkpoint(self) -> Checkpoint:
        """What `save` would write: everything that travels with the weights, and the weights as they are now."""
        return dataclasses.replace(self._about, tensors={name: t.detach() for name, t in self.model.state_dict().items()})

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; their numbers, where no names are known."""
        return self._about.classes or tuple(str(i) for i in range(self.config.classes))

    @property
    def sigmoid(self) -> bool:
        """Whether the classes do not exclude each other: each has a probability of its own."""
        return self._about.outputs == "sigmoid"

    @property
    def notes(self) -> tuple[str, ...]:
        """What loading found missing, extra or unsaid, and what it replaced or resized."""
        return self._about.notes

    @property
    def evaluation_size(self) -> Size:
        """Height and width of the images that every command gives the model."""
        return self._about.evaluation_size

    def preprocessing_note(self, preprocess: Preprocess | None = None) -> str:
        """How a command prepares images, for its reader: the checkpoint's own string unless another one was asked for."""
        guessed = preprocess in (None, self.preprocess) and self._about.preprocess_guessed
        return f"preprocessing {preprocess or self.preprocess}{' (guessed)' if guessed else ''}"

    @overload
    def predict(self, images: str | Path | Image.Image, top: int = 5, batch_size: int = 32) -> Prediction: ...
    @overload
    def predict(self, images: Sequence[Any] | Tensor | np.ndarray[Any, Any], top: int = 5, batch_size: int = 32) -> Any: ...

    def predict(self, images: Images, top: int = 5, batch_size: int = 32) -> Any:
        """The `top` most likely classes of each image; one image gives one prediction, several a list."""
        if not self.config.classes:
            raise VitreousError(
                f"{self.config.name} has no head, so it gives features but cannot predict; load it with classes=..."
            )
        if top < 1:
            raise VitreousError(f"top={top}: must be at least 1")
        items = as_sequence(images)
        paths = [str(item) if isinstance(item, (str, Path)) else None for item in items]
        outputs = self._run(items, batch_size)
        if not outputs.finite().all():
            raise NonFiniteOutput(f"{self.config.name}: its outputs are not finite (NaN or infinity); its weights are broken")
        found = [Prediction(path, *best) for path, best in zip(paths, self.top(outputs.logits, top), strict=True)]
        return found[0] if is_single(images) else found

    def top(self, logits: Tensor, top: int) -> list[TopClasses]:
        """The `top` most likely classes of each row of logits, best first."""
        return top_predictions(logits, self.classes, top, sigmoid=self.sigmoid)

    def features(self, images: Images, batch_size: int = 32) -> Tensor:
        """What enters the head, (B, D): after the representation layer where there is one."""
        return self._run(images, batch_size).features

    def attention(self, images: Images, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Tensor:
        """Attention probabilities (layers, B, heads, N, N): row i of the last two axes tells where token i looks."""
        return attention_maps(self.model, self.prepare(images), layers, heads)

    def prepare(self, images: Images) -> Tensor:
        """Images of any kind as one preprocessed batch (B, C, H, W), on the model's device and in its precision."""
        return preprocess_batch(self.preprocess, images).to(next(self.model.parameters()))

    def batches(self, images: Images, batch_size: int = 32) -> Iterator[Tensor]:
        """Images of any kind, prepared, so many at a time: only those are in memory."""
        return (self.prepare(batch) for batch in iterate_batches(self.preprocess, images, batch_size))

    def _run(self, images: Images, batch_size: int) -> Outputs:
        batches = iterate_batches(self.preprocess, images, batch_size)
        with Runner(self.model) as runner:
            return concatenate(map(runner.run, batches))

    def save(self, path: str | Path, format: Family | None = None) -> list[str]:
        """Write the checkpoint; the format is guessed from the name, as `vitreous convert` does."""
        return save_checkpoint(self.checkpoint, Path(path), format)

    def __repr__(self) -> str:
        return f"Classifier({self.config.name}, {self.config.classes} classes, {self.preprocess})"


@torch.inference_mode(False)  # weights made within somebody's inference mode could not be put into a module
def load(
    source: str | Path,
    *,
    image_size: int | Size | None = None,
    classes: int | None = None,
    patch: int | Size | None = None,
    position_resize: PositionResize | None = None,
    keep_representation: bool = False,
) -> Classifier:
    """Load a checkpoint of any kind, by path or by name, ready to use.

    Faithful unless asked: `image_size` only resizes the position embeddings, and only `classes` replaces the head (by
    a zero one) and drops the representation layer. `patch` changes the patch size. `Classifier.notes` tells what was done.

    >>> clf = load("ViT-B/16@imagenet21k", image_size=384, classes=37)
    >>> clf = load("hf:google/vit-base-patch16-224")
    """
    checkpoint = read_checkpoint(source)
    for note in checkpoint.notes:  # what had to be assumed must not pass in silence; what was asked for is in `notes`
        _log.warning("%s", printable(f"{source}: {note}"))
    changed = adapt(
        checkpoint,
        image_size=image_size,
        classes=classes,
        patch=patch,
        position_resize=position_resize,
        keep_representation=keep_representation,
    )
    return Classifier(changed, copy=False)


def read_checkpoint(source: str | Path) -> Checkpoint:
    """A checkpoint at rest, from a path or a name; what a name's catalogue entry knows is added."""
    found = locate(source)
    checkpoint, known = read_path(found.path), dict(found.known)
    if len(known.get("classes", ())) != checkpoint.config.classes:  # a file placed by hand may have another head
        known.pop("classes", None)
    if "preprocess" in known:
        known["preprocess_guessed"] = False
    return dataclasses.replace(checkpoint, **known)


def describe_parent(source: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint made from this one says of where it comes from."""
    path = locate(source).path
    places = [path / part / "model.safetensors" for part in ("", "checkpoint", "checkpoint/best")]
    weights = next((place for place in (*places, path) if place.is_file()), None)
    return {"source": source, "sha256": file_hash(weights) if weights else None, "parent": dict(checkpoint.parent)}
