"""A checkpoint, loaded and ready: model, preprocessing and class names in one object."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.core.errors import NonFiniteOutput, VitreousError
from vitreous.core.files import user_path
from vitreous.core.printable import printable
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.batches import Images, as_sequence, is_single, iterate_batches, preprocess_batch
from vitreous.inference.engines.engine import Engine
from vitreous.inference.engines.exported_file import FileEngine, is_exported, refuse_exported
from vitreous.inference.engines.torch_engine import TorchEngine
from vitreous.inference.outputs import Outputs, concatenate
from vitreous.inference.prediction_sets import PredictionSets, build_prediction_sets
from vitreous.inference.predictions import TopClasses, top_predictions
from vitreous.inference.runner import Runner
from vitreous.models.attention_maps import attention_maps
from vitreous.models.build import Model, build_on_meta, build_with_tensors
from vitreous.models.config import PositionResize, Size
from vitreous.weights.checkpoint import Checkpoint, file_hash
from vitreous.weights.formats import Family
from vitreous.weights.locate import locate
from vitreous.weights.read import read_path
from vitreous.weights.transfer import adapt
from vitreous.weights.write import save_checkpoint

_log = logging.getLogger("vitreous")

Coverage = float | PredictionSets | None  # sets are checked when they are made; who predicts often makes them once


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one image, best first."""

    path: str | None
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    set: tuple[str, ...] | None = None  # with `coverage`: the classes it may have, best first

    @property
    def abstain(self) -> bool:
        """Whether several classes are left, so that none of them should be acted on."""
        return self.set is not None and len(self.set) > 1


