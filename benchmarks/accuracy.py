"""Accuracy for the same computing time: vitreous by its defaults, a plain timm script and transformers' Trainer.

    python benchmarks/accuracy.py photos/ cifar10@DIR --from CHECKPOINT --minutes 15 --image-size 112 --out accuracy.jsonl
    python benchmarks/accuracy.py photos/ --start scratch --minutes 15 --image-size 64 --out accuracy.jsonl

A cell is one contender on one data set from one start, in a process of its own, on one thread. `--minutes` are minutes of the
processor, not of the clock, so a machine that does other things at the same time favours nobody; each contender times a few
steps that are discarded, then takes as many as fit, its evaluation included. Cells that OUT has already are not run again. The
test split (or the validation split, where there is no other) is read once, at the end.

Contenders, each as its documentation has it for small data:
    vitreous      `vitreous finetune DATA --from CHECKPOINT --minutes M`, or `pretrain DATA --minutes M`, and nothing else: with
                  its own choice of a model from scratch, and of bfloat16 where that pays
    vitreous-same the same with the ViT below from scratch, and in float32 as the peers
    timm          train.py's augmentation and smoothing (crops of 8 to 100 %, flip, colour jitter 0.4, smoothing 0.1), cosine;
                  from weights AdamW 5e-5, decay 0.01, layer decay 0.8, clip 1, batch 48, as its model cards have it; from
                  scratch AdamW 5e-4, decay 0.05, batch 64; a twentieth of the run is warm-up
    transformers  Trainer's own defaults: AdamW 5e-5, linear, batch 8, no augmentation
From scratch all but the first train the same ViT: 192 wide, 12 layers, 3 heads, 64 patches.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.bench.torchvision_import import declare_torchvision
from vitreous.core.table import table
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.transforms.decode import decode

CONTENDERS = ("vitreous", "vitreous-same", "timm", "transformers")
WIDTH, DEPTH, HEADS, GRID = 192, 12, 3, 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRIALS = 3  # steps that are timed

Cell = tuple[str, str, str]  # data, start, contender


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pillow images of a split, through somebody's transform."""

    def __init__(self, source: Source, transform: Callable[[Image.Image], Tensor]) -> None:
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        content = self.source.read(index)
        image = Image.fromarray(content) if isinstance(content, np.ndarray) else Image.fromarray(np.asarray(decode(content)))
        return self.transform(image.convert("RGB")), self.source.labels(index)[0]


def splits(data: str) -> tuple[Source, Source]:
    """To train on, and to report."""
    dataset = open_data(data)
    reported = next(name for name in ("test", "validation") if name in dataset.splits)
    train, test = dataset.source("train"), dataset.source(reported)
    assert isinstance(train, Source)
    assert isinstance(test, Source)
    return train, test


def evaluate(model: Callable[[Tensor], Tensor], images: Images) -> dict[str, Any]:
    right = 0
    with torch.no_grad():
        for pixels, labels in torch.utils.data.DataLoader(images, batch_size=32):
            right += int((model(pixels).argmax(dim=1) == labels).sum())
    return {"top1": right / len(images), "n": len(images)}


def count_steps(step: Callable[[], object], minutes: float, batch: int, evaluated: int) -> int:
    """As many as fit; an evaluated image takes a third of a trained one's time."""
    step()
    began = time.process_time()
    for _ in range(TRIALS):
        step()
    each = (time.process_time() - began) / TRIALS
    return max(1, int((60 * minutes - evaluated / batch * each / 3) / each))


# The contenders ------------------------------------------------------------------------------------------------------------


