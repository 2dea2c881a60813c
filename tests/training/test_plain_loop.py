"""The loop against one that anybody would write by hand in PyTorch: the same weights after some steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from runs import pretrain
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous
from vitreous.core.progress import silence
from vitreous.data.transforms.parse import Preprocess

STEPS, WARMUP, LR, CLIP = 10, 3, 0.05, 1.2
FIXED = "resize(8)|range(-1,1)"  # nothing by chance, so that batches are all that is taken from the loader


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("start") / "run"
    pretrain(out, steps=5)
    return out


def by_hand(start: Path, source: Any, optimizer: str, loss: str) -> tuple[dict[str, Tensor], list[float]]:
    """Weights after the last step, and the gradients' norms before they were clipped."""
    model = vitreous.load(start, classes=len(source.classes)).model.train()
    made: torch.optim.Optimizer
    if optimizer == "sgd":
        made = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    else:
        made = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.1)
    batches = vitreous.Loader(source, Preprocess(FIXED, 1), 32, workers=0).training()
    norms = []
    for step in range(1, STEPS + 1):
        batch = next(batches)  # type: ignore[call-overload]
        logits = model(batch.images)
        if loss == "softmax":
            value = F.cross_entropy(logits, batch.targets)
        else:
            targets = torch.zeros_like(logits)
            for row, labels in enumerate(batch.labels):
                targets[row, list(labels)] = 1.0
            value = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / 32
        made.zero_grad()
        value.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        decayed = 0.5 * (1 + math.cos(math.pi * max(0, step - WARMUP) / (STEPS - WARMUP)))
        for group in made.param_groups:
            group["lr"] = LR * decayed * min(1.0, step / WARMUP)
        made.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, norms


def ran(out: Path, start: Path, data: str, **changes: Any) -> dict[str, Tensor]:
    options: dict[str, Any] = dict(steps=STEPS, batch_size=32, workers=0, eval_every=0, precision="float32", preprocess=FIXED)
    common = (f"lr={LR}", f"clip={CLIP}", f"warmup={WARMUP}", "mixup=0", "class_weights=none", "head_start=zero")
    with silence():
        vitreous.finetune(data, from_=str(start), out=str(out), **{**options, **changes, "set": (*common, *changes["set"])})
    return load_file(out / "checkpoint" / "model.safetensors")


def assert_alike(ours: dict[str, Tensor], theirs: dict[str, Tensor], start: Path) -> None:
    begun = vitreous.load(start, classes=len(theirs["head.bias"])).model.state_dict()
    assert ours.keys() == theirs.keys()
    one, two, zero = (torch.cat([weights[name].flatten() for name in sorted(ours)]) for weights in (ours, theirs, begun))
    # Of the way that training went. Adam makes much of gradients that are rounding alone, as of key biases.
    assert (one - two).norm() < 1e-2 * (two - zero).norm()


@pytest.mark.parametrize(("optimizer", "micro_batch"), [("sgd", "32"), ("sgd", "8"), ("adam", "32")])
def test_a_run_ends_where_a_loop_written_by_hand_does(start: Path, tmp_path: Path, optimizer: str, micro_batch: str) -> None:
    changes = (f"optimizer={optimizer}", *(("weight_decay=0.1", "decay=all") if optimizer == "adam" else ()))
    ours = ran(tmp_path / "run", start, "builtin:digits", set=changes, micro_batch=micro_batch)
    theirs, norms = by_hand(start, vitreous.open_data("builtin:digits").source("train"), optimizer, "softmax")
    assert min(norms) < CLIP < max(norms)  # some steps are clipped, and some are not
    assert_alike(ours, theirs, start)


def test_images_with_several_labels_learn_all_of_them(start: Path, tmp_path: Path) -> None:
    """A manifest with two labels a row, the digit and whether it is even: the recipe takes the sigmoid loss by itself."""
    digits = vitreous.open_data("builtin:digits").source("train")
    (tmp_path / "pictures").mkdir()
    rows = ["path,label,split"]
    for index in range(160):
        Image.fromarray(digits.read(index)).save(tmp_path / "pictures" / f"{index}.png")
        (digit,) = digits.labels(index)
        split = "train" if index < 128 else "validation"
        rows.append(f"pictures/{index}.png,{digit};{'odd' if digit % 2 else 'even'},{split}")
    manifest = tmp_path / "several.csv"
    manifest.write_text("\n".join(rows) + "\n")
    source = vitreous.open_data(str(manifest)).source("train")
    assert {len(source.labels(index)) for index in range(128)} == {2}
    ours = ran(tmp_path / "run", start, str(manifest), set=())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["loss"] == "sigmoid"
    assert any("each a question of its own" in line for line in config["decisions"])
    assert_alike(ours, by_hand(start, source, "sgd", "sigmoid")[0], start)
