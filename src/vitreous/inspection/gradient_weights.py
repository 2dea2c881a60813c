"""Gradient-weighted attention rollout for a given class.

Rollout tells how tokens were mixed, whatever that was good for. Here each attention A of a layer is weighed by the gradient of
the score y, and what speaks against it is left out (Chefer and others, 2021); the rest is rollout as in attention_rollout.py:

    W_l = mean over heads of (A_l * dy/dA_l)+        M_l = rows of (W_l + I), each divided by its sum

The score is the logit of the predicted class, or of a given one. A model without a head has no classes; its score is half the
squared length of its features, whose gradient is the features themselves: what made them what they are.

Memory does not grow with N x N times layers, though every layer's gradient is wanted. The model runs once without gradients
and only what enters each block is kept. Then, from the last block to the first, a block runs again with gradients, by itself,
on fused attention: with O = A V, the gradient of O gives dy/dA = dy/dO V^T, so no attention is ever part of a graph. M_l is
used and forgotten: since the layers come last first, what the head reads is carried as one row per image.

Shapes: B images, N tokens, the leading ones first, H heads, K values for each head, D = H K width. Axial attention runs along
lines of the grid; there B counts lines and N the patches of one, until its weights are spread over all patches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.core.errors import VitreousError
from vitreous.inference.batches import Images
from vitreous.inference.predictions import top_classes
from vitreous.inspection.attention_rollout import add_residual, probe_attention, select_head_rows
from vitreous.inspection.eval_mode import Subject, eval_mode, prepared_batches
from vitreous.inspection.head_view import grid_of
from vitreous.models.attention_maps import attention_layers, require_attention
from vitreous.models.config import Size
from vitreous.models.pooling import AttentionPool
from vitreous.models.vit import Attention, ViT


def gradient_rollout(
    subject: Subject, images: Images, classes: Sequence[int] | Tensor | None = None, batch_size: int = 8
) -> NDArray[np.float32]:
    """Gradient-weighted rollout of images of any kind, (B, rows, columns): see `compute_gradient_rollout`.

    `classes` are the numbers of the classes asked for, one for each image; the predicted ones unless given.

    >>> gradient_rollout(load("runs/pets"), "cat.jpg", [7])[0]
    """
    wanted = None if classes is None else _as_class_indices(classes)
    found: list[NDArray[np.float32]] = []
    done = 0
    with eval_mode(subject) as model:
        for batch in prepared_batches(subject, images, batch_size):
            own = None if wanted is None else wanted[done : done + len(batch)]
            found.append(compute_gradient_rollout(model, batch, own).cpu().numpy())
            done += len(batch)
    if wanted is not None and len(wanted) != done:
        raise _count_mismatch(len(wanted), done)
    return np.concatenate(found)


def compute_gradient_rollout(model: nn.Module, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """How much of each patch has come to what enters the head and raises the score, (B, rows, columns), of prepared images.

    Values are shares, as those of rollout: with the leading tokens', which are left out here, they sum to 1. How much stays
    with a token depends on the scale of the logits, so compare places of an image, not images. Weights and their
    gradients stay as they are.
    """
    vit = require_attention(model)
    grid = grid_of(vit, images)
    layers = dict(attention_layers(vit))
    # A server may run everything in inference mode, whose tensors can have no gradient.
    with eval_mode(vit), torch.inference_mode(False):
        with torch.no_grad(), _record_inputs(vit) as calls:
            z_BND = vit.tokens(images.clone())
        rows_BN, gradient_BND = _head_gradient(vit, z_BND, classes)
        for block, inputs in reversed(calls):
            weights, gradient_BND = _back_through(block, inputs, gradient_BND)
            for attention, weights_BNN in reversed(weights):
                spread = layers[attention]
                whole_BNN = spread(weights_BNN[:, None], grid)[:, 0] if spread else weights_BNN
                rows_BN = (rows_BN[:, None] @ add_residual(whole_BNN))[:, 0]
    return rows_BN[:, vit.prefix_tokens :].unflatten(1, grid)


def _head_gradient(vit: ViT, z_BND: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which tokens the head reads, (B, N), and dy/dz of the last block's output."""
    with torch.enable_grad(), _record_attention(vit.pool) as pooled:
        entered = z_BND.detach().requires_grad_()
        score = _score(vit, entered, classes)
        gradient_BND, *rest = torch.autograd.grad(score, [entered, *(joined for _, _, joined in pooled)])
    probe_BN: Tensor | None = None
    if pooled:
        (pool, z_BND, _), (gradient_BD,) = pooled[0], rest
        assert isinstance(pool, AttentionPool)
        probe_BN = _weigh_probe(pool, z_BND, gradient_BD)
    itself = torch.eye(z_BND.shape[1], device=z_BND.device).expand(len(z_BND), -1, -1)
    return select_head_rows(vit, itself, probe_BN), gradient_BND