def run_vitreous(data: str, start: str, size: int, minutes: float, same: bool = False) -> dict[str, Any]:
    import vitreous
    from vitreous.training import timing

    timing.time.perf_counter = time.process_time  # type: ignore[attr-defined]  # minutes of the processor
    options: dict[str, Any] = {"minutes": minutes, "image_size": (size, size), "workers": 0}
    if same:
        options["precision"] = "float32"
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        if start == "scratch":
            if same:
                shape = dict(width=WIDTH, depth=DEPTH, heads=HEADS, mlp=4 * WIDTH, patch=size // GRID)
                options |= {"model": "ViT-Ti/16", "set": tuple(f"model.{name}={value}" for name, value in shape.items())}
            run = vitreous.pretrain(data, out=out, **options)
        else:
            run = vitreous.finetune(data, from_=start, out=out, **options)
        split = "test" if "test" in open_data(data).splits else "validation"
        (found,) = vitreous.evaluate(out, data, split=split, workers=0).records()
        config = json.loads((Path(out) / "config.json").read_text())
    recipe = config["recipe"]
    how = {name: recipe[name] for name in ("train", "optimizer", "lr", "batch_size")}
    how |= {"model": config["model"]["name"], "precision": config["precision"]}
    return {"top1": found["top1"], "n": found["n"], "steps": run.steps, "images": run.steps * recipe["batch_size"], **how}


def run_timm(data: str, start: str, size: int, minutes: float) -> dict[str, Any]:
    import timm
    from timm.data import create_transform
    from timm.optim import create_optimizer_v2

    import vitreous

    train, test = splits(data)
    common: dict[str, Any] = dict(num_classes=len(train.classes), img_size=size)
    if start == "scratch":
        shape = dict(patch_size=size // GRID, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS)
        model = timm.create_model("vit_tiny_patch16_224", **common, **shape)
        batch, optimizer = 64, create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05)
    else:
        with tempfile.TemporaryDirectory() as folder:
            vitreous.load(start, image_size=size, classes=len(train.classes)).save(f"{folder}/timm", format="timm")
            state = load_file(f"{folder}/timm/model.safetensors")
        model = timm.create_model("vit_small_patch14_dinov2", **common)
        model.load_state_dict({name: state.get(name, value) for name, value in model.state_dict().items()})
        batch = 48
        optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-5, weight_decay=0.01, eps=1e-6, layer_decay=0.8)
    augment = create_transform(size, is_training=True, color_jitter=0.4, interpolation="bicubic", mean=MEAN, std=STD)
    fixed = create_transform(size, is_training=False, crop_pct=7 / 8, interpolation="bicubic", mean=MEAN, std=STD)
    batches = _forever(Images(train, augment), batch)
    rates = [group["lr"] for group in optimizer.param_groups]
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(share: float) -> None:
        pixels, labels = next(batches)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, 20 * share) * (1 + np.cos(np.pi * share)) / 2
        optimizer.zero_grad()
        loss(model(pixels), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    model.train()
    steps = count_steps(lambda: step(0.0), minutes, batch, len(test))  # at a rate of 0
    for number in range(steps):
        step((number + 1) / (steps + 1))
    return {**evaluate(model.eval(), Images(test, fixed)), "steps": steps, "images": steps * batch}


def run_transformers(data: str, start: str, size: int, minutes: float) -> dict[str, Any]:
    from torchvision import transforms
    from transformers import Dinov2ForImageClassification, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    train, test = splits(data)
    if start == "scratch":
        shape = dict(hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH)
        config = ViTConfig(image_size=size, patch_size=size // GRID, num_labels=len(train.classes), **shape)
        model: Any = ViTForImageClassification(config)
    else:
        model = Dinov2ForImageClassification.from_pretrained(start, num_labels=len(train.classes), dtype=torch.float32)
    resize = transforms.Resize((size, size), transforms.InterpolationMode.BICUBIC)
    fixed = transforms.Compose([resize, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    batch, batches = 8, _forever(Images(train, fixed), 8)

    def trial() -> None:
        pixels, labels = next(batches)
        nn.functional.cross_entropy(model(pixels).logits, labels).backward()
        model.zero_grad()

    model.train()
    steps = count_steps(trial, minutes, batch, len(test))

    def collate(rows: Sequence[tuple[Tensor, int]]) -> dict[str, Tensor]:
        return {"pixel_values": torch.stack([row[0] for row in rows]), "labels": torch.tensor([row[1] for row in rows])}

    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = dict(max_steps=steps, use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True)
        arguments = TrainingArguments(folder, remove_unused_columns=False, **how)
        Trainer(model, arguments, train_dataset=Images(train, fixed), data_collator=collate).train()
    found = evaluate(lambda pixels: model.eval()(pixels).logits, Images(test, fixed))
    return {**found, "steps": steps, "images": steps * batch}


def _forever(images: Images, batch: int) -> Any:
    while True:
        yield from torch.utils.data.DataLoader(images, batch_size=batch, shuffle=True, drop_last=len(images) > batch)


RUN: dict[str, Callable[..., dict[str, Any]]] = {
    "vitreous": run_vitreous,
    "vitreous-same": functools.partial(run_vitreous, same=True),
    "timm": run_timm,
    "transformers": run_transformers,
}


# The table -----------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--from", dest="start", help="a checkpoint, a Hugging Face folder, for all contenders")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    start = options.start or "scratch"
    if options.cell:
        declare_torchvision()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        found = RUN[options.cell](options.data[0], start, options.image_size, options.minutes)
        print(json.dumps({**found, "cpu_seconds": round(time.process_time(), 1)}))
        return
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for data in options.data:
        for contender in options.contenders.split(","):
            about = {"data": Path(data).name, "start": Path(start).name, "contender": contender}
            about |= {"minutes": options.minutes, "image_size": options.image_size}
            if any(about.items() <= row.items() for row in done):
                continue
            command = [sys.executable, __file__, data, "--cell", contender, "--minutes", str(options.minutes)]
            command += ["--image-size", str(options.image_size), *(["--from", start] if options.start else [])]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"{contender} on {data}: {run.stderr[-800:]}", file=sys.stderr)
                continue
            done.append({**about, **json.loads(run.stdout.splitlines()[-1])})
            with options.out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    cells = [(row["data"], row["start"], row["contender"], f"{row['top1']:.1%}", row["n"], row["steps"], row["images"],
              row["cpu_seconds"]) for row in done]  # fmt: skip
    print(table(("data", "start", "contender", "top-1", "of", "steps", "images seen", "CPU seconds"), cells))


if __name__ == "__main__":
    main()
