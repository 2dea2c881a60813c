"""Adapt a checkpoint for transfer: image size, head and patch size (section 3.2); changes are noted.

This is section 3.2 of the paper: the pre-training head and its tanh layer are removed and a zero-initialised linear
head is attached; at a higher resolution the patch size stays, so the sequence grows and the position table is
interpolated.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.build import build_on_meta
from vitreous.models.config import (
    AxialResNetConfig,
    ModelConfig,
    PositionResize,
    ResNetConfig,
    Size,
    ViTConfig,
    parse_size,
    replace_config,
)
from vitreous.models.positions import RelativePositions, resize_grid, resize_line, resize_relative
from vitreous.weights.checkpoint import Checkpoint


def adapt(
    checkpoint: Checkpoint,
    *,
    image_size: int | Size | None = None,
    classes: int | None = None,
    patch: int | Size | None = None,
    position_resize: PositionResize | None = None,
    keep_representation: bool = False,
) -> Checkpoint:
    """The checkpoint, changed as asked and in no other way; with nothing asked it comes back as it is."""
    config, tensors, notes = checkpoint.config, dict(checkpoint.tensors), list(checkpoint.notes)
    names, preprocess = checkpoint.classes, checkpoint.preprocess
    if patch is not None or position_resize is not None:
        if isinstance(config, ResNetConfig):
            raise VitreousError(f"{config.name} has neither patches nor positions to change")
        if position_resize is not None:
            config = replace_config(config, position_resize=position_resize)
        if patch is not None:
            config = _change_patch(config, tensors, parse_size(patch), parse_size(image_size) if image_size else None, notes)
    if image_size is not None:
        config = _change_size(config, tensors, parse_size(image_size), notes)
    if image_size is not None or config.image_size != checkpoint.config.image_size:
        preprocess = str(Preprocess(preprocess).at(*config.image_size))
    if classes is not None:
        config = _replace_head(config, tensors, classes, keep_representation, notes)
        names = None
    return dataclasses.replace(
        checkpoint,
        config=config,
        tensors=tensors,
        notes=tuple(notes),
        classes=names,
        preprocess=preprocess,
        outputs=checkpoint.outputs if classes is None else "softmax",
        head=checkpoint.head if classes is None else {},
        conformal=checkpoint.conformal if classes is None else {},
    )


def config_at(config: ModelConfig, size: Size) -> ModelConfig:
    """The same architecture for images of another size; one that patches do not divide is refused."""
    trunk = replace_config(config.trunk, image_size=size) if isinstance(config, ViTConfig) and config.trunk else None
    return replace_config(config, image_size=size, **({"trunk": trunk} if trunk else {}))


def _change_size(config: ModelConfig, tensors: dict[str, Tensor], size: Size, notes: list[str]) -> ModelConfig:
    if size == config.image_size:
        return config
    new = config_at(config, size)
    if isinstance(config, ViTConfig) and isinstance(new, ViTConfig):
        resize_positions(tensors, config, new, notes)
    elif isinstance(new, AxialResNetConfig):
        _resize_axial_positions(tensors, new, notes)
    return new


def _resize_axial_positions(tensors: dict[str, Tensor], new: AxialResNetConfig, notes: list[str]) -> None:
    """Every table of offsets along a row or column, to the length that its feature map has at the new image size."""
    for name, module in build_on_meta(new).named_modules():
        if isinstance(module, RelativePositions):
            table = tensors[f"{name}.table"]
            tensors[f"{name}.table"] = resize_relative(table, 0, (1, (len(table) + 1) // 2), module.grid, module.mode)
    notes.append(f"relative positions resized for images of {_format_grid(new.image_size)}")


def resize_positions(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig, notes: list[str]) -> None:
    """Bring every learned position table from the old grid to the new one, in the new config's mode."""
    if old.grid == new.grid:
        return
    mode, prefix = new.position_resize, old.position_prefix
    changed = False
    for name, tensor in tensors.items():
        if old.positions == "1d" and name.startswith("positions."):
            tensors[name] = torch.cat([tensor[:prefix], resize_grid(tensor[prefix:], old.grid, new.grid, mode)])
        elif old.positions == "2d" and name.startswith("positions."):
            tensors[name] = resize_line(tensor, new.grid[0 if name.endswith("rows") else 1], mode)
        elif old.positions == "relative" and name.endswith("relative.table"):
            tensors[name] = resize_relative(tensor, old.prefix_tokens, old.grid, new.grid, mode)
        else:
            continue
        changed = True
    if changed:
        notes.append(f"position embeddings resized from {_format_grid(old.grid)} to {_format_grid(new.grid)} ({mode})")


