"""`vitreous fewshot HEAD --add DATA --save DIR`: further classes for a saved head, from a few images of each.

The result is the fit to all images together, the old ones by the features that the head was saved with: the same weights,
strength, temperature and leave-one-out accuracy as if they had been there from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitreous.classifier import Classifier, load
from vitreous.core.device import choose_device
from vitreous.core.errors import VitreousError, check_at_least, first_few
from vitreous.core.hashing import hash_file
from vitreous.core.output_dir import find_data_folder
from vitreous.data.open import open_data
from vitreous.data.source import ALL, Policy
from vitreous.evaluation.closed_form_head import fit_head
from vitreous.evaluation.fewshot import Choice, smallest_class
from vitreous.evaluation.fewshot_run import Fewshot
from vitreous.evaluation.fewshot_tasks import keep_labelled
from vitreous.evaluation.saved_head import FEATURES, check_left_out, check_save_folder, save_head
from vitreous.inference.feature_file import FeatureFile
from vitreous.inference.features import Features, compute_features
from vitreous.weights.locate import locate


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    checkpoint: str
    add: str
    save: Path | None
    l2: Choice
    cache: bool
    bad_images: Policy
    batch_size: int | None
    workers: int | None
    device: str

    def __post_init__(self) -> None:
        check_at_least(0, workers=self.workers)
        check_at_least(1, batch_size=self.batch_size)
        if self.save is None:
            raise VitreousError(f"--add {self.add}: say with --save DIR where the head with these classes goes")
        if self.l2 == "joint":
            raise VitreousError("--l2 joint: chosen over several data sets; with --add, use leave-one-out or a number")
        check_save_folder(self.save, find_data_folder(self.add))


def add_classes(options: AddOptions) -> Fewshot:
    assert options.save is not None
    clf = load(options.checkpoint)
    old = read_fitted(clf, options.checkpoint)
    dataset = open_data(options.add, bad_shards=options.bad_images)
    if twice := sorted(set(dataset.classes) & set(clf.classes)):
        raise VitreousError(
            f"--add {options.add}: class {first_few(twice)} is in {options.checkpoint} already; rename it, or fit all "
            f"anew with --save"
        )
    source = next((dataset.splits[split] for split in ("train", ALL) if split in dataset.splits), None)
    if source is None or not dataset.classes:
        raise VitreousError(f"--add {options.add}: has no labelled training images; put them into one folder for each class")
    head, notes = dict(clf.checkpoint.head), list(dataset.summary())
    found = compute_features(
        clf,
        source,
        batch_size=options.batch_size,
        workers=options.workers,
        device=choose_device(options.device),
        precision=head["precision"],
        bad_images=options.bad_images,
        cache=options.cache,
    )
    new = keep_labelled(options.add, source, found, notes, "fit to")
    check_left_out(options.add, smallest_class(new.targets(), new.targets(), new.classes))
    together = _join(old, new)
    about = {name: head[name] for name in ("data", "shots", "seed", "data_seed", "precision")}
    saved = save_head(
        options.save,
        clf,
        fit_head(together, options.l2),
        together,
        source=options.checkpoint,
        preprocess=clf.preprocess,
        about={**about, "added": [*head.get("added", []), options.add]},
    )
    about = {"checkpoint": options.checkpoint, "added": list(new.classes)}
    return Fewshot((), (), (), about, tuple(notes), saved=saved)


def read_fitted(clf: Classifier, source: str) -> Features:
    """The features that a saved head was fitted to."""
    path = locate(source).path / FEATURES
    if not clf.checkpoint.head or not path.is_file():
        raise VitreousError(
            f"--add: {source} has no {FEATURES} to fit to again; make a head with `vitreous fewshot CHECKPOINT DATA --save DIR`"
        )
    if hash_file(path) != clf.checkpoint.head.get("features_sha256"):
        raise VitreousError(f"{path}: does not match model.json (sha256 differs); one of them is damaged: copy both again")
    return FeatureFile(path).load()


def _join(old: Features, new: Features) -> Features:
    shifted = tuple(tuple(label + len(old.classes) for label in own) for own in new.labels)
    return replace(
        old,
        values=np.concatenate([old.values, new.values]),
        labels=old.labels + shifted,
        ids=old.ids + new.ids,
        numbers=np.arange(len(old) + len(new)),
        classes=old.classes + new.classes,
    )
