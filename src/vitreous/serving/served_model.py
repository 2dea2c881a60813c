"""A served model: its name in URLs, its device and its description for the page."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.classifier import Classifier, load
from vitreous.core.device import choose_device
from vitreous.core.distributed import World
from vitreous.core.files import user_path
from vitreous.inference.batches import check_fixed_size
from vitreous.inference.engines.choose import choose_engine
from vitreous.inference.engines.engine import EngineOption
from vitreous.inference.engines.exported_file import FileEngine
from vitreous.inference.prediction_sets import PredictionSets, build_prediction_sets
from vitreous.inspection.file_names import number_repeated
from vitreous.models.attention_maps import attention_layers
from vitreous.models.config import Size, ViTConfig
from vitreous.models.token_merging import set_token_merging
from vitreous.weights.transfer import adapt

SCALE = 1 / 127  # of a cosine in a byte

_PART_OF_A_RUN = ("checkpoint", "best", "raw")  # folders that are called alike in every run
_ENDINGS = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".onnx", ".xml")


@dataclass(frozen=True)
class ServedModel:
    """A thread that runs the model holds `lock`: inspection adds hooks, which other passes must not run through."""

    name: str
    clf: Classifier
    device: str = "cpu"
    sets: PredictionSets | None = None
    notes: tuple[str, ...] = ()
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def card(self) -> dict[str, Any]:
        """What a page must know before the first image. `leading` names the tokens before the patches, in their order."""
        config = self.clf.config
        vit = isinstance(config, ViTConfig)
        inside = vit and not isinstance(self.clf.engine, FileEngine)  # an exported file has no layers to look into
        return {
            "name": self.name,
            "model": config.name,
            "parameters": sum(parameter.numel() for parameter in self.clf.model.parameters()),
            "classes": config.classes,
            "image_size": list(self.clf.preprocess.size or config.image_size),
            "grid": list(config.grid_of(self.clf.preprocess.size or config.image_size)) if vit else None,
            "step": list(config.step) if vit else None,
            "prefix_tokens": config.prefix_tokens if vit else 0,
            "leading": leading_tokens(config) if vit else [],
            "layers": len(list(attention_layers(self.clf.model))) if vit else 0,
            "heads": config.heads if vit else 0,
            "has_attention": inside,
            "has_head": config.classes > 0,
            "pool": config.pool if vit else None,
            "preprocess": str(self.clf.preprocess),
            "coverage": None if self.sets is None else self.sets.coverage,
        }

    @cached_property
    def positions(self) -> dict[str, Any]:
        """Cosine similarity of any two position embeddings, as bytes: 127 is 1. Computed once: it never changes.

        A VitreousError where the model has no table of positions.
        """
        from vitreous.inspection.position_embeddings import position_similarity

        similarity = position_similarity(self.clf)
        rows, columns = similarity.shape[:2]
        patches = rows * columns
        return {"grid": [rows, columns], "similarity": pack_cosines(similarity.reshape(patches, patches))}


def pack_cosines(values: NDArray[np.floating]) -> dict[str, Any]:
    """Numbers from -1 to 1 as bytes: 127 is 1."""
    coded = np.round(values.clip(-1, 1) / SCALE).astype(np.int8)
    data = base64.b64encode(np.ascontiguousarray(coded).data).decode()
    return {"dtype": "int8", "shape": list(coded.shape), "scale": SCALE, "data": data}


def load_models(
    checkpoints: Sequence[str],
    image_size: int | Size | None = None,
    device: str = "auto",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
    coverage: float | None = None,
    batch_size: int = 16,
) -> tuple[ServedModel, ...]:
    """Every checkpoint, loaded where it will run, under names that differ."""
    where = choose_device(device)
    names = number_repeated(name_of(checkpoint) for checkpoint in checkpoints)
    out = []
    for name, checkpoint in zip(names, checkpoints, strict=True):
        clf = load(checkpoint, image_size=image_size)
        check_fixed_size(clf.preprocess)  # images of several requests become one batch
        set_token_merging(clf.model, merge_tokens)
        sets = None if coverage is None else build_prediction_sets(clf, checkpoint, coverage)
        if not isinstance(clf.engine, FileEngine):
            if clf.preprocess.size != clf.config.image_size:  # positions are resized here, once, and not in every pass
                clf = Classifier(adapt(clf.checkpoint, image_size=clf.preprocess.size), copy=False)
                set_token_merging(clf.model, merge_tokens)
            clf.model.to(where).eval()
        alone = World(0, 1, torch.device(where))
        notes = choose_engine(clf, engine, world=alone, precision="float32", batch_size=batch_size)
        if clf.engine.name != "torch":  # the others make or compile a graph on their first batch: not for the first caller
            clf.features(torch.zeros(1, clf.config.channels, *clf.evaluation_size))
        out.append(ServedModel(name, clf, where, sets, notes))
    return tuple(out)


def leading_tokens(config: ViTConfig) -> list[str]:
    """The tokens before the patches by name, in the order of ViT.sequence."""
    named = ["class token"] * config.class_token + ["distillation token"] * config.distillation_token
    return named + [f"register {number + 1}" for number in range(config.registers)]


def name_of(checkpoint: str) -> str:
    """A name for addresses and for people: the run's, the file's, or the checkpoint's own, without slashes."""
    path = user_path(checkpoint)
    if not path.exists():
        return slug(checkpoint)
    *above, last = path.resolve().parts[1:] or ("model",)
    tail: list[str] = []
    while above and last in _PART_OF_A_RUN:
        tail, last = [last, *tail], above.pop()
    stem = re.sub(rf"({'|'.join(map(re.escape, _ENDINGS))})$", "", last)
    return slug("-".join([stem, *(part for part in tail if part != "checkpoint")]))


def slug(words: str, otherwise: str = "model") -> str:
    """Letters and digits of any language, and what needs no quoting in the path of an address."""
    return re.sub(r"[^\w.@+-]+", "-", words).strip("-.")[:80] or otherwise
