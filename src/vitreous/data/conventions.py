"""Naming conventions: which members of a shard are images, which folders are splits, in which order classes are numbered."""

from __future__ import annotations

from collections.abc import Iterable

SUFFIXES = (  # in shards, where labels and notes lie beside images; of files `image_formats` knows more
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff", ".avif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2", ".j2k", ".ico"),
)
SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
TARS = (".tar", ".tar.gz", ".tgz")


def sort_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """By name, as torchvision has it; by value where all are whole numbers, or class 10 would come before class 2."""
    found = list(names)
    numeric = all(name.isascii() and name.isdigit() for name in found)
    return tuple(sorted(found, key=lambda name: (int(name), name)) if numeric else sorted(found))
