"""Vision Transformers in PyTorch: exact models and weights, training, evaluation and inspection.

    import vitreous
    model = vitreous.create("ViT-B/16", classes=10)          # an nn.Module
    clf = vitreous.load("ViT-B/16@imagenet21k", classes=10)  # model, preprocessing and class names in one
    vitreous.cost("ViT-B/16", image_size=384).parameters

One function per command, and the nouns under them. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Every public name and the module that it comes from.
_PUBLIC = {
    "create": "vitreous.models.build",
    "cost": "vitreous.models.cost",
    "load": "vitreous.classifier",
    "Classifier": "vitreous.classifier",
    "open_data": "vitreous.data.open",
    "Loader": "vitreous.data.loading.loader",
    "VitreousError": "vitreous.core.errors",
    "rollout": "vitreous.inspection.attention_rollout",
    "gradient_rollout": "vitreous.inspection.gradient_weights",
    "attention_distance": "vitreous.inspection.distance",
    "filters": "vitreous.inspection.embedding_filters",
    "position_similarity": "vitreous.inspection.position_embeddings",
    "choose": "vitreous.commands.choose",
    "bench": "vitreous.commands.bench",
    "convert": "vitreous.commands.convert",
    "demo": "vitreous.commands.demo",
    "doctor": "vitreous.commands.doctor",
    "embed": "vitreous.commands.embed",
    "evaluate": "vitreous.commands.evaluate",
    "fewshot": "vitreous.commands.fewshot",
    "finetune": "vitreous.commands.finetune",
    "inspect": "vitreous.commands.inspect",
    "list": "vitreous.commands.list",
    "predict": "vitreous.commands.predict",
    "pretrain": "vitreous.commands.pretrain",
    "serve": "vitreous.commands.serve",
    "shard": "vitreous.commands.shard",
    "similar": "vitreous.commands.similar",
    "study": "vitreous.commands.study",
    "verify": "vitreous.commands.verify",
    "vtab": "vitreous.commands.vtab",
}

__all__ = sorted(_PUBLIC)

if TYPE_CHECKING:
    from vitreous.classifier import Classifier as Classifier
    from vitreous.classifier import load as load
    from vitreous.commands.bench import bench as bench
    from vitreous.commands.choose import choose as choose
    from vitreous.commands.convert import convert as convert
    from vitreous.commands.demo import demo as demo
    from vitreous.commands.doctor import doctor as doctor
    from vitreous.commands.embed import embed as embed
    from vitreous.commands.evaluate import evaluate as evaluate
    from vitreous.commands.fewshot import fewshot as fewshot
    from vitreous.commands.finetune import finetune as finetune
    from vitreous.commands.inspect import inspect as inspect
    from vitreous.commands.list import list as list
    from vitreous.commands.predict import predict as predict
    from vitreous.commands.pretrain import pretrain as pretrain
    from vitreous.commands.serve import serve as serve
    from vitreous.commands.shard import shard as shard
    from vitreous.commands.similar import similar as similar
    from vitreous.commands.study import study as study
    from vitreous.commands.verify import verify as verify
    from vitreous.commands.vtab import vtab as vtab
    from vitreous.core.errors import VitreousError as VitreousError
    from vitreous.data.loading.loader import Loader as Loader
    from vitreous.data.open import open_data as open_data
    from vitreous.inspection.attention_rollout import rollout as rollout
    from vitreous.inspection.distance import attention_distance as attention_distance
    from vitreous.inspection.embedding_filters import filters as filters
    from vitreous.inspection.gradient_weights import gradient_rollout as gradient_rollout
    from vitreous.inspection.position_embeddings import position_similarity as position_similarity
    from vitreous.models.build import create as create
    from vitreous.models.cost import cost as cost


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> Any:
    return [*globals(), *_PUBLIC]


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the package vitreous.doctor must not hide the function of the same name.
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
