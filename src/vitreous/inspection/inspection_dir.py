"""Write the result of `inspect` to a folder, atomically.

inspect.json               every number and setting, and the list of files
report.html                the report, self-contained
attention_distance.csv     layer, head, distance in pixels
entropy.csv                layer, head, entropy in bits
token_norms.csv            depth, quarters of the patches' lengths, then each leading token's
token_similarity.csv       depth, similarity of patches, change since the depth before; depth 0 is the embedding
position_similarity.npy    (rows, columns, rows, columns)
filters.npy                (count, height, width, channels)
rollout/IMAGE.npy          (rows, columns), and IMAGE.png, laid over the image
gradient_rollout/          the same, weighted by gradients
class_activation/          of a ResNet, in their place
attention/IMAGE.npy        (layers, heads, rows, columns), float16, and IMAGE.png and .svg, all of them
patch_components/IMAGE.npy (rows, columns, 3): principal components of patch features, and IMAGE.png, as colours
patch_similarity/IMAGE.npy (rows, columns, rows, columns), float16: cosine between patches, and IMAGE.png and .svg
animation/IMAGE.webp       what is looked at, layer by layer
data_map.csv               id, class, x, y
figures/NAME.png, .svg     every figure
"""

from __future__ import annotations

import csv
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.core.files import atomic_folder, flush_to_disk
from vitreous.core.output_dir import check_result_folder
from vitreous.core.printable import escape_formula
from vitreous.core.progress import progress_bar
from vitreous.core.untrusted_json import without_nan
from vitreous.inspection import figures
from vitreous.inspection.animation import animation
from vitreous.inspection.data_map import DataMap
from vitreous.inspection.figures_patches import enlarge_patches
from vitreous.inspection.inspect_model import ImageInspection, Inspection
from vitreous.inspection.inspection_report import look_card, render_inspection_report
from vitreous.inspection.overlay import fit_image, overlay
from vitreous.inspection.patches import compute_patch_similarity, pick_patches

MADE_BY = "vitreous inspect"
NUMBERS, PAGE = "inspect.json", "report.html"
_TABLES = ("attention_distance.csv", "entropy.csv", "token_norms.csv", "token_similarity.csv", "data_map.csv")
_ARRAYS = ("position_similarity.npy", "filters.npy")
_FOLDERS = (
    "rollout", "gradient_rollout", "class_activation", "attention", "patch_components", "patch_similarity", "animation",
    "figures",
)  # fmt: skip
_LEAST = 224  # pixels to which a smaller image is enlarged before anything is laid over it


def check_inspection_dir(out: Path, data: Path | None = None) -> None:
    """Before the long work begins: the folder is new, empty or an earlier inspection, and holds nobody's own work."""
    before = check_result_folder(out, NUMBERS, MADE_BY, (NUMBERS, PAGE, *_TABLES, *_ARRAYS, *_FOLDERS), data)
    if not before:
        return
    known = before.get("files")
    strange = sorted(name for name in _files(out) if not isinstance(known, list) or name not in known)
    if strange:
        raise VitreousError(f"--out {out}: holds other files ({strange[0]!a}), which would be lost; choose a new folder")


