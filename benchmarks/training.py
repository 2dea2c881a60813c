"""Training side by side: vitreous, timm and transformers, from picture files to optimiser steps, interleaved in one run.

    python benchmarks/training.py                            # both models, both GELUs
    python benchmarks/training.py --models 96x6 --rounds 15 --threads 1

32 px, patch 4, 10 classes, float32, softmax loss, AdamW; the same architecture, batch and GELU for all in a table. Each
contender is a process of its own, because what vitreous asks of the C library would help all others in the same process;
all but one wait. A turn is a few steps; a ratio is the median over rounds of two turns of one round, so that a slow moment
of the machine weighs on both. Beside the wall clock stands processor time, which a busy machine disturbs less; the workers
of the loaders are not in it.

Loaders go on filling their queues while the others have their turn: 4 batches wait with torch's loader, 1 with ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision_schemas import declare_torchvision

declare_torchvision()  # here, so that the contenders' processes do it, too; timm and transformers import torchvision

SIZE, CLASSES, LR, DECAY = 32, 10, 1e-3, 0.05
MODELS = {"192x12": (192, 12, 3), "96x6": (96, 6, 3)}  # ViT-Ti and a smaller one: width, depth, heads
ACTIVATIONS = {"gelu-erf": ("gelu", "gelu"), "gelu-tanh": ("gelu_tanh", "gelu_pytorch_tanh")}  # ours: timm's, transformers'


@dataclass(frozen=True)
class Setting:
    model: str
    activation: str
    batch: int
    workers: int
    threads: int
    folder: str


Step = Callable[[], None]
Steps = Callable[[Setting, contextlib.ExitStack], Step]  # the stack is left when there are no more steps


# The contenders ----------------------------------------------------------------------------------------------------------


def vitreous_steps(
    setting: Setting,
    leaving: contextlib.ExitStack,
    *,
    keep: bool = True,
    lean: bool = True,
    fused: bool = True,
    compiled: bool = False,
    parts: int = 1,
) -> Step:
    """What `vitreous pretrain` does for a step; the options take its measures away one by one."""
    import vitreous
    from vitreous.core.device import keep_memory
    from vitreous.data.open import open_data
    from vitreous.data.source import ALL, Source
    from vitreous.data.transforms.mixup import one_hot
    from vitreous.training.objectives.classification import Classification

    if keep:
        keep_memory()
    width, depth, heads = MODELS[setting.model]
    shape = dict(width=width, depth=depth, heads=heads, mlp=4 * width, patch=4, image_size=SIZE, classes=CLASSES)
    model = vitreous.create("ViT-B/16", **shape, activation=setting.activation)
    model.lean = lean
    if compiled:
        for block in model.blocks:
            block.compile()
    objective = Classification(model, "softmax").train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=LR, weight_decay=DECAY, fused=fused)
    source = open_data(Path(setting.folder)).source(ALL)
    assert isinstance(source, Source)
    loader = vitreous.Loader(source, f"inception_crop({SIZE})|flip|range(-1,1)", setting.batch, workers=setting.workers)
    batches = leaving.enter_context(contextlib.closing(loader.training()))  # type: ignore[type-var]

    def step() -> None:
        batch = next(batches)
        targets = one_hot(batch.labels, CLASSES)
        for images, wanted in zip(batch.images.chunk(parts), targets.chunk(parts), strict=True):
            losses, _ = objective(images, wanted)
            (losses.sum() / setting.batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _plain_steps(model: Any, logits: Callable[[Any], Any], batches: Iterator[Any], fused: bool) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=fused or None)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(model(images)), labels).backward()
        optimizer.step()

    return step


def timm_steps(setting: Setting, _: contextlib.ExitStack, *, fused: bool = False) -> Step:
    import timm
    from timm.data import ImageDataset, create_loader

    width, depth, heads = MODELS[setting.model]
    model = timm.create_model(
        "vit_base_patch16_224", img_size=SIZE, patch_size=4, embed_dim=width, depth=depth, num_heads=heads, num_classes=CLASSES,
        act_layer=ACTIVATIONS[setting.activation][0],
    )  # fmt: skip
    loader = create_loader(
        ImageDataset(setting.folder), input_size=(3, SIZE, SIZE), batch_size=setting.batch, is_training=True, scale=(0.05, 1.0),
        ratio=(0.75, 1.33), hflip=0.5, color_jitter=None, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3,
        num_workers=setting.workers, device=torch.device("cpu"), persistent_workers=setting.workers > 0,
    )  # fmt: skip
    return _plain_steps(model, lambda out: out, _for_ever(loader), fused)


def transformers_steps(setting: Setting, _: contextlib.ExitStack, *, fused: bool = False) -> Step:
    import transformers
    from torchvision import datasets, transforms

    width, depth, heads = MODELS[setting.model]
    config = transformers.ViTConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * width, image_size=SIZE,
        patch_size=4, num_labels=CLASSES, hidden_act=ACTIVATIONS[setting.activation][1],
    )  # fmt: skip
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(SIZE, scale=(0.05, 1.0), ratio=(0.75, 1.33)), transforms.RandomHorizontalFlip(),
         transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(setting.folder, transform), setting.batch, shuffle=True, drop_last=True,
        num_workers=setting.workers, persistent_workers=setting.workers > 0,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return _plain_steps(model, lambda out: out.logits, _for_ever(loader), fused)


def _for_ever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


CONTENDERS: dict[str, Steps] = {
    "vitreous": vitreous_steps,
    "timm": timm_steps,
    "timm, fused AdamW": partial(timm_steps, fused=True),
    "transformers": transformers_steps,
    "transformers, fused AdamW": partial(transformers_steps, fused=True),
}
PARTS: dict[str, Steps] = {
    "without keep_memory": partial(vitreous_steps, keep=False),
    "without lean": partial(vitreous_steps, lean=False),
    "without fused AdamW": partial(vitreous_steps, fused=False),
    "without all three": partial(vitreous_steps, keep=False, lean=False, fused=False),
    "in 2 micro-batches": partial(vitreous_steps, parts=2),
    "in 4 micro-batches": partial(vitreous_steps, parts=4),
    "compiled": partial(vitreous_steps, compiled=True),
}


# Taking turns ------------------------------------------------------------------------------------------------------------


def contender(name: str, setting: Setting, pipe: Connection) -> None:
    """Steps on demand: a number comes in, wall and processor seconds for so many steps go out."""
    multiprocessing.set_start_method(None, force=True)  # loaders start workers as they would in a program of their own
    torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    with contextlib.ExitStack() as leaving, contextlib.suppress(EOFError):  # the end of the pipe: the benchmark was stopped
        step = (CONTENDERS | PARTS)[name](setting, leaving)
        while count := pipe.recv():
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(count):
                step()
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
            pipe.send((time.perf_counter() - wall, time.process_time() - processor, most))


def race(names: list[str], setting: Setting, rounds: int, steps: int) -> dict[str, list[tuple[float, float, float]]]:
    spawn = multiprocessing.get_context("spawn")
    running: dict[str, tuple[Any, Connection]] = {}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    try:
        for name in names:
            here, there = spawn.Pipe()
            process = spawn.Process(target=contender, args=(name, setting, there))
            process.start()
            there.close()  # so that a contender that fails is noticed
            running[name] = process, here
            here.send(3)  # to warm up, and one after another: the first steps start workers and compile
            here.recv()
        for turn in range(rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:  # nobody is always first
                running[name][1].send(steps)
                found[name].append(running[name][1].recv())
    finally:
        for process, here in running.values():
            if process.is_alive():
                here.send(0)
            process.join(20)
            if process.is_alive():
                process.terminate()
    return found


def pictures(folder: Path, count: int) -> None:
    """PNG files of 40 x 40 pixels, soft and grainy, in class folders: what a small data set has."""
    rng = np.random.default_rng(0)
    for number in range(count):
        soft = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((40, 40), Image.Resampling.BICUBIC)
        pixels = np.asarray(soft) + rng.normal(0, 6, (40, 40, 3))
        target = folder / f"class{number % CLASSES}" / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target)


def report(found: dict[str, list[tuple[float, float, float]]], setting: Setting, steps: int, as_json: bool) -> None:
    first = next(iter(found))
    if not as_json:
        print(
            f"\n{setting.model}, {setting.activation}, batch {setting.batch}, {setting.threads} threads, "
            f"{len(found[first])} rounds of {steps} steps"
        )
        print(f"{'':28s}{'images/s':>10s}{'vitreous is':>14s}{'by processor':>14s}{'peak MB':>9s}")
    for name, turns in found.items():
        images = setting.batch * steps / statistics.median(wall for wall, _, _ in turns)
        pairs = list(zip(turns, found[first], strict=True))
        wall = statistics.median(theirs[0] / ours[0] for theirs, ours in pairs)
        processor = statistics.median(theirs[1] / ours[1] for theirs, ours in pairs)
        memory = max(most for _, _, most in turns)
        if as_json:
            record = dict(contender=name, images_per_second=images, ratio=wall, ratio_processor=processor, peak_mb=memory)
            settings = {key: value for key, value in asdict(setting).items() if key != "folder"}
            print(json.dumps({**settings, "rounds": len(turns), **record}), flush=True)
        else:
            print(f"{name:28s}{images:10.1f}{wall:12.3f} x{processor:12.3f} x{memory:9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=list(ACTIVATIONS))
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS, *PARTS], default=list(CONTENDERS))
    parser.add_argument("--parts", action="store_true", help="vitreous beside itself, without each of its measures")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = ["vitreous", *PARTS] if options.parts else options.contenders
    with tempfile.TemporaryDirectory() as folder:
        pictures(Path(folder), 2000)
        for model in options.models:
            for activation in options.activations:
                setting = Setting(model, activation, options.batch, options.workers, options.threads, folder)
                report(race(names, setting, options.rounds, options.steps), setting, options.steps, options.json)


if __name__ == "__main__":
    main()
