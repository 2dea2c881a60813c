"""The pretrained checkpoints known by name, one row each in catalogue.csv: location, training data, what the file cannot say.

    MODEL@TAG        one of Google's .npz files, named by its bucket's own words: ViT-B/16@imagenet21k+imagenet2012
    hf:OWNER/REPO    a repository on the Hugging Face hub

`location` is the bucket and path of a file; a repository is where its name says. `image_size` is empty where it is not
published, `preprocess` where read.py infers it: a fine-tuned BiT's is not to be inferred, because a ResNet has no positions
(the BiT-HyperRule tests on the whole image at 480). The augreg rows are the runs that their authors and timm recommend. Heads
of all zeros were released so on purpose: issues #10, #32 and #252 of google-research/vision_transformer.

Hashes and sizes are not published: the server declares them, and every download is checked against what it declares.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import quote

STORAGE = "https://storage.googleapis.com"  # the buckets vit_models and bit_models
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Entry:
    """One known checkpoint."""

    name: str  # what a person types
    model: str  # its architecture
    location: str  # bucket and path of the file, or OWNER/REPO on the hub
    trained_on: str
    image_size: int | None  # side of the images that its positions are for; None where it is not published
    classes: int  # 0: no head, gives features
    licence: str
    note: str
    preprocess: str | None  # None: as read.py infers it

    @property
    def on_hub(self) -> bool:
        return self.name.startswith("hf:")

    @property
    def url(self) -> str:
        """The file at its official address, or the page of the repository."""
        return f"{HUB}/{self.location}" if self.on_hub else f"{STORAGE}/{quote(self.location)}"

    @property
    def known(self) -> dict[str, Any]:
        """Fields of a Checkpoint that reading the file cannot tell."""
        # A .npz has no class names; on the hub they come with the repository.
        names = imagenet_names() if self.classes == 1000 and not self.on_hub else None
        fields = {"licence": self.licence, "preprocess": self.preprocess, "classes": names}
        return {name: value for name, value in fields.items() if value is not None}


def _read_lines(name: str) -> list[str]:
    return (resources.files("vitreous.weights") / name).read_text(encoding="utf-8").splitlines()


@functools.cache
def imagenet_names() -> tuple[str, ...]:
    """Names of ImageNet's 1,000 classes."""
    return tuple(line for line in _read_lines("imagenet1k.txt") if not line.startswith("#"))


def _parse_entry(row: dict[str, str]) -> Entry:
    fields: dict[str, Any] = {**row, "location": row["location"] or row["name"].removeprefix("hf:")}
    size, preprocess = row["image_size"], row["preprocess"]
    fields |= {"image_size": int(size) if size else None, "classes": int(row["classes"]), "preprocess": preprocess or None}
    return Entry(**fields)


ENTRIES = {row["name"]: _parse_entry(row) for row in csv.DictReader(_read_lines("catalogue.csv"))}
"""Every known checkpoint by its name, in the order to list them."""
