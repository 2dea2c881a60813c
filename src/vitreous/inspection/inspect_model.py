"""Inspect a model: its weights, statistics over many images, and attention maps of a few.

Images come one after another and are run as they come; those for a closer look are kept. So every image is decoded once, and
of the others nothing stays in memory but their numbers (see statistics.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.core.progress import progress_bar
from vitreous.data.transforms.denormalise import denormalise
from vitreous.inference.predictions import TopClasses
from vitreous.inference.runner import Runner
from vitreous.inspection.attention_rollout import class_activation, compute_rollout
from vitreous.inspection.data_map import DataMap
from vitreous.inspection.distance import uniform_distance
from vitreous.inspection.embedding_filters import filters
from vitreous.inspection.eval_mode import eval_mode
from vitreous.inspection.file_names import unique_stems
from vitreous.inspection.gradient_weights import compute_gradient_rollout
from vitreous.inspection.head_view import class_token_attention
from vitreous.inspection.patches import component_colours, compute_patch_components, compute_patch_features
from vitreous.inspection.position_embeddings import position_similarity
from vitreous.inspection.statistics import Statistics, compute_statistics
from vitreous.models.config import Size
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT

GUESSES = 5
FEW = 16  # images below which means say little; the paper takes 128 (appendix D.7)
_BYTES = 1 << 26  # of one layer's attention in a batch: some layers' worth of copies are in memory beside it
_MOST = 32
_CLOSE = 4  # images looked at closely at once: the backward pass keeps what enters every block


@dataclass(frozen=True, eq=False)
class InputImage:
    """An image as it comes in."""

    name: str  # for people: its path, or its id in the data
    pixels: Tensor  # (C, H, W), prepared


@dataclass(frozen=True, eq=False)
class ImageInspection:
    """A closer look at one image."""

    name: str
    stem: str  # of its files
    pixels: NDArray[np.uint8]  # (height, width, 3), as the model got it
    classes: tuple[str, ...]  # the most likely, best first; none without a head
    probabilities: tuple[float, ...]
    maps: Mapping[str, NDArray[np.float32]]
    """By the folder they are written to, (rows, columns): `rollout` and `gradient_rollout`, and of every layer and head
    `attention`, (layers, heads, rows, columns); of a ResNet `class_activation`."""
    patches: NDArray[np.float32] | None = None  # features of its patches, (rows, columns, D); a ResNet has none
    components: NDArray[np.float32] | None = None  # of these, over all images looked at, (rows, columns, 3)
    colours: NDArray[np.uint8] | None = None  # the same for people


@dataclass(frozen=True, eq=False)
class Inspection:
    clf: Classifier
    image_size: Size  # of the images it was given: what their preprocessing makes, which need not be what it was built for
    looks: tuple[ImageInspection, ...]
    survey: Statistics | None  # None: it has no attention
    filters: NDArray[np.float32] | None  # (k, height, width, channels)
    positions: NDArray[np.float32] | None  # (rows, columns, rows, columns)
    surveyed: tuple[str, ...] = ()  # names of the images that means are over
    notes: tuple[str, ...] = ()
    data_map: DataMap | None = None
    component_share: float | None = None  # of the variance of patch features, in three principal components

    @property
    def has_patches(self) -> bool:
        """Whether its filters are those of patches, and not of a first convolution."""
        return isinstance(self.clf.model, ViT) and self.clf.config.trunk is None and not self.clf.config.stem

    @property
    def grid(self) -> Size:
        return self.clf.config.grid_of(self.image_size)

    @property
    def tokens(self) -> int:
        return count_tokens(self.clf.model, self.image_size) if isinstance(self.clf.model, ViT) else 0

    @property
    def uniform_distance(self) -> float:
        """The attention distance of uniform attention."""
        return uniform_distance(self.grid, self.clf.config.step, self.clf.config.prefix_tokens)


def inspect_model(
    clf: Classifier,
    images: Iterable[InputImage],
    *,
    closely: int,
    apart: Sequence[InputImage] = (),
    batch_size: int | None = None,
    count: int | None = None,
) -> Inspection:
    """Statistics are over `images` (about `count` of them, for the progress bar). The first `closely` of them are looked at
    closely, or instead of them those in `apart`. The model stays where it is.
    """
    notes: list[str] = []
    images = iter(images)
    first = next(images, None)
    if first is None:
        raise VitreousError("no images to look at; give at least one")
    images = itertools.chain([first], images)
    image_size = first.pixels.shape[1], first.pixels.shape[2]
    kept: list[InputImage] = []
    names: list[str] = []
    found: Statistics | None = None
    with eval_mode(clf) as model:
        if isinstance(model, ViT):
            size = batch_size or choose_batch_size(model, image_size)
            found = compute_statistics(clf, _batches(clf, _keep_first(images, names, kept, closely), size, count))
            if found.images < FEW:
                notes.append(f"means over so few images ({found.images}) say little; give more of them, or --data DATA")
        else:
            notes.append(
                f"{clf.config.name} is a ResNet: it has no attention between patches, no tokens and no positions to look at"
            )
            kept = list(itertools.islice(images, closely))
        if isinstance(model, ResNet) and not model.config.classes:
            notes.append(f"{clf.config.name} has no head, so there are no class activation maps")
            looks: tuple[ImageInspection, ...] = ()
        else:
            looks = inspect_images(clf, [*apart] or kept, batch_size)
    kernels, *why = _compute_if_present(filters, clf)
    notes += why
    positions: NDArray[np.float32] | None = None
    if isinstance(clf.model, ViT):
        positions, *why = _compute_if_present(position_similarity, clf)
        notes += why
    share: float | None = None
    if patches := [look.patches for look in looks if look.patches is not None]:
        components, share = compute_patch_components(np.stack(patches))
        parts = zip(looks, components, component_colours(components), strict=True)
        looks = tuple(replace(look, components=own, colours=colours) for look, own, colours in parts)
    return Inspection(clf, image_size, looks, found, kernels, positions, tuple(names), tuple(notes), component_share=share)


def _compute_if_present(
    make: Callable[[Classifier], NDArray[np.float32]], clf: Classifier
) -> tuple[NDArray[np.float32] | None] | tuple[None, str]:
    """What some models do not have, as a table of positions; then why."""
    try:
        return (make(clf),)
    except VitreousError as error:
        return None, str(error)


def count_tokens(model: ViT, image_size: Size) -> int:
    rows, columns = model.config.grid_of(image_size)
    return model.prefix_tokens + rows * columns


def choose_batch_size(model: ViT, image_size: Size) -> int:
    """Images at once, by what one layer's attention takes."""
    return max(1, min(_MOST, _BYTES // (4 * model.config.heads * count_tokens(model, image_size) ** 2)))


def _keep_first(images: Iterator[InputImage], names: list[str], kept: list[InputImage], closely: int) -> Iterator[InputImage]:
    """Images on their way: the name of each is noted, and the first few are kept."""
    for image in images:
        names.append(image.name)
        if len(kept) < closely:
            kept.append(image)
        yield image


def _batches(clf: Classifier, images: Iterator[InputImage], size: int, count: int | None) -> Iterator[Tensor]:
    with progress_bar("attention statistics", count) as advance:
        while part := list(itertools.islice(images, size)):
            yield clf.prepare(torch.stack([image.pixels for image in part]))
            advance(len(part))


# A closer look ----------------------------------------------------------------------------------------------------------------


def inspect_images(clf: Classifier, images: Sequence[InputImage], batch_size: int | None = None) -> tuple[ImageInspection, ...]:
    size = min(_CLOSE, batch_size or _CLOSE)
    if isinstance(clf.model, ViT) and images:
        size = min(size, choose_batch_size(clf.model, (images[0].pixels.shape[1], images[0].pixels.shape[2])))
    stems = unique_stems([image.name for image in images])
    looks: list[ImageInspection] = []
    with progress_bar("a closer look", len(images)) as advance:
        for at in range(0, len(images), size):
            part = images[at : at + size]
            looks += _inspect_batch(clf, part, stems[at : at + size])
            advance(len(part))
    return tuple(looks)


def _inspect_batch(clf: Classifier, images: Sequence[InputImage], stems: Sequence[str]) -> Iterator[ImageInspection]:
    batch = clf.prepare(torch.stack([image.pixels for image in images]))
    best = [TopClasses((), ())] * len(batch)
    if clf.config.classes:
        with Runner(clf.model) as runner:
            best = clf.top(runner.run(batch).logits, GUESSES)
    maps = {name: values.detach().float().cpu().numpy() for name, values in _compute_maps(clf.model, batch)}
    patches = compute_patch_features(clf.model, batch).cpu().numpy() if isinstance(clf.model, ViT) else None
    for row, (image, stem) in enumerate(zip(images, stems, strict=True)):
        own = {name: values[row] for name, values in maps.items()}
        pixels, features = denormalise(clf.preprocess, image.pixels), patches[row] if patches is not None else None
        yield ImageInspection(image.name, stem, pixels, *best[row], own, features)


def _compute_maps(model: nn.Module, batch: Tensor) -> Iterator[tuple[str, Tensor]]:
    """As `ImageInspection.maps`, images first."""
    if isinstance(model, ResNet):
        yield "class_activation", class_activation(model, batch)
    else:
        yield "rollout", compute_rollout(model, batch)
        yield "gradient_rollout", compute_gradient_rollout(model, batch)
        yield "attention", class_token_attention(model, batch).transpose(0, 1)
