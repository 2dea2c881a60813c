"""`vitreous similar` as a whole: the nearest images of an embedded set, or its clusters, as a table and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.core.device import choose_device
from vitreous.core.distributed import World
from vitreous.core.errors import NonFiniteOutput, VitreousError, check_at_least, one_line
from vitreous.core.files import write_text
from vitreous.core.output_dir import check_outside, check_writable, find_data_folder
from vitreous.core.table import table
from vitreous.data.transforms.parse import Preprocess
from vitreous.inference.batches import batches, decode_images
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption, check_engine
from vitreous.inference.feature_cache import weights_hash
from vitreous.inference.feature_file import FeatureFile
from vitreous.inference.image_list import STDIN, NamedImage, image_list
from vitreous.inference.kmeans import kmeans
from vitreous.inference.nearest_neighbours import Floats, nearest_neighbours
from vitreous.inference.runner import LoadedModel, Runner, default_batch_size
from vitreous.inference.similar_page import Section, render_sections
from vitreous.models.config import Size
from vitreous.models.token_merging import set_token_merging


@dataclass(frozen=True, kw_only=True)
class SimilarOptions:
    """What is looked for and where; checked when it is made, before anything is loaded."""

    file: Path
    images: Sequence[str]
    top: int
    clusters: int | None
    seed: int
    out: Path | None
    data: str | None  # None: as recorded
    checkpoint: str | None  # None: as recorded
    device: str
    engine: EngineOption = "torch"

    def __post_init__(self) -> None:
        check_at_least(1, top=self.top, clusters=self.clusters)
        check_at_least(0, seed=self.seed)
        check_engine(self.engine)
        if bool(self.images) == (self.clusters is not None):
            raise VitreousError("name images to find similar ones, or give --clusters K; one of the two")
        if self.out is not None:
            if self.out.suffix.lower() != ".html":
                raise VitreousError(f"--out {self.out}: a page is written; give it a name that ends in .html")
            check_outside(self.out, find_data_folder(self.data) if self.data else None)
            check_writable("--out", self.out)


@dataclass(frozen=True)
class Match:
    """An image of the file, and how similar it is: the cosine of the angle between its features and the query's."""

    row: int
    id: str
    split: str
    labels: tuple[str, ...]
    similarity: float

    def record(self) -> dict[str, Any]:
        return {"id": self.id, "split": self.split, "labels": self.labels, "similarity": self.similarity}

    def cells(self) -> tuple[str, str, float]:
        return self.id, " + ".join(self.labels) or "-", round(self.similarity, 4)


@dataclass(frozen=True)
class SimilarImages:
    """For each query the most similar images of the file, best first."""

    matches: Mapping[str, tuple[Match, ...]]
    notes: tuple[str, ...]
    out: str | None = None
    exit_code: int = 0

    def text(self) -> str:
        headings = ("image", "label", "similarity")
        tables = [table(headings, [match.cells() for match in found], title=name) for name, found in self.matches.items()]
        return "\n\n".join([*tables, *([f"{self.out}: the same with thumbnails"] if self.out else [])])

    def records(self) -> Iterator[dict[str, Any]]:
        for query, found in self.matches.items():
            yield {"query": query, "similar": [match.record() for match in found]}


@dataclass(frozen=True)
class Cluster:
    number: int
    size: int
    label: str | None  # the most frequent one, and
    share: float  # of how many of its labelled images
    representatives: tuple[Match, ...]  # nearest the centre first

    def record(self) -> dict[str, Any]:
        found = [match.record() for match in self.representatives]
        return {"cluster": self.number, "size": self.size, "label": self.label, "share": self.share, "representatives": found}


