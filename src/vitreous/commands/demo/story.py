"""The demo's story, part by part. A part makes the calls that a user would make, and gives its row of the last table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from vitreous.commands.convert import convert
from vitreous.commands.demo.faults import make_faulty_folder
from vitreous.commands.doctor import doctor
from vitreous.commands.evaluate import evaluate
from vitreous.commands.finetune import finetune
from vitreous.commands.inspect import inspect
from vitreous.commands.pretrain import pretrain
from vitreous.core.files import atomic_folder
from vitreous.core.progress import say, silence
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.splits import reduce_training_images
from vitreous.evaluation.ridge import L2S, Ridge

LETTERS, DIGITS = "builtin:letters?size=8&count=6000", "builtin:digits"
LABELS = 10  # a class
PRETRAIN: dict[str, Any] = dict(epochs=6, eval_every=0)
FEW: dict[str, Any] = dict(per_class=LABELS, test="test", eval_every=0)
FINETUNE: dict[str, Any] = dict(set=("optimizer=muon,lr=3e-3,schedule=linear",), train="all", steps=100)
SCRATCH: dict[str, Any] = dict(steps=200)
EXAMPLES = 6  # digits saved as files, to look into
# Models as small as these gain nothing from a second process or thread, and float32 is the same on every processor.
SETTINGS: dict[str, Any] = dict(workers=0, precision="float32", device="cpu")

Part = dict[str, Any]
T = TypeVar("T")


def check_photos(out: Path) -> Part:
    """A folder of images with planted faults, and what `vitreous doctor` finds."""
    photos = out / "photos"
    with atomic_folder(photos) as folder:
        planted = make_faulty_folder(folder)
    found = run(doctor, photos, out=out / "doctor", preprocess="inception_crop(96)|flip|range(-1,1)")
    rows: list[dict[str, Any]] = []
    for fault in planted:
        said = [
            f for f in found.findings if fault.path in f.paths or (f.kind == "empty-class" and Path(fault.path).name in f.paths)
        ]
        kinds = ", ".join(dict.fromkeys(f.kind for f in said)) or "nothing"
        rows.append({"planted": fault.what, "file": fault.path, "doctor": kinds, "found": fault.kind in kinds.split(", ")})
    known = {fault.path for fault in planted}
    alarms = [f for f in found.findings if f.corrupts and not known & set(f.paths) and f.kind != "empty-class"]
    count = sum(row["found"] is True for row in rows)
    return {
        "result": f"{count} of {len(rows)} planted faults found, {len(alarms)} false alarms",
        "good": count == len(rows) and not alarms,
        "faults": rows,
    }


def pretrain_on_letters(out: Path) -> Part:
    """A small ViT learns rendered letters. There is no digit among them."""
    done = run(pretrain, LETTERS, show=True, out=out / "letters", **PRETRAIN, **SETTINGS)
    return {
        "result": f"{done.top1:.1%} of held-out letters right, of {len(_train(LETTERS).classes)} classes",
        "top1": done.top1,
    }


def transfer_to_digits(out: Path) -> Part:
    """Real handwritten digits, ten labels a class: fine-tuned, from scratch, and a linear classifier on the pixels."""
    few = {**FEW, **SETTINGS}
    tuned = run(finetune, DIGITS, from_=out / "letters", **FINETUNE, out=out / "digits", **few)
    scratch = run(pretrain, DIGITS, **SCRATCH, out=out / "scratch", **few)
    ours, ridge = tuned.result["test"]["top1"], measure_ridge_on_pixels()
    accuracy = {"pre-trained on letters": ours, "from scratch": scratch.result["test"]["top1"], "ridge on pixels": ridge}
    won = ours == max(accuracy.values())
    verdict = "wins" if won else "does not win"
    return {
        "result": ", ".join(f"{name} {top1:.1%}" for name, top1 in accuracy.items()),
        "verdict": f"With ten labels a class, pre-training on letters {verdict}: {ours:.1%} of the test digits are right.",
        "won": won,
        "accuracy": accuracy,
    }


def evaluate_digits(out: Path) -> Part:
    """The two networks on the 500 test digits, and a paired test."""
    options: dict[str, Any] = dict(workers=0, device="cpu")
    numbers = run(
        evaluate,
        out / "digits",
        f"{DIGITS}:test",
        out=out / "evaluation",
        compare=out / "scratch",
        nearest=f"{DIGITS}:train",
        **options,
    ).numbers
    low, high = numbers["interval"]
    return {
        "result": f"{numbers['top1']:.1%} of {numbers['n']} ({low:.1%} to {high:.1%}), calibration error {numbers['ece']:.1%}",
        "sentence": numbers["compare"]["sentence"],
    }


def look_inside(out: Path) -> Part:
    """The paper's figures, of the fine-tuned model."""
    test = open_data(DIGITS).source("test")
    assert isinstance(test, Source)
    with atomic_folder(out / "images") as folder:
        for index in range(EXAMPLES):
            Image.fromarray(np.asarray(test.read(index))).save(folder / f"{index}-is-{test.classes[test.labels(index)[0]]}.png")
    found = run(inspect, out / "digits", out / "images", data=f"{DIGITS}:test", out=out / "inside", device="cpu").numbers
    distance = np.array(found["survey"]["distance"]).mean(axis=1)
    return {"result": f"heads attend {distance[0]:.1f} pixels far in the first layer, {distance[-1]:.1f} in the last"}


def export_model(out: Path) -> Part:
    """The model as an ONNX file, which is run against the original."""
    check = run(convert, out / "digits", out / "digits.onnx", check=f"{DIGITS}:test").check
    assert check is not None
    said = f"logits of {check.images} digits differ by {check.logits:.0e}, relative to the largest"
    return {"result": f"digits.onnx: {said}; {check.same_class} of {check.images} the same class", "good": check.agrees}


PARTS: Mapping[str, Callable[[Path], Part]] = {
    "check": check_photos,
    "pre-train": pretrain_on_letters,
    "transfer": transfer_to_digits,
    "evaluate": evaluate_digits,
    "look inside": look_inside,
    "export": export_model,
}


def run(command: Callable[..., T], *words: object, show: bool = False, **options: Any) -> T:
    """Calls a command, and says what would be typed for it. `show`: with its own progress, for it takes long."""
    options = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    say(f"  $ {command_line(command.__name__, words, options)}")
    with nullcontext() if show else silence():
        return command(*map(str, words), **options)


def command_line(name: str, words: tuple[object, ...], options: Mapping[str, Any]) -> str:
    typed = ["vitreous", name, *map(str, words)]
    for option, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        typed += [part for one in values for part in (f"--{option.strip('_').replace('_', '-')}", str(one))]
    return shlex.join(typed)


def measure_ridge_on_pixels() -> float:
    """The accuracy of a linear classifier on the pixels of the labelled digits that the networks have, in closed form."""
    train, _ = reduce_training_images(_train(DIGITS), None, LABELS, seed=0)
    test = open_data(DIGITS).source("test")
    assert isinstance(test, Source)
    ridge = Ridge(_pixels(train), [(int(label),) for label in train.targets()], len(train.classes))
    named = ridge.classify(_pixels(test), ridge.choose(L2S)).numpy()
    return float((named == test.targets()).mean())


def _train(data: str) -> Source:
    source = open_data(data).source("train")
    assert isinstance(source, Source)
    return source


def _pixels(source: Source) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(source.read(index)) for index in range(len(source))])).flatten(1).float()
