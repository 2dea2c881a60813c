"""Accuracy for the same computing time: vitreous by its defaults, a plain timm script, transformers' Trainer, fastai and
lightly-train.

    python benchmarks/accuracy.py photos/ cifar10@DIR --from CHECKPOINT --minutes 15 --image-size 112 --out accuracy.jsonl
    python benchmarks/accuracy.py photos/ --minutes 15 --image-size 64 --out accuracy.jsonl

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
    fastai        its tutorials: items of twice the size, `aug_transforms(size=...)`, batch 64, Adam; from weights
                  `vision_learner(...).fine_tune(epochs)`, its head, an epoch of the head alone at 2e-3, then 1e-5 for the
                  backbone and 1e-3 for the head; from scratch `Learner(...).fit_one_cycle(epochs)` at 1e-3
    lightly-train `train_image_classification(...)` by its defaults: AdamW 3e-4, at most 500 steps of warm-up, cosine, batch
                  16, crops of 20 to 100 %, flip, colour jitter, bf16-mixed; from weights its own `dinov2/vits14-noreg`. Its
                  documentation advises to try several learning rates; this is the default alone
From scratch all but the first train the same ViT: 192 wide, 12 layers, 3 heads, 64 patches. fastai and lightly-train run
without validation on the way, and the last weights are reported. lightly-train pools timm's ViT by its patches' mean.

The first four need the extra `bench`. fastai and lightly-train are not run unless named in `--contenders`:
    pip install -c constraints.txt -e .[bench] fastai lightly-train
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
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

CONTENDERS = ("vitreous", "vitreous-same", "timm", "transformers")  # unless others are asked for
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
        return self.transform(read_image(self.source, index)), self.source.labels(index)[0]


def read_image(source: Source, index: int) -> Image.Image:
    content = source.read(index)
    pixels = content if isinstance(content, np.ndarray) else np.asarray(decode(content))
    return Image.fromarray(pixels).convert("RGB")


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
    """As many as fit."""
    step()
    began = time.process_time()
    for _ in range(TRIALS):
        step()
    each = (time.process_time() - began) / TRIALS
    return max(1, int(seconds_to_train(each, minutes, batch, evaluated) / each))


def seconds_to_train(each: float, minutes: float, batch: int, evaluated: int) -> float:
    """What the evaluation leaves, where a step takes `each`; an evaluated image takes a third of a trained one's time."""
    return 60 * minutes - evaluated / batch * each / 3


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
        model = timm.create_model("vit_tiny_patch16_224", **common, **_timm_shape(size))
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
    return {**evaluate(model.eval(), Images(test, _centre(size))), "steps": steps, "images": steps * batch}


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


def run_fastai(data: str, start: str, size: int, minutes: float) -> dict[str, Any]:
    import timm
    from fastai.vision import all as fastai

    train, test = splits(data)
    fastai.set_seed(0)

    def find(item: int) -> tuple[Source, int]:
        return (train, item) if item < len(train) else (test, item - len(train))

    def label(item: int) -> str:
        source, index = find(item)
        return train.classes[source.labels(index)[0]]

    block = fastai.DataBlock(
        blocks=(fastai.ImageBlock, fastai.CategoryBlock(vocab=list(train.classes), sort=False)),
        splitter=fastai.IndexSplitter(list(range(len(train), len(train) + len(test)))),
        get_x=lambda item: read_image(*find(item)),
        get_y=label,
        item_tfms=fastai.Resize(2 * size),
        batch_tfms=[*fastai.aug_transforms(size=size), fastai.Normalize.from_stats(MEAN, STD)],
    )
    loaders = block.dataloaders(list(range(len(train) + len(test))), num_workers=0)
    batch = loaders.train.bs
    order = itertools.chain.from_iterable(torch.randperm(len(train)).tolist() for _ in itertools.count())
    loaders.train.get_idxs = lambda: list(itertools.islice(order, loaders.train.n))  # n: images in an epoch

    def learner(folder: str) -> Any:
        if start == "scratch":
            shape = _timm_shape(size)
            model = timm.create_model("vit_tiny_patch16_224", num_classes=len(train.classes), img_size=size, **shape)
            return fastai.Learner(loaders, model, metrics=fastai.accuracy)
        local = dict(file=_timm_weights(start, folder))
        how: dict[str, Any] = dict(img_size=size, pretrained_cfg_overlay=local)
        return fastai.vision_learner(loaders, "vit_small_patch14_dinov2", metrics=fastai.accuracy, **how)

    class Skip(fastai.Callback):  # type: ignore[misc]  # the test split is for the end
        def before_validate(self) -> None:
            raise fastai.CancelValidException

    class Clock(fastai.Callback):  # type: ignore[misc]
        def before_fit(self) -> None:
            self.times: list[float] = []

        def after_batch(self) -> None:
            self.times.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        trial, learn = learner(folder), learner(folder)
    loaders.train.n = batch * (TRIALS + 1)
    clock, each = Clock(), {}
    with trial.no_bar(), trial.no_logging():
        for frozen in (False, True)[: 1 if start == "scratch" else 2]:
            (trial.freeze if frozen else trial.unfreeze)()
            trial.fit(1, cbs=[Skip(), clock])
            each[frozen] = (clock.times[-1] - clock.times[0]) / TRIALS
    # Whole epochs, as many as come nearest to the time, each a little shorter or longer than the split
    seconds = seconds_to_train(each[False], minutes, batch, len(test))
    head = each.get(True, 0.0)
    epochs = max(1, round((seconds * batch / len(train) - head) / each[False]))
    batches = max(1, int(seconds / (head + epochs * each[False])))
    loaders.train.n = batches * batch
    with learn.no_bar(), learn.no_logging():
        (learn.fit_one_cycle if start == "scratch" else learn.fine_tune)(epochs, cbs=Skip())
        right = round(learn.validate()[1] * len(test))
    steps = batches * (epochs + len(each) - 1)
    return {"top1": right / len(test), "n": len(test), "steps": steps, "images": steps * batch, "epochs": epochs}