@dataclass(frozen=True, eq=False)
class ImageClusters:
    """Clusters of all images of the file, the largest first."""

    clusters: tuple[Cluster, ...]
    assignments: NDArray[np.int64]  # (n,): number of the cluster of each row of the file
    notes: tuple[str, ...]
    out: str | None = None
    exit_code: int = 0

    def text(self) -> str:
        rows = [
            (each.number, each.size, each.label, f"{each.share:.0%}" if each.label else "-", each.representatives[0].id)
            for each in self.clusters
        ]
        drawn = table(("cluster", "images", "most frequent label", "share", "nearest the centre"), rows)
        return drawn + (f"\n\n{self.out}: representative images of each" if self.out else "")

    def records(self) -> Iterator[dict[str, Any]]:
        return (cluster.record() for cluster in self.clusters)


def run_similar(options: SimilarOptions, load: Callable[[str, Size], LoadedModel]) -> SimilarImages | ImageClusters:
    """`load` gives a checkpoint at an image size: it is called where a query is not in the file."""
    file = FeatureFile(options.file)
    if file.values.ndim != 2:
        raise VitreousError(f"{options.file}: holds the patch tokens of each image; embed the images without --tokens")
    if not len(file):
        raise VitreousError(f"{options.file}: holds no images")
    try:
        return _cluster(options, file) if options.clusters is not None else _search(options, file, load)
    except NonFiniteOutput as error:
        raise VitreousError(f"{options.file}: its {error}; embed the images again") from error


def _match(file: FeatureFile, row: int, similarity: float) -> Match:
    return Match(row, file.id(row), file.split(row), file.label_names(row), similarity)


def _write_page(options: SimilarOptions, file: FeatureFile, sections: Sequence[Section], verdict: str) -> str | None:
    if options.out is not None:
        write_text(options.out, render_sections(file, options.data, sections, verdict))
    return None if options.out is None else str(options.out)


# Queries ---------------------------------------------------------------------------------------------------------------


def _search(options: SimilarOptions, file: FeatureFile, load: Callable[[str, Size], LoadedModel]) -> SimilarImages:
    rows, images = _resolve_queries(options, file)
    vectors, notes = _embed_queries(options, file, images, load) if images else (np.zeros((0, file.values.shape[1])), ())
    queries = np.concatenate([np.asarray(vectors, np.float32), file.values[[*rows.values()]]])
    found = nearest_neighbours(queries, file.values, options.top + 1)  # one more: an image is not its own neighbour
    matches = {}
    names = [*(image.path for image in images), *rows]
    for name, near, similarities in zip(names, found.rows.tolist(), found.similarities.tolist(), strict=True):
        others = [pair for pair in zip(near, similarities, strict=True) if pair[0] != rows.get(name)]
        matches[name] = tuple(_match(file, row, similarity) for row, similarity in others[: options.top])
    contents = {image.path: Path(image.path) if image.content is None else image.content for image in images}
    sections = [
        Section(name, "", contents.get(name, rows.get(name)), [(m.row, f"{m.similarity:.3f}") for m in found_of])
        for name, found_of in matches.items()
    ]
    out = _write_page(options, file, sections, f"The most similar of {len(file):,} images")
    return SimilarImages(matches, notes, out)


def _resolve_queries(options: SimilarOptions, file: FeatureFile) -> tuple[dict[str, int], list[NamedImage]]:
    """The rows of queries that name images of the file, and the other images."""
    rows: dict[str, int] = {}
    words = []
    for word in options.images:
        row = None if word == STDIN or Path(word).exists() else file.find(word)
        if row is not None:
            rows[word] = row
        elif word == STDIN or Path(word).exists() or any(mark in word for mark in "*?["):
            words.append(word)
        else:
            raise VitreousError(f"{word}: no such image, and no id of {options.file}; check the path")
    return rows, list(image_list(words)) if words else []


