"""EuroSAT and Caltech-101: a folder for each class, and no official division into training and test images."""

from __future__ import annotations

from pathlib import Path

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.archive import unpack
from vitreous.data.datasets.cache import prepare_once
from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.image_files import image_dataset, list_class_folders, unpack_archives
from vitreous.data.source import ALL, Dataset

_JPEG = (".jpg", ".jpeg")
_OBJECTS, _BACKGROUND = "101_ObjectCategories", "BACKGROUND_Google"
_NO_SPLIT = "has no official division into training and test images"


def open_eurosat(place: DatasetDir) -> Dataset:
    folders = ("2750", "EuroSAT_RGB")  # what the two releases of the same images call it
    root = place.base("AnnualCrop", *(f"{prefix}{name}" for prefix in ("", "eurosat/", "EuroSAT/") for name in folders))
    if root is None:
        archive = place.need("EuroSAT.zip", "EuroSAT_RGB.zip")
        made = unpack_archives(place, [archive], lambda name: name.lower().endswith(_JPEG))
        root = next((made / name for name in folders if (made / name).is_dir()), None)
        if root is None:
            raise VitreousError(f"{archive}: no folder {' or '.join(folders)} in it; another archive than the RGB version")
    return _make_dataset(place, root, list_class_folders(root, _JPEG), (f"{place.where}: EuroSAT {_NO_SPLIT}",))


def open_caltech101(place: DatasetDir) -> Dataset:
    root = place.base("accordion", _OBJECTS, f"caltech-101/{_OBJECTS}", f"caltech101/{_OBJECTS}")
    if root is None:
        archive = place.need("caltech-101.zip", f"{_OBJECTS}.tar.gz", f"caltech-101/{_OBJECTS}.tar.gz")
        root = prepare_once(place.name, [archive], lambda folder: _unpack_objects(archive, folder)) / _OBJECTS
    found = list_class_folders(root, _JPEG)
    notes = [f"{place.where}: Caltech-101 {_NO_SPLIT}"]
    if found.pop(_BACKGROUND, None):
        notes.append(f"{place.where}: {_BACKGROUND} left out, which shows none of the 101 objects")
    return _make_dataset(place, root, found, tuple(notes))


def _unpack_objects(archive: Path, into: Path) -> None:
    """The images lie in a tar, and that may lie in a zip."""
    inner = f"{_OBJECTS}.tar.gz"
    if archive.suffix == ".zip":
        unpack(archive, into, lambda name: name.endswith(inner))
        tar = next(into.rglob(inner), None)
        if tar is None:
            raise VitreousError(f"{archive}: no {inner} in it; another archive than the original")
        _unpack_objects(tar, into)
        tar.unlink()
    else:
        unpack(archive, into, lambda name: name.startswith(f"{_OBJECTS}/") and name.lower().endswith(_JPEG))


def _make_dataset(place: DatasetDir, root: Path, found: dict[str, list[str]], notes: tuple[str, ...]) -> Dataset:
    if not found:
        raise VitreousError(f"{place.where}: no class folders with .jpg files in {root}; unpack the original archive there")
    listed = [(f"{name}/{file}", label) for label, (name, files) in enumerate(found.items()) for file in files]
    return image_dataset(place, root, tuple(found), {ALL: listed}, notes)
