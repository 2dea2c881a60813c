"""Hugging Face data sets, through their `datasets` library (extra `hub`).

    hf:OWNER/NAME[:CONFIG][@REVISION][#LABEL]    a data set on the hub; fetched, or from the library's own cache
    hf:DIRECTORY[#LABEL]                         saved with save_to_disk, or holding parquet files or folders of images

LABEL is the column with the labels; without it, the one column that can only be that. Images stay encoded until they are
decoded like all others. Code that comes with a data set is never run: the library does not do that from version 4 on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vitreous.core.errors import VitreousError, one_line, unknown_name
from vitreous.core.files import user_path
from vitreous.data.conventions import SPLIT_NAMES
from vitreous.data.source import SPLITS, Content, Dataset, Source
from vitreous.data.sources.relabelled import Relabelled
from vitreous.data.transforms.decode import BadImage, read_image_file

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ADDRESS = re.compile(rf"({_PART}(?:/{_PART})?)(?::([^:@#]+))?(?:@([^@#]+))?")
_LABELS = ("label", "labels", "fine_label", "class", "target")  # which of several columns is meant, best first
_IMAGES = ("image", "img", "jpg", "png")


def open_hub(text: str) -> Dataset:
    """The data set that `text` names, with or without the leading `hf:`."""
    address, _, column = text.removeprefix("hf:").partition("#")
    library = _import_datasets(text)
    splits, folder = _load_splits(library, text, address)
    image, label = _choose_columns(library, text, next(iter(splits.values())).features, column)
    classes, numbers = _collect_labels(library, text, splits, label) if label else ((), {})
    sources: dict[str, Source] = {}
    for name, split in splits.items():
        canonical = SPLIT_NAMES.get(name, name)
        if canonical in sources:
            raise VitreousError(f"{text}: two of its splits, {', '.join(splits)}, mean {canonical}")
        images = HubSource(text, canonical, classes, library, split, image, folder)
        sources[canonical] = Relabelled(images, [_find_numbers(value, numbers) for value in split[label]]) if label else images
    order = sorted(sources, key=lambda name: (SPLITS.index(name) if name in SPLITS else len(SPLITS), name))
    notes = () if label else (f"{text}: no column of labels",)
    return Dataset(text, classes, {name: sources[name] for name in order}, notes)


def _import_datasets(text: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise VitreousError(f"{text}: Hugging Face data sets need their library: pip install 'vitreous[hub]'") from error
    if int(datasets.__version__.split(".")[0]) < 4:
        raise VitreousError(
            f"{text}: datasets {datasets.__version__} may run code that comes with a data set; pip install -U 'vitreous[hub]'"
        )
    return datasets


def _load_splits(library: Any, text: str, address: str) -> tuple[dict[str, Any], Path | None]:
    """Its splits, and the directory it lies in if that is on this machine."""
    folder = user_path(address)
    try:
        if address and folder.is_dir():
            saved = any((folder / name).exists() for name in ("dataset_dict.json", "state.json"))
            loaded = library.load_from_disk(str(folder)) if saved else library.load_dataset(str(folder))
        elif found := _ADDRESS.fullmatch(address):
            loaded = library.load_dataset(found[1], name=found[2], revision=found[3])
        else:
            raise VitreousError(f"{text}: expected hf:OWNER/NAME[:CONFIG][@REVISION][#LABEL] or hf:DIRECTORY")
    except VitreousError:
        raise
    except Exception as error:  # of the library, the hub, the network and the disk: dozens of kinds, some of them private
        raise VitreousError(
            f"{text}: cannot be opened ({one_line(error)}); check its name and the network, or give a directory"
        ) from error
    if isinstance(loaded, library.Dataset):
        loaded = {str(loaded.split or "train"): loaded}
    if not loaded:
        raise VitreousError(f"{text}: has no splits")
    return dict(loaded), folder if folder.is_dir() else None


# Columns --------------------------------------------------------------------------------------------------------------------


def _choose_columns(library: Any, text: str, features: Any, column: str) -> tuple[str, str | None]:
    images = [name for name, feature in features.items() if isinstance(feature, library.Image)]
    image = _choose_preferred(images, _IMAGES)
    if image is None:
        found = (
            f"several columns of images: {', '.join(images)}" if images else f"no column of images, only {', '.join(features)}"
        )
        raise VitreousError(f"{text}: {found}")
    if column:
        if column not in features:
            raise unknown_name(f"column of {text}", column, features)
        return image, column
    named = [name for name, feature in features.items() if isinstance(_element_feature(feature), library.ClassLabel)]
    plain = [name for name in features if name in _LABELS]
    label = _choose_preferred(named, _LABELS) if named else _choose_preferred(plain, _LABELS)
    if label is None and named:
        raise VitreousError(f"{text}: several columns of labels ({', '.join(named)}); choose one with #{named[0]} at the end")
    return image, label


def _choose_preferred(names: list[str], preferred: tuple[str, ...]) -> str | None:
    if len(names) == 1:
        return names[0]
    return next((name for name in preferred if name in names), None)


def _element_feature(feature: Any) -> Any:
    """Of a list of labels, what it is a list of."""
    return getattr(feature, "feature", feature)


def _collect_labels(library: Any, text: str, splits: dict[str, Any], column: str) -> tuple[tuple[str, ...], dict[Any, int]]:
    """The classes, and which of them each value of the label column stands for; -1: none."""
    elements = [_element_feature(split.features[column]) for split in splits.values()]
    if all(isinstance(element, library.ClassLabel) for element in elements):
        names = tuple(elements[0].names)
        if any(tuple(element.names) != names for element in elements):
            raise VitreousError(f"{text}: its splits name the classes of {column!r} differently")
        return names, {number: number for number in range(-1, len(names))}
    plain = all(isinstance(split.features[column], library.Value) for split in splits.values())
    values = {value for split in splits.values() for value in split.unique(column) if value is not None} if plain else set()
    if not plain or len({type(value) for value in values}) > 1 or not all(isinstance(value, (int, str)) for value in values):
        raise VitreousError(
            f"{text}: column {column!r} holds neither classes nor words nor numbers of classes; choose with #COLUMN"
        )
    ordered = sorted(values)
    return tuple(map(str, ordered)), {value: number for number, value in enumerate(ordered)}


def _find_numbers(value: Any, numbers: dict[Any, int]) -> tuple[int, ...]:
    """The classes of one item, whose label may be a list, or missing."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(number for number in (numbers[one] for one in values if one is not None) if number >= 0)