class Classifier:
    """Everything that travels with the weights.

    `predict`, `features` and `attention` take paths, Pillow images and uint8 arrays, one or many, and prepare them;
    a float tensor (B, C, H, W) counts as prepared already.
    """

    def __init__(self, checkpoint: Checkpoint, *, copy: bool = True, engine: Engine | None = None) -> None:
        """The model gets weights of its own, so that training it changes no other; without `copy` it takes the checkpoint's.

        `engine` runs it: torch if not given. The model of an exported file, a `FileEngine`, has no weights in memory.
        """
        self.engine: Engine = engine or TorchEngine()
        self._about = dataclasses.replace(checkpoint, tensors={})
        self.preprocess = Preprocess(checkpoint.preprocess, checkpoint.config.channels)
        self.model: Model
        if isinstance(self.engine, FileEngine):
            self.model = build_on_meta(checkpoint.config).eval()
            return
        tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()} if copy else checkpoint.tensors
        self.model = build_with_tensors(checkpoint.config, tensors).eval()

    @property
    def checkpoint(self) -> Checkpoint:
        """What `save` would write: everything that travels with the weights, and the weights as they are now."""
        self._require_weights("to save or change it")
        return dataclasses.replace(self._about, tensors={name: t.detach() for name, t in self.model.state_dict().items()})

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; their numbers, where no names are known."""
        return self._about.classes or tuple(str(i) for i in range(self.config.classes))

    @property
    def names_known(self) -> bool:
        """Whether the classes have names."""
        return self._about.classes is not None

    @property
    def sigmoid(self) -> bool:
        """Whether the classes do not exclude each other: each has a probability of its own."""
        return self._about.outputs == "sigmoid"

    @property
    def conformal(self) -> Mapping[str, Any]:
        """Scores for prediction sets; empty where nothing was calibrated."""
        return self._about.conformal

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
    def predict(
        self, images: str | Path | Image.Image, top: int = 5, batch_size: int = 32, coverage: Coverage = None
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        images: Sequence[Any] | Tensor | np.ndarray[Any, Any],
        top: int = 5,
        batch_size: int = 32,
        coverage: Coverage = None,
    ) -> Any: ...

    def predict(self, images: Images, top: int = 5, batch_size: int = 32, coverage: Coverage = None) -> Any:
        """The `top` most likely classes of each image; one image gives one prediction, several a list.

        With `coverage`, as 0.9, also the set that holds the true class so often, for a classifier that is calibrated.
        """
        if not self.config.classes:
            raise VitreousError(
                f"{self.config.name} has no head, so it gives features but cannot predict; `vitreous fewshot --save` or "
                f"`vitreous finetune` gives it one"
            )
        if top < 1:
            raise VitreousError(f"top={top}: must be at least 1")
        items = as_sequence(images)
        paths = [str(item) if isinstance(item, (str, Path)) else None for item in items]
        outputs = self._run(items, batch_size)
        if not outputs.finite().all():
            raise NonFiniteOutput(f"{self.config.name}: its outputs are not finite (NaN or infinity); its weights are broken")
        sets = build_prediction_sets(self, self.config.name, coverage) if isinstance(coverage, float) else coverage
        own = sets.names(outputs.logits, self.classes) if sets is not None else [None] * len(items)
        best = self.top(outputs.logits, top)
        found = [Prediction(path, *each, members) for path, each, members in zip(paths, best, own, strict=True)]
        return found[0] if is_single(images) else found

    def top(self, logits: Tensor, top: int) -> list[TopClasses]:
        """The `top` most likely classes of each row of logits, best first."""
        return top_predictions(logits, self.classes, top, sigmoid=self.sigmoid)

    def features(self, images: Images, batch_size: int = 32) -> Tensor:
        """What enters the head, (B, D): after the representation layer where there is one."""
        return self._run(images, batch_size).features

    def attention(self, images: Images, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Tensor:
        """Attention probabilities (layers, B, heads, N, N): row i of the last two axes tells where token i looks."""
        self._require_weights("attention")
        return attention_maps(self.model, self.prepare(images), layers, heads)

    def prepare(self, images: Images) -> Tensor:
        """Images of any kind as one preprocessed batch (B, C, H, W), on the model's device and in its precision."""
        prepared = preprocess_batch(self.preprocess, images)
        return prepared if isinstance(self.engine, FileEngine) else prepared.to(next(self.model.parameters()))

    def batches(self, images: Images, batch_size: int = 32) -> Iterator[Tensor]:
        """Images of any kind, prepared, so many at a time: only those are in memory."""
        return (self.prepare(batch) for batch in iterate_batches(self.preprocess, images, batch_size))

    def _run(self, images: Images, batch_size: int) -> Outputs:
        batches = iterate_batches(self.preprocess, images, batch_size)
        with Runner(self.model, lean=True, engine=self.engine) as runner:
            return concatenate(map(runner.run, batches))

    def _require_weights(self, what: str) -> None:
        if isinstance(self.engine, FileEngine):
            raise VitreousError(f"{self.engine.path}: an exported file only runs; {what} needs the checkpoint it was made from")

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
    if is_exported(source):
        return _load_exported(user_path(source), image_size, classes, patch)
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


def _load_exported(path: Path, image_size: int | Size | None, classes: int | None, patch: int | Size | None) -> Classifier:
    """A file that runs without its torch model: what it is cannot be changed, but for the size where it is dynamic."""
    if classes is not None or patch is not None:
        raise VitreousError(f"{path}: an exported file keeps its head and patches; change the checkpoint and export that")
    engine = FileEngine(path)
    checkpoint, size = engine.info.checkpoint, (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None and size != checkpoint.evaluation_size:
        if not engine.info.dynamic_size:
            height, width = engine.info.size
            raise VitreousError(f"{path}: takes images of {height} x {width} pixels only; export it with --dynamic-size")
        checkpoint = dataclasses.replace(checkpoint, preprocess=str(Preprocess(checkpoint.preprocess).at(*size)))
    return Classifier(checkpoint, engine=engine)


def read_checkpoint(source: str | Path) -> Checkpoint:
    """A checkpoint at rest, from a path or a name; what a name's catalogue entry knows is added."""
    refuse_exported(source, "this")
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
