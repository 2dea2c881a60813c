"""Inference and training steps of one model, by vitreous and by each peer, from the same weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.bench.exported_ours import exported_file
from vitreous.bench.exported_peers import ENGINES, load_exported
from vitreous.bench.models import CHECKPOINT, IMAGES, load_peer
from vitreous.bench.race import Work

if TYPE_CHECKING:
    from vitreous.inference.runner import Runner

LR, DECAY = 1e-3, 0.05  # AdamW's; any value costs the same


def outputs_file(work: Work) -> Path:
    """Where a contender leaves its logits for the fixed images."""
    name = "-".join((work.what, work.engine, work.precision, str(work.batch)))
    return Path(work.folder) / f"outputs-{name.replace(' ', '-')}.pt"


def model_step(work: Work, leaving: contextlib.ExitStack) -> Callable[[], Any]:
    images: Tensor = torch.load(Path(work.folder) / IMAGES, weights_only=True)
    if work.what == "training":
        return _training_step(work, images)
    run = _inference(work, leaving)
    logits = torch.cat([run(images[start : start + work.batch]) for start in range(0, len(images), work.batch)])
    torch.save(logits, outputs_file(work))
    batch = images.repeat(-(-work.batch // len(images)), 1, 1, 1)[: work.batch].contiguous()
    return lambda: run(batch)


def _inference(work: Work, leaving: contextlib.ExitStack) -> Callable[[Tensor], Tensor]:
    folder = Path(work.folder)
    if work.library == "vitreous":
        runner = leaving.enter_context(_our_runner(work))
        return lambda images: runner.run_once(images).logits
    if work.library in ENGINES:
        return load_exported(work)
    model, logits = load_peer(work.library, folder)
    model.eval()
    if work.compiled:
        model.compile()

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=work.precision == "bfloat16"):
            return logits(model(images)).float()

    return run


def _our_runner(work: Work) -> Runner:
    from vitreous.classifier import load
    from vitreous.inference.engines.choose import BUILD
    from vitreous.inference.runner import Runner
    from vitreous.models.token_merging import set_token_merging

    if work.precision == "int8":
        clf = load(exported_file(work))
        return Runner(clf.model, engine=clf.engine)
    model = load(Path(work.folder) / CHECKPOINT).model
    set_token_merging(model, work.merged)
    engine = "torch" if work.merged else work.engine.partition(" ")[2] or "torch"
    return Runner(model, "cpu", work.precision, lean=True, engine=BUILD[engine]())  # type: ignore[arg-type, index]


def _training_step(work: Work, images: Tensor) -> Callable[[], Any]:
    """Forward, softmax loss, backward and AdamW on one batch in memory."""
    torch.manual_seed(0)
    batch = torch.randn(work.batch, *images.shape[1:])
    if work.library == "vitreous":
        return _vitreous_training(work, images, batch)
    model, logits = load_peer(work.library, Path(work.folder))
    model.train()
    if work.compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    with torch.no_grad():
        first = logits(model(images))
    torch.save(first, outputs_file(work))
    labels = torch.randint(first.shape[1], (work.batch,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=work.precision == "bfloat16"):
            loss = torch.nn.functional.cross_entropy(logits(model(batch)).float(), labels)
        loss.backward()
        optimizer.step()

    return step


def _vitreous_training(work: Work, images: Tensor, batch: Tensor) -> Callable[[], Any]:
    """What `vitreous pretrain` does for a step."""
    from vitreous.classifier import load
    from vitreous.core.device import keep_memory
    from vitreous.data.transforms.mixup import one_hot
    from vitreous.models.vit import ViT
    from vitreous.training.objectives.classification import Classification

    keep_memory()
    model = load(Path(work.folder) / CHECKPOINT).model.train()
    if isinstance(model, ViT):
        model.lean = True
    if work.compiled:
        for block in model.blocks if isinstance(model, ViT) else [model]:
            block.compile()
    objective = Classification(model, "softmax").train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=LR, weight_decay=DECAY, fused=True)
    with torch.no_grad():
        torch.save(model(images), outputs_file(work))
    classes = int(model.config.classes)
    labels = [(int(label),) for label in torch.randint(classes, (work.batch,))]

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=work.precision == "bfloat16"):
            losses, _ = objective(batch, one_hot(labels, classes))
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
