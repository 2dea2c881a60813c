"""The page of `vitreous similar`: queries and clusters with the thumbnails of their images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError, one_line
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.inference.distributed_pass import read_contents
from vitreous.inference.feature_file import FeatureFile
from vitreous.inference.thumbnails import embed_thumbnail
from vitreous.reports.images import EmbeddedImage, Figure
from vitreous.reports.render import render

UNREADABLE = EmbeddedImage("data:,")


@dataclass(frozen=True)
class Section:
    """A query, if it is one: a row of the file, a file or its bytes; and rows with what is said of each."""

    title: str
    about: str
    query: int | Path | bytes | None
    rows: Sequence[tuple[int, str]]


def render_sections(file: FeatureFile, data: str | None, sections: Sequence[Section], verdict: str) -> str:
    """One self-contained page. Thumbnails are read from `data`, or else from where the images were embedded."""
    every = {row for section in sections for row, _ in section.rows}
    thumbnails = read_thumbnails(file, data, every | {section.query for section in sections if isinstance(section.query, int)})

    def figure(row: int, said: str) -> Figure:
        label = " + ".join(file.label_names(row))
        return Figure(thumbnails[row] or UNREADABLE, alt=file.id(row), caption=file.id(row), label=label, about=said)

    shown = []
    for section in sections:
        query = section.query
        image = thumbnails.get(query) if isinstance(query, int) else query and embed_thumbnail(query, section.title)
        asked = [Figure(image, alt=section.title, caption="query")] if image else []
        figures = [figure(row, said) for row, said in section.rows]
        shown.append({"title": section.title, "about": section.about, "asked": asked, "figures": figures})
    facts = f"{file.path.name} · {file.place('data')} · {file.place('checkpoint') or 'cached features'}"
    return render_images("Similar images", verdict, facts, shown, "The number under an image is its cosine similarity.")


def render_images(title: str, verdict: str, facts: str, sections: Sequence[Mapping[str, Any]], legend: str) -> str:
    """One self-contained page. Of each section: title, about, the figures asked for and those found."""
    return render(
        "images.html", title=title, verdict=verdict, verdict_style="plain", facts=facts, sections=sections, legend=legend
    )


def read_thumbnails(file: FeatureFile, data: str | None, rows: Iterable[int]) -> dict[int, EmbeddedImage | None]:
    """The images of these rows, small. An id that the data does not have is an error: it would be another image's row."""
    name = data or file.place("data")
    try:
        dataset = open_data(name)
    except VitreousError as error:
        raise VitreousError(f"{file.path}: its images are not found ({one_line(error, 120)}); name them with --data") from error
    found: dict[int, EmbeddedImage | None] = {}
    for split in file.splits:
        own = [row for row in sorted(rows) if file.split(row) == split]
        if not own:
            continue
        source, ids, numbers = dataset.source(split), [file.id(row) for row in own], file.numbers[own]
        if isinstance(source, Source):
            numbers = _find_numbers(source, ids, numbers)
        contents = read_contents(source, numbers, ids, np.flatnonzero(numbers >= 0).tolist())
        found |= {own[place]: embed_thumbnail(content, ids[place]) for place, content in contents}
        missing = [id for row, id in zip(own, ids, strict=True) if row not in found]
        if missing:
            raise VitreousError(
                f"{file.path}: {missing[0]} is not in {name}, or cannot be read; name the data it was made of with --data, "
                f"or embed it again"
            )
    return found


def _find_numbers(source: Source, ids: Sequence[str], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where these ids are now: images may have come and gone since. -1 for one that is not there."""
    if all(number < len(source) and source.id(number) == id for number, id in zip(numbers.tolist(), ids, strict=True)):
        return numbers
    places = {source.id(number): number for number in range(len(source))}
    return np.array([places.get(id, -1) for id in ids], np.int64)