def _score(vit: ViT, z_BND: Tensor, classes: Tensor | None) -> Tensor:
    """y, summed over images: none depends on another, so the gradient of the sum holds each one's own."""
    if not vit.config.classes:
        if classes is not None:
            raise VitreousError(f"{vit.config.name} has no head, so it has no classes to ask for; load it with classes=...")
        return vit.features_of(z_BND).square().sum() / 2
    logits = vit.logits_of(z_BND)
    if classes is None:
        best = top_classes(logits.detach(), 1)
        return logits.gather(1, best).sum()
    classes = _as_class_indices(classes).to(logits.device)
    if len(classes) != len(logits):
        raise _count_mismatch(len(classes), len(logits))
    if not ((classes >= 0) & (classes < vit.config.classes)).all():
        raise VitreousError(f"classes {classes.tolist()}: {vit.config.name} has the classes 0 to {vit.config.classes - 1}")
    return logits.gather(1, classes[:, None]).sum()


def _as_class_indices(classes: Sequence[int] | Tensor) -> Tensor:
    numbers = torch.as_tensor(classes)
    if numbers.ndim != 1 or numbers.is_floating_point():
        raise VitreousError(f"classes {classes!r}: give the number of one class for each image, as [3, 1]")
    return numbers.long()


def _count_mismatch(classes: int, images: int) -> VitreousError:
    return VitreousError(f"{classes} classes for {images} images; give one for each image")


def _back_through(
    block: nn.Module, inputs: tuple[Any, ...], gradient_BND: Tensor
) -> tuple[list[tuple[Attention, Tensor]], Tensor]:
    """W of each attention in a block, first one first, and dy/dz of what entered it."""
    attentions = [module for module in block.modules() if isinstance(module, Attention)]
    with torch.enable_grad(), _record_attention(*attentions) as passes:
        entered = inputs[0].detach().requires_grad_()
        left = block(entered, *inputs[1:])
        before_BND, *gradients = torch.autograd.grad(left, [entered, *(joined for _, _, joined in passes)], gradient_BND)
    weights: list[tuple[Attention, Tensor]] = []
    for (attention, z_BND, _), joined in zip(passes, gradients, strict=True):
        assert isinstance(attention, Attention)
        weights.append((attention, _weigh_attention(attention, z_BND, joined, inputs[-1])))
    return weights, before_BND


@torch.no_grad()
def _weigh_attention(attention: Attention, z_BND: Tensor, gradient_BND: Tensor, grid: Size) -> Tensor:
    """W: the mean over heads of (A * dA)+, (B, N, N), from what entered the attention and dy/dO of its heads side by side."""
    attention_BHNN = attention.probabilities(z_BND, grid)
    _, _, v_BHNK = attention.project(z_BND, grid)
    total = attention_BHNN.new_zeros(attention_BHNN[:, 0].shape, dtype=torch.float32)
    for head, gradient_BNK in enumerate(gradient_BND.unflatten(-1, (attention.heads, -1)).unbind(2)):
        by_gradient = gradient_BNK.float() @ v_BHNK[:, head].float().transpose(1, 2)
        total += by_gradient.mul_(attention_BHNN[:, head]).clamp_(min=0)
    return total / attention.heads


@torch.no_grad()
def _weigh_probe(pool: AttentionPool, z_BND: Tensor, gradient_BD: Tensor) -> Tensor:
    """Where the probe of an attention pooling looks, (B, N), weighed like any attention. Nothing passes by it, so no
    identity is added. Where nothing raises the score it is the probe's plain look."""
    look_BHN = probe_attention(pool, z_BND).float()
    v_BNHK = pool.key_value(z_BND)[..., z_BND.shape[-1] :].unflatten(-1, (pool.heads, -1)).float()
    by_gradient = torch.einsum("bhk,bnhk->bhn", gradient_BD.unflatten(-1, (pool.heads, -1)).float(), v_BNHK)
    weighed_BN = (look_BHN * by_gradient).clamp(min=0).mean(dim=1)
    total = weighed_BN.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weighed_BN / torch.where(total > 0, total, 1), look_BHN.mean(dim=1))


@contextmanager
def _record_inputs(vit: ViT) -> Iterator[list[tuple[nn.Module, tuple[Any, ...]]]]:
    """While this is open, every block that runs is noted with what entered it, so that the call can be made again."""
    calls: list[tuple[nn.Module, tuple[Any, ...]]] = []
    with ExitStack() as hooks:
        for block in vit.blocks:
            hooks.enter_context(block.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs))))
        yield calls


@contextmanager
def _record_attention(*modules: nn.Module | None) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """While this is open, each of these attentions that runs is noted: it, what entered it, and its heads side by side."""
    passes: list[tuple[nn.Module, Tensor, Tensor]] = []
    entered: dict[nn.Module, Tensor] = {}

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        entered[module] = inputs[0].detach()

    def join(owner: nn.Module, out: nn.Module, inputs: tuple[Any, ...]) -> None:
        passes.append((owner, entered.pop(owner), inputs[0]))

    with ExitStack() as hooks:
        for module in filter(None, modules):
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.out.register_forward_pre_hook(partial(join, module)))  # type: ignore[union-attr]
        yield passes
