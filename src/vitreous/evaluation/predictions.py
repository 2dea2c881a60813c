"""A model's predictions for every image of a data set, from which every metric of an evaluation is computed.

    predictions = predict_dataset(load("runs/pets"), open_data("pets").source("test"))
    predictions.right().mean()

Each rank runs its share, and all of them get every row, in the order of the data. So an example is counted once, whatever
the batch size and the world size.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.classifier import Classifier
from vitreous.core.device import PrecisionName as Precision
from vitreous.core.distributed import World, all_gather
from vitreous.core.errors import VitreousError, first_few
from vitreous.data.loading.loader import Batch
from vitreous.data.source import Policy, Source, Stream
from vitreous.data.transforms.mixup import one_hot
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.class_mapping import Among, ClassMapping, align_classes
from vitreous.evaluation.counts import Counts
from vitreous.evaluation.evaluators import ClassificationEvaluator, ScoredLogits
from vitreous.inference.distributed_pass import distributed_pass, image_name
from vitreous.inference.outputs import Outputs
from vitreous.inference.prediction_sets import PredictionSets
from vitreous.inference.predictions import class_probabilities, top_classes
from vitreous.inference.runner import Runner, default_batch_size

TOP = 5


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row for each image, in the order of the data, without those that could not be read."""

    where: str
    split: str
    classes: tuple[str, ...]  # of the model, which the numbers below refer to
    ids: tuple[str, ...]
    numbers: NDArray[np.int64]  # (n,) position of each image in its source; of a stream, how many items came before it
    labels: tuple[tuple[int, ...], ...]  # model classes that count as right, the guess first if it is one; () where none do
    top: NDArray[np.int64]  # (n, k) the most probable classes, best first; of equals the lower number first
    probabilities: NDArray[np.float32]  # (n, k)
    truth: NDArray[np.float32]  # (n,) probability of the most probable of its own labels; nan where it has none
    losses: NDArray[np.float32]  # (n,) -log truth, or of sigmoid outputs the sum over all classes; nan where it has none
    features: NDArray[np.float32] | None  # (n, D) what enters the head, if asked
    bad: tuple[tuple[str, str], ...]  # (place, why) of images that could not be read
    seconds: float
    counts: Counts
    given: tuple[tuple[int, ...], ...] = ()  # the data's own labels, before they were mapped to the model's classes
    mapping: ClassMapping = field(default_factory=lambda: ClassMapping((), (), ()))
    set_sizes: NDArray[np.int64] | None = None  # (n,) classes in its prediction set, if asked
    covered: NDArray[np.bool_] | None = None  # (n,) whether one of them is its own
    model_seconds: float = 0.0  # of `seconds`, those in which the model ran
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def labelled(self) -> NDArray[np.bool_]:
        return np.array([bool(own) for own in self.labels], bool)

    def right(self) -> NDArray[np.bool_]:
        """Whether the most probable class is one of its labels; an image without any is not right."""
        return np.array([bool(own) and own[0] == guess for own, guess in zip(self.labels, self.top[:, 0], strict=True)], bool)

    def best(self, row: int, names: Sequence[str] | Mapping[int, str], most: int = TOP) -> list[tuple[str, float, bool]]:
        """The most probable classes of a row by name, each with its probability and whether it is one of the labels."""
        top = zip(self.top[row, :most].tolist(), self.probabilities[row, :most].tolist(), strict=True)
        return [(names[k], probability, k in self.labels[row]) for k, probability in top]


def predict_dataset(
    clf: Classifier,
    data: Source | Stream,
    *,
    preprocess: Preprocess | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    world: World | None = None,
    bad_images: Policy = "stop",
    features: bool = False,
    sets: PredictionSets | None = None,
    mapping: ClassMapping | None = None,
    flip: bool = False,
    title: str = "evaluate",
) -> Predictions:
    """Run the model over all images. `batch_size` counts what one process runs at once. `flip`: and over mirror images.

    Without a `mapping`, the data's classes are found among the model's by name. The classifier comes back as it was.
    """
    world = world or World(0, 1, torch.device(device))
    preprocess = preprocess or clf.preprocess
    if preprocess.random:
        raise VitreousError(f"--preprocess {str(preprocess)!r} is random; evaluation needs a fixed string")
    if isinstance(data, Source):
        _check_ids(data, [data.id(index) for index in range(len(data))])
    mapping = mapping or natural_mapping(clf, data)
    accuracy = ClassificationEvaluator(clf.classes, preprocess, world, split=data.split, mistakes=0)
    evaluator = _PredictionsEvaluator(clf, data, mapping, accuracy, sets, keep_features=features)
    with Runner(clf.model, world.device, precision, lean=True, flip=flip, engine=clf.engine) as runner:
        passed = distributed_pass(
            data,
            preprocess,
            lambda batch: evaluator.update(batch, runner.run(batch.images)),
            batch_size=batch_size or default_batch_size(preprocess, world.device),
            workers=workers,
            world=world,
            bad_images=bad_images,
            title=title,
        )
    _check_ids(data, passed.ids)
    rows, seconds = zip(*all_gather(world, (evaluator.result(), runner.seconds)), strict=True)
    # All ranks' rows, put back into the order of the data.
    parts_given, parts_labels, *columns = zip(*([part for part in rows if part[0]] or rows[:1]), strict=True)
    given, labels = (list(itertools.chain.from_iterable(parts)) for parts in (parts_given, parts_labels))
    top, probabilities, truth, losses, sizes, covered, *kept = (np.concatenate(parts)[passed.order] for parts in columns)
    return Predictions(
        where=data.where,
        split=data.split,
        classes=clf.classes,
        ids=passed.ids,
        numbers=passed.numbers,
        labels=tuple(labels[row] for row in passed.order),
        top=top,
        probabilities=probabilities,
        truth=truth,
        losses=losses,
        set_sizes=sizes if sets is not None else None,
        covered=covered if sets is not None else None,
        features=kept[0] if kept else None,
        bad=passed.bad,
        seconds=passed.seconds,
        counts=accuracy.all_counts(),
        given=tuple(given[row] for row in passed.order),
        mapping=mapping,
        model_seconds=max(seconds),
        notes=passed.notes,
    )