def _embed_queries(
    options: SimilarOptions, file: FeatureFile, images: Sequence[NamedImage], load: Callable[[str, Size], LoadedModel]
) -> tuple[Floats, tuple[str, ...]]:
    """The features of images in the way that the file's were made."""
    clf, about = _load_recorded(options, file, load), file.about
    set_token_merging(clf.model, about.get("merge_tokens", 0))
    preprocess, device = Preprocess(about["preprocess"], about["channels"]), choose_device(options.device)
    alone, size = World(0, 1, torch.device(device)), default_batch_size(preprocess, device)
    said = choose_engine(clf, options.engine, world=alone, precision=about["precision"], batch_size=size, kind=about["kind"])
    found = []
    with Runner(clf.model, device, about["precision"], lean=True, kind=about["kind"], engine=clf.engine) as runner:
        decoded = decode_images(iter(images), preprocess, workers=0)
        for batch in batches(decoded, size):
            pixels = []
            for image in batch:
                if image.pixels is None:
                    raise VitreousError(f"{image.path}: {image.error}")
                pixels.append(image.pixels)
            found.append(runner.run(torch.stack(pixels)).features.numpy())
    return np.concatenate(found), (*clf.notes, *said)


def _load_recorded(options: SimilarOptions, file: FeatureFile, load: Callable[[str, Size], LoadedModel]) -> LoadedModel:
    if not {"weights", "config", "preprocess", "channels", "precision", "kind"} <= file.about.keys():
        raise VitreousError(f"{options.file}: does not say how its features were made; make it with `vitreous embed`")
    name = options.checkpoint or file.place("checkpoint")
    if not name:
        raise VitreousError(f"{options.file}: does not say where its checkpoint is; name it with --checkpoint")
    height, width = file.about["config"]["image_size"]
    try:
        clf = load(name, (height, width))
    except VitreousError as error:
        if options.checkpoint is not None:
            raise
        raise VitreousError(
            f"{options.file}: its checkpoint is not found ({one_line(error, 120)}); name it with --checkpoint"
        ) from error
    if weights_hash(clf) != file.about["weights"]:
        remedy = "name the one it was made with" if options.checkpoint else "name the right one with --checkpoint"
        raise VitreousError(f"{options.file}: its features come from other weights than those of {name}; {remedy}")
    return clf


# Clusters --------------------------------------------------------------------------------------------------------------


def _cluster(options: SimilarOptions, file: FeatureFile) -> ImageClusters:
    count = options.clusters or 0
    if count > len(file):
        raise VitreousError(f"--clusters {count}: {options.file} has {len(file):,} images; choose a smaller number")
    found = kmeans(file.values, count, options.seed)
    sizes = np.bincount(found.assignments, minlength=count)
    order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    numbers = np.zeros(count, np.int64)
    numbers[order] = np.arange(1, len(order) + 1)
    clusters = []
    for number, cluster in enumerate(order, start=1):
        rows = np.flatnonzero(found.assignments == cluster)
        nearest = rows[np.argsort(found.distances[rows], kind="stable")[: options.top]]
        near = nearest_neighbours(found.centres[cluster : cluster + 1], file.values[nearest], len(nearest))
        pairs = zip(nearest[near.rows[0]].tolist(), near.similarities[0].tolist(), strict=True)
        matches = tuple(_match(file, row, similarity) for row, similarity in pairs)
        labels = Counter(label for row in rows.tolist() for label in file.labels(row))
        best, most = labels.most_common(1)[0] if labels else (None, 0)
        label = None if best is None else file.classes[best]
        clusters.append(Cluster(number, len(rows), label, most / max(1, labels.total()), matches))
    sections = [
        Section(
            f"Cluster {each.number}",
            f"{each.size:,} images" + (f", {each.share:.0%} of them {each.label}" if each.label else ""),
            None,
            [(match.row, f"{match.similarity:.3f}") for match in each.representatives],
        )
        for each in clusters
    ]
    empty = count - len(order)
    notes = (f"{empty:,} of {count:,} clusters have no image: there are fewer different ones",) if empty else ()
    out = _write_page(options, file, sections, f"{len(clusters):,} clusters of {len(file):,} images")
    return ImageClusters(tuple(clusters), numbers[found.assignments], notes, out)