def _replace_head(
    config: ModelConfig, tensors: dict[str, Tensor], classes: int, keep_representation: bool, notes: list[str]
) -> ModelConfig:
    if not isinstance(classes, int) or classes < 0:
        raise VitreousError(f"classes={classes!r}: must be a whole number of at least 0; 0 leaves the head off")
    changes: dict[str, object] = dict(classes=classes, head_bias=0.0)
    if isinstance(config, ViTConfig):
        if config.representation and not keep_representation:
            notes.append(f"representation layer dropped ({config.representation} units, tanh)")
            changes["representation"] = None
        changes["distillation_head"] = False
    old = config.classes
    config = replace_config(config, **changes)
    for name in [n for n in tensors if n.startswith(("head.", "distillation_head."))]:
        del tensors[name]
    if isinstance(config, ViTConfig) and not config.representation:
        for name in ("representation.weight", "representation.bias"):
            tensors.pop(name, None)
    if classes:
        tensors["head.weight"] = torch.zeros(classes, config.feature_width)
        tensors["head.bias"] = torch.zeros(classes)
    if not old:
        notes += [f"the checkpoint has no head: a zero one of {classes} classes added"] if classes else []
    else:
        notes.append(f"head of {old} classes " + (f"replaced by a zero one of {classes} classes" if classes else "dropped"))
    return config


def _change_patch(
    config: ViTConfig, tensors: dict[str, Tensor], patch: Size, image_size: Size | None, notes: list[str]
) -> ViTConfig:
    """Another patch size: the kernel by pseudo-inverse resize, the grid by interpolation of positions."""
    if min(patch) < 1:
        raise VitreousError(f"patch={patch}: must be at least 1")
    if patch == config.patch:
        return config
    tensors["embedding.weight"] = resize_patch(tensors["embedding.weight"], patch)
    name = config.name.rsplit("/", 1)[0] + (f"/{patch[0]}" if patch[0] == patch[1] else f"/{patch[0]}x{patch[1]}")
    stride = config.stride
    if image_size is None:  # without a size asked for, the grid stays and the image grows with the patch
        image_size = (config.grid[0] * patch[0] * stride, config.grid[1] * patch[1] * stride)
    trunk = replace_config(config.trunk, image_size=image_size) if config.trunk else None
    new: ViTConfig = replace_config(config, patch=patch, image_size=image_size, trunk=trunk, name=name)
    notes.append(f"patch kernel resized from {_format_grid(config.patch)} to {_format_grid(patch)} (pseudo-inverse)")
    resize_positions(tensors, config, new, notes)
    return new


def resize_patch(kernel_DCPP: Tensor, patch: Size) -> Tensor:
    """FlexiViT's resize: the new kernel gives a resized patch the embedding that the old one gave the original.

    Resizing a patch is linear, x -> B x. The kernel w' with <w', B x> = <w, x> for all x is pinv(B)^T w, exactly so
    when patches grow and in the least-squares sense when they shrink. Plain interpolation would change the scale.
    """
    old = (kernel_DCPP.shape[2], kernel_DCPP.shape[3])
    basis = torch.eye(old[0] * old[1], dtype=torch.float64).view(-1, 1, *old)
    resized = F.interpolate(basis, size=patch, mode="bilinear", align_corners=False, antialias=True)
    b = resized.flatten(1).T  # (new pixels, old pixels)
    pseudo_inverse_T = torch.linalg.pinv(b).T
    flat = kernel_DCPP.double().flatten(2)  # (D, C, old pixels)
    return (flat @ pseudo_inverse_T.T).unflatten(2, patch).to(kernel_DCPP.dtype).contiguous()


def _format_grid(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