def natural_mapping(clf: Classifier, data: Source | Stream, among: Among = "all") -> ClassMapping:
    """The data's classes among the model's, by name."""
    return align_classes(
        data.classes,
        clf.classes,
        where=f"{data.where} {data.split}",
        there=classes_there(data),
        model_named=clf.names_known,
        among=among,
    )


def classes_there(data: Source | Stream) -> tuple[int, ...] | None:
    """The classes that have images, where that is known before they are read."""
    return tuple(np.flatnonzero(data.counts()).tolist()) if isinstance(data, Source) else None


def repeated_names(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _check_ids(data: Source | Stream, ids: Iterable[str]) -> None:
    """Two images with one id cannot be told apart in the list of predictions; most often it is one
    image that was packed or listed twice, and it would be counted twice."""
    if twice := repeated_names(ids):
        raise VitreousError(
            f"{data.where} {data.split}: {len(twice):,} images have the name of another ({first_few(twice, 3)}) and would be "
            f"counted twice; rename them or leave them out"
        )


class _PredictionsEvaluator:
    """One rank's rows; of the logits only what the metrics need is kept."""

    def __init__(
        self,
        clf: Classifier,
        data: Source | Stream,
        mapping: ClassMapping,
        accuracy: ClassificationEvaluator,
        sets: PredictionSets | None,
        keep_features: bool,
    ) -> None:
        self.clf, self.data, self.mapping, self.accuracy, self.sets = clf, data, mapping, accuracy, sets
        self._top = min(TOP, mapping.competing)
        # Classes that do not compete.
        self._silent = torch.ones(len(clf.classes), dtype=torch.bool)
        self._silent[list(mapping.among) if mapping.among is not None else slice(None)] = False
        self._keep_features = keep_features
        self._given: list[tuple[int, ...]] = []
        self._labels: list[tuple[int, ...]] = []
        self._parts: list[tuple[Tensor, ...]] = []

    def update(self, batch: Batch, outputs: Outputs) -> None:
        finite, logits = outputs.finite(), outputs.logits
        if not finite.all():
            place = batch.ids[int(finite.int().argmin())]
            raise VitreousError(
                f"{image_name(self.data, place)}: the model's output is not finite (NaN or infinity); the checkpoint is "
                f"broken, or needs --precision float32"
            )
        if self.mapping.among is not None:
            logits = logits.masked_fill(self._silent, float("-inf"))
        top = top_classes(logits, self._top)
        labels = [self._in_model(own, int(guess)) for own, guess in zip(batch.labels, top[:, 0], strict=True)]
        truths = one_hot(labels, len(self.clf.classes))
        if self.clf.sigmoid:
            probabilities = logits.gather(1, top).sigmoid()
            each = F.binary_cross_entropy_with_logits(logits.masked_fill(self._silent, 0.0), truths, reduction="none")
            losses = each.masked_fill(self._silent, 0.0).sum(dim=1)
            truth = logits.masked_fill(truths == 0, float("-inf")).amax(dim=1).sigmoid()
        else:
            log = logits.log_softmax(dim=1)
            probabilities = log.gather(1, top).exp()
            losses = -log.masked_fill(truths == 0, float("-inf")).amax(dim=1)
            truth = (-losses).exp()
        none = ~truths.any(dim=1)
        truth, losses = truth.masked_fill(none, float("nan")), losses.masked_fill(none, float("nan"))
        self.accuracy.update(replace(batch, labels=tuple(labels)), ScoredLogits(logits, losses))
        self._given += batch.labels
        self._labels += labels
        sizes, covered = torch.zeros(len(logits), dtype=torch.long), torch.zeros(len(logits), dtype=torch.bool)
        if self.sets is not None:
            members = self.sets.members(class_probabilities(logits, sigmoid=self.clf.sigmoid))
            sizes, covered = members.sum(dim=1), (members & (truths > 0)).any(dim=1)
        kept = [outputs.features] if self._keep_features else []
        self._parts.append((top, probabilities, truth, losses, sizes, covered, *kept))

    def _in_model(self, own: Sequence[int], guess: int) -> tuple[int, ...]:
        """The guess first where it is right, so that the confusion has on its diagonal what is right and nothing else."""
        labels = self.mapping.labels(own)
        return (guess, *(label for label in labels if label != guess)) if guess in labels else labels

    def result(self) -> tuple[Any, ...]:
        """The data's labels and the model's, top classes, probabilities, truths, losses, set sizes and whether they
        cover, and features where they are kept."""
        nothing = torch.zeros(0, self._top)
        empty = (nothing.long(), nothing, nothing[:, 0], nothing[:, 0], nothing[:, 0].long(), nothing[:, 0].bool())
        parts = self._parts or [empty]  # few images, many ranks
        return self._given, self._labels, *(torch.cat(part).numpy() for part in zip(*parts, strict=True))
