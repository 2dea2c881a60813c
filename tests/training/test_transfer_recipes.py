"""Fine-tuning's own fields: the head in closed form, balanced batches and balanced labels."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import child, digest, states, wait_for
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

import vitreous
from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.loading.loader import Loader
from vitreous.data.open import open_data
from vitreous.inference.features import compute_features
from vitreous.models.build import create
from vitreous.training.objectives.classification import Classification, balanced_pos_weight

from conftest import random_checkpoint

OPTIONS: dict[str, Any] = dict(subset=200, steps=6, batch_size=32, eval_every=3, workers=0, device="cpu", save_every=2)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    sizes = dict(width=24, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1)
    Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **sizes)).save(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


def finetune(checkpoint: str, out: Path, **options: Any) -> Any:
    return vitreous.finetune("builtin:digits", from_=checkpoint, out=str(out), **(OPTIONS | options))


def evaluations(out: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] != "train"]


def test_the_default_starts_from_the_closed_form_and_does_not_end_below_it(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = finetune(checkpoint, out, subset=None, set=("lr=10",))  # so large that it ruins the model
    first, *later = evaluations(out)
    assert first["step"] == 0
    assert run.top1 == first["top1"] > 0.5 > max(line["top1"] for line in later)
    log = (out / "log.txt").read_text()
    assert "training did not improve on the closed-form head" in log
    clf, data = vitreous.load(checkpoint), open_data("builtin:digits")
    result, before = vitreous.load(out).checkpoint.tensors, clf.checkpoint.tensors
    assert all(torch.equal(result[name], before[name]) for name in before if not name.startswith("head"))
    # By scikit-learn: standardised features to -1 and 1, with the l2 that was chosen.
    fit, held_out = (compute_features(clf, data.source(split), workers=0) for split in ("train", "validation"))
    scaler = StandardScaler().fit(fit.values)
    targets = 2.0 * np.eye(10)[[own[0] for own in fit.labels]] - 1
    l2 = 2.0 ** int(log.partition("l2 = 2^")[2].partition(",")[0])
    scores = Ridge(alpha=l2).fit(scaler.transform(fit.values), targets).predict(scaler.transform(held_out.values))
    assert first["top1"] == np.mean(scores.argmax(axis=1) == [own[0] for own in held_out.labels])


def test_killed_it_ends_with_the_same_bytes(checkpoint: str, tmp_path: Path) -> None:
    extra = ("sampling=balanced", "average=0.5")
    finetune(checkpoint, tmp_path / "whole", set=extra)
    out = tmp_path / "killed"
    words = ["finetune", "builtin:digits", "--from", checkpoint, "--out", str(out), *(f"--set={word}" for word in extra)]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    process = child(out, {"RANK": "0"}, words)
    assert wait_for(lambda: max(states(out), default=0) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finetune(checkpoint, out, set=extra)
    assert digest(out) == digest(tmp_path / "whole")


def test_a_test_split_does_not_choose(checkpoint: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in ("a", "b"):
            for number in range(count):
                path = tmp_path / "data" / split / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(0, 255, (8, 8), np.uint8)).save(path)
    given: dict[str, Any] = dict(steps=4, batch_size=8, eval_every=2, workers=0, device="cpu", set=("lr=10",))
    run = vitreous.finetune(str(tmp_path / "data"), from_=checkpoint, out=str(tmp_path / "run"), **given)
    assert vitreous.load(tmp_path / "run").checkpoint.metrics["step"] == run.steps == 4


def test_batches_of_a_run_are_balanced() -> None:
    data = open_data("builtin:digits").source("train").subset(range(150))
    loader = Loader(data, "resize(8)|range(-1,1)", 40, workers=0, sampling="balanced")
    batches = loader.training()
    for _ in range(3):
        assert np.array_equal(np.bincount(next(batches).targets), [4] * 10)


def test_pos_weight_is_torchs_and_counts_in_training_only() -> None:
    weight = balanced_pos_weight([3, 0, 10], 12)
    assert weight.tolist() == pytest.approx([9 / 3, 1.0, 2 / 10])
    model = create("ViT-Ti/2", width=16, depth=1, heads=2, mlp=16, image_size=4, classes=3)
    objective = Classification(model, "sigmoid", pos_weight=weight)
    logits, targets = torch.randn(4, 3), torch.randint(0, 2, (4, 3)).float()
    expected = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight, reduction="none").sum(1)
    assert torch.allclose(objective.train().losses(logits, targets), expected)
    plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
    assert torch.allclose(objective.eval().losses(logits, targets), plain)


def test_what_does_not_go_together_is_refused_in_one_line(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"pos_weight=balanced is for loss=sigmoid"):
        finetune(checkpoint, tmp_path / "run", set=("pos_weight=balanced",))
    with pytest.raises(VitreousError, match="sampling='evenly' must be one of uniform, balanced"):
        finetune(checkpoint, tmp_path / "run", set=("sampling=evenly",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("width", "options", "learns"),
    [(192, {}, "lora"), (24, {}, "all"), (192, {"train": "all"}, "all"), (192, {"parallel": "fsdp"}, "all")],
)
def test_what_learns_by_default(tmp_path: Path, width: int, options: dict[str, Any], learns: str) -> None:
    sizes = dict(width=width, depth=1, heads=3, mlp=48, image_size=8, classes=10, channels=1)
    Classifier(random_checkpoint("ViT-Ti/2", preprocess="resize(8)|range(-1,1)", **sizes)).save(tmp_path / "start")
    finetune(str(tmp_path / "start"), tmp_path / "run", steps=1, **options)
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert recipe["train"] == learns