def run_lightly_train(data: str, start: str, size: int, minutes: float) -> dict[str, Any]:
    os.environ["LIGHTLY_TRAIN_EVENTS_DISABLED"] = "1"  # it reports every run to its makers
    import lightly_train
    from torch.optim.optimizer import register_optimizer_step_post_hook

    train, test = splits(data)
    batch = 16  # its default
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIGHTLY_TRAIN_CACHE_DIR"] = folder
        if start == "scratch":
            model, how = "timm/vit_tiny_patch16_224", {"backbone_args": dict(num_classes=0, img_size=size, **_timm_shape(size))}
        else:
            weights = f"{folder}/backbone.pt"  # timm's names are those of the model's authors
            torch.save(load_file(_timm_weights(start, folder)), weights)
            model, how = "dinov2/vits14-noreg", {"backbone_weights": weights}
        fit = functools.partial(
            lightly_train.train_image_classification,
            model=model,
            model_args=how,
            data={
                "train": _write_csv(train, range(len(train)), folder, "train"),
                "val": _write_csv(train, range(min(batch, len(train))), folder, "val"),  # it wants one
                "classes": dict(enumerate(train.classes)),
                "csv_label_type": "id",
            },
            transform_args={"image_size": (size, size)},
            num_workers=0,
            accelerator="cpu",
            devices=1,
        )
        clock: list[float] = []
        hook = register_optimizer_step_post_hook(lambda *_: clock.append(time.process_time()))
        fit(out=f"{folder}/trial", steps=TRIALS + 4)  # it draws the images of the first three
        hook.remove()
        each = (clock[-1] - clock[-1 - TRIALS]) / TRIALS
        steps = max(1, int(seconds_to_train(each, minutes, batch, len(test)) / each))
        fit(out=f"{folder}/run", steps=steps)
        trained = lightly_train.load_model(f"{folder}/run/exported_models/exported_last.pt").eval()
    found = evaluate(trained.forward_backend, Images(test, _centre(size)))
    return {**found, "steps": steps, "images": steps * batch}


def _write_csv(source: Source, indices: Sequence[int], folder: str, name: str) -> str:
    """The images' files and labels; images that are not files become some."""
    path = Path(folder) / f"{name}.csv"
    (Path(folder) / name).mkdir()
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image_path", "label"))
        for index in indices:
            image = source.path(index)
            if image is None:
                image = f"{folder}/{name}/{index}.png"
                read_image(source, index).save(image, compress_level=0)
            rows.writerow((Path(image).resolve(), source.labels(index)[0]))
    return str(path)


def _timm_shape(size: int) -> dict[str, int]:
    return dict(patch_size=size // GRID, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS)


def _timm_weights(start: str, folder: str) -> str:
    """A checkpoint's features by timm's names."""
    import vitreous

    vitreous.load(start).save(f"{folder}/timm", format="timm")
    return f"{folder}/timm/model.safetensors"


def _centre(size: int) -> Callable[[Image.Image], Tensor]:
    """timm's transform for evaluation, and lightly-train's."""
    from timm.data import create_transform

    return create_transform(size, is_training=False, crop_pct=7 / 8, interpolation="bicubic", mean=MEAN, std=STD)


def _forever(images: Images, batch: int) -> Any:
    while True:
        yield from torch.utils.data.DataLoader(images, batch_size=batch, shuffle=True, drop_last=len(images) > batch)


RUN: dict[str, Callable[..., dict[str, Any]]] = {
    "vitreous": run_vitreous,
    "vitreous-same": functools.partial(run_vitreous, same=True),
    "timm": run_timm,
    "transformers": run_transformers,
    "fastai": run_fastai,
    "lightly-train": run_lightly_train,
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