# The source -----------------------------------------------------------------------------------------------------------------


class HubSource(Source):
    """A split's images. The library memory-maps its table, and pickles the path of it."""

    def __init__(
        self, where: str, split: str, classes: tuple[str, ...], library: Any, table: Any, image: str, folder: Path | None
    ) -> None:
        self.where, self.split, self.classes = where, split, classes
        self.table = table.select_columns([image]).cast_column(image, library.Image(decode=False))
        self.image, self.folder = image, folder

    def __len__(self) -> int:
        return len(self.table)

    def id(self, index: int) -> str:
        return f"{self.split}/{index:06d}"

    def labels(self, index: int) -> tuple[int, ...]:
        return ()

    def read(self, index: int) -> Content:
        try:
            value = self.table[index][self.image] or {}
            content = value.get("bytes")
            if content is None and value.get("path"):
                content = self._file(index, value["path"])
        except BadImage:
            raise
        except Exception as error:  # the library's, Arrow's and the disk's
            raise BadImage(self.place(index), "unreadable", f"cannot be read ({one_line(error)})") from error
        if content is None:
            raise BadImage(self.place(index), "missing", "has no image")
        return bytes(content)

    def _file(self, index: int, path: str) -> bytes:
        """A table may name files; those of a directory are read; any other path is untrusted input and refused."""
        file = Path(path).resolve()
        if self.folder is None or not file.is_relative_to(self.folder.resolve()):
            raise BadImage(self.place(index), "missing", f"the table names {path} instead of holding the image; refused")
        return read_image_file(file, self.place(index))