def write_inspection_dir(out: Path, found: Inspection, about: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Gives what is in inspect.json. `about` says what was asked for; `began` is when, by `time.monotonic`."""
    with atomic_folder(out) as part:
        _write_numbers(part, found)
        drawn = {
            name: figures.save(make(), part / "figures", name)[0].read_bytes()
            for name, make in _with_progress("figures", list(_figures(found)))
        }
        cards = [_write_image(part, look) for look in _with_progress("images", found.looks)]
        told = {"made_by": MADE_BY, "version": version("vitreous"), **about, **collect_numbers(found)}
        (part / PAGE).write_text(render_inspection_report(found, told, drawn, cards), encoding="utf-8")
        told["files"] = sorted([*_files(part), NUMBERS])
        told["seconds"] = round(time.monotonic() - began, 3)
        (part / NUMBERS).write_text(json.dumps(without_nan(told), indent=1, allow_nan=False) + "\n", encoding="ascii")
        for path in _files(part):
            flush_to_disk(part / path)
        check_inspection_dir(out)  # once more: what somebody has put there in the meantime must not be lost
    return told


def _files(folder: Path) -> Iterator[str]:
    """All files below, as they are called from there."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _with_progress(title: str, items: Sequence[Any]) -> Iterator[Any]:
    with progress_bar(title, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


# Numbers ----------------------------------------------------------------------------------------------------------------------


def collect_numbers(found: Inspection) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it."""
    config = found.clf.config
    told: dict[str, Any] = {
        "model": config.name,
        "parameters": sum(parameter.numel() for parameter in found.clf.model.parameters()),
        "image_size": list(found.image_size),
        "classes": config.classes,
        "preprocess": str(found.clf.preprocess),
    }
    if found.survey is not None:
        layers, heads = found.survey.distance.shape
        measured = {key: np.asarray(value).tolist() for key, value in vars(found.survey).items()}
        told |= {
            "grid": list(found.grid),
            "step": list(config.step),
            "prefix_tokens": config.prefix_tokens,
            "pool": config.pool,
            "layers": layers,
            "heads": heads,
            "survey": {"images": measured.pop("images"), "names": list(found.surveyed), **measured},
        }
    else:
        told |= {"grid": None, "layers": 0, "heads": 0, "survey": None}
    told["looks"] = [
        {"image": look.name, "file": look.stem, "classes": list(look.classes), "probabilities": list(look.probabilities)}
        for look in found.looks
    ]
    told["patch_components"] = {"share": found.component_share} if found.component_share is not None else None
    shown = found.data_map
    told["data_map"] = shown and {"data": shown.where, "images": len(shown.features), "method": shown.method}
    return told


def _write_numbers(part: Path, found: Inspection) -> None:
    for name, values in (("filters", found.filters), ("position_similarity", found.positions)):
        if values is not None:
            np.save(part / f"{name}.npy", values)
    for name, columns, rows in _tables(found):
        with (part / f"{name}.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def _tables(found: Inspection) -> Iterator[tuple[str, Sequence[str], Iterable[Sequence[object]]]]:
    """Name, columns and rows of each."""
    if (survey := found.survey) is not None:
        for name, column, values in (
            ("attention_distance", "distance", survey.distance),
            ("entropy", "entropy", survey.entropy),
        ):
            yield name, ("layer", "head", column), ((*place, float(value)) for place, value in np.ndenumerate(values))
        leading = [f"leading_{token}" for token in range(survey.leading_norms.shape[1])]
        lengths = np.concatenate([survey.norms_quantiles, survey.leading_norms], axis=1).tolist()
        columns = ("depth", "minimum", "quarter", "median", "three_quarters", "maximum", *leading)
        yield "token_norms", columns, ((depth, *row) for depth, row in enumerate(lengths))
        pairs = zip(itertools.count(), survey.similarity.tolist(), ["", *survey.change.tolist()], strict=False)
        yield "token_similarity", ("depth", "similarity", "change"), pairs
    if found.data_map is not None:
        yield "data_map", ("id", "class", "x", "y"), _map_rows(found.data_map)


def _map_rows(data_map: DataMap) -> Iterator[tuple[str, str, float, float]]:
    features = data_map.features
    for name, own, (x, y) in zip(features.ids, features.labels, data_map.points.tolist(), strict=True):
        yield escape_formula(name), escape_formula(features.classes[own[0]]) if own else "", x, y


# Figures --------------------------------------------------------------------------------------------------------------------


def _figures(found: Inspection) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Name and maker of each that this model has."""
    survey, kernels, positions, data_map = found.survey, found.filters, found.positions, found.data_map
    if looks := [look for look in found.looks if "rollout" in look.maps]:
        rollouts, gradients = (np.stack([look.maps[name] for look in looks]) for name in ("rollout", "gradient_rollout"))
        images, names = [enlarge(look.pixels) for look in looks], [look.name for look in looks]
        yield "rollout", lambda: figures.plot_rollout(images, rollouts, gradients, names)
    if survey is not None:
        size, uniform = found.image_size, found.uniform_distance
        yield (
            "attention_distance",
            lambda: figures.plot_attention_distance(survey.distance, survey.distance_error, size, uniform),
        )
        yield "entropy", lambda: figures.plot_attention_entropy(survey.entropy, found.tokens)
    if kernels is not None:
        yield "filters", lambda: figures.plot_filters(kernels, components=found.has_patches)
    if positions is not None:
        yield "position_similarity", lambda: figures.plot_position_similarity(positions)
    if survey is not None:
        yield "token_norms", lambda: figures.plot_token_norms(survey.norms_quantiles, survey.leading_norms)
        yield "token_similarity", lambda: figures.plot_token_similarity(survey.similarity, survey.change)
    if components := [look.components for look in looks if look.components is not None]:
        yield "patch_components", lambda: figures.plot_patch_components(images, np.stack(components), names)
        maps, places = zip(*(_similar_patches(look)[1:] for look in looks), strict=True)
        yield "patch_similarity", lambda: figures.plot_patch_similarity(images, maps, places, names)
    if data_map is not None:
        points, features, method = data_map.points, data_map.features, data_map.method
        yield "data_map", lambda: figures.plot_data_map(points, features.targets(), features.classes, method)


_CAPTIONS = {"rollout": "attention rollout", "gradient_rollout": "weighted by gradients", "class_activation": "evidence for {}"}


def _similar_patches(look: ImageInspection) -> tuple[NDArray[np.float32], NDArray[np.float32], list[tuple[int, int]]]:
    """Similarity of all patches, and of three of them that differ: the middle one, and what is least like those before it."""
    assert look.patches is not None
    similarity = compute_patch_similarity(look.patches)
    places = pick_patches(similarity, (similarity.shape[0] // 2, similarity.shape[1] // 2))
    return similarity, np.stack([similarity[place] for place in places]), places


def _write_patches(part: Path, look: ImageInspection) -> dict[str, NDArray[np.uint8]]:
    """Gives what the page shows beside the image."""
    if look.components is None or look.colours is None:
        return {}
    image = enlarge(look.pixels)
    similarity, maps, places = _similar_patches(look)
    figures.save(figures.plot_patch_similarity([image], [maps], [places]), part / "patch_similarity", look.stem)
    np.save(part / "patch_similarity" / f"{look.stem}.npy", similarity.astype(np.float16))
    folder = part / "patch_components"
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{look.stem}.npy", look.components)
    coloured = enlarge_patches(look.colours, image.shape[0], image.shape[1])
    Image.fromarray(coloured).save(folder / f"{look.stem}.png")
    return {"patch features": coloured}


def _write_image(part: Path, look: ImageInspection) -> dict[str, Any]:
    """Gives what the page shows of it."""
    image, moving = enlarge(look.pixels), part / "animation" / f"{look.stem}.webp"
    views = {"the image": image}
    for folder, values in look.maps.items():
        place = part / folder
        place.mkdir(exist_ok=True)
        if folder == "attention":
            np.save(place / f"{look.stem}.npy", values.astype(np.float16))
            figures.save(figures.plot_attention(image, values), place, look.stem)
            moving.parent.mkdir(exist_ok=True)
            animation(image, values.mean(axis=1), moving)
        else:
            np.save(place / f"{look.stem}.npy", values)
            # What spoke against the class is no reason for it; shares are never below 0.
            lit = overlay(image, np.maximum(values, 0))
            Image.fromarray(lit).save(place / f"{look.stem}.png")
            views[_CAPTIONS[folder].format(*look.classes[:1])] = lit
    views |= _write_patches(part, look)
    return look_card(look, views, moving.read_bytes() if moving.exists() else None)


def enlarge(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A small image, larger: a digit of 8 pixels leaves no room to show anything on it."""
    return fit_image(image, _LEAST, _LEAST) if max(image.shape[:2]) < _LEAST else image
