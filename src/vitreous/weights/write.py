"""Write a checkpoint in any of the four formats, atomically, with a model card."""

from __future__ import annotations

import dataclasses
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from vitreous.core.errors import VitreousError, did_you_mean, nearest_names, unknown_name
from vitreous.core.files import atomic_file, atomic_folder, write_text
from vitreous.data.transforms.image import FILTERS
from vitreous.data.transforms.parse import Preprocess
from vitreous.models.config import AxialResNetConfig, ModelConfig, ViTConfig, replace_config
from vitreous.weights import huggingface, official, preprocessing, timm
from vitreous.weights.card import format_card
from vitreous.weights.checkpoint import (
    CARD,
    Checkpoint,
    format_document,
    may_write_card,
    read_document,
    write_checkpoint,
)
from vitreous.weights.formats import Family
from vitreous.weights.mapping import write_arrays


def save_checkpoint(checkpoint: Checkpoint, path: Path, format: Family | None = None) -> list[str]:
    """Write to `path`; the format is guessed from it where it is not given. Returns notes on what the format cannot hold."""
    chosen = format or guess_format(path)
    if chosen not in get_args(Family):
        raise unknown_name("format", str(chosen), get_args(Family))
    if path == Path():
        raise VitreousError("no place to write to was given; name a folder, or a file that ends in .npz")
    if chosen != "vitreous" and isinstance(checkpoint.config, AxialResNetConfig):
        raise VitreousError(f"{checkpoint.config.name}: no other format has axial ResNets; keep it as a vitreous checkpoint")
    tensors = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in checkpoint.tensors.items()}
    checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
    if chosen == "official":
        return _write_official(checkpoint, path)
    if path.suffix in (".npz", ".safetensors", ".pt", ".pth"):
        raise VitreousError(f"{path}: format {chosen!r} is a folder; give a name without {path.suffix}")
    if chosen == "timm":
        return _write_timm(checkpoint, path)
    if chosen == "huggingface":
        return _write_huggingface(checkpoint, path)
    write_checkpoint(checkpoint, path, format_card(checkpoint))
    return []


_FILES = (".npz", ".onnx", ".xml")  # that are written by their ending; the latter two by vitreous.export
_OTHERS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".pb", ".tflite", ".gguf", ".npy", ".zip", ".json")


def guess_format(path: Path) -> Family:
    """.npz is official; anything else is a vitreous folder, as runs/v1.2 is, but for endings that other files have.

    timm and Hugging Face folders look alike, so they must be named.
    """
    if path.suffix == ".npz":
        return "official"
    hint = did_you_mean(path.suffix, _FILES)
    mistaken = hint or path.suffix.lower() in _OTHERS or nearest_names(path.suffix, (".safetensors",))
    if mistaken and not path.is_dir():
        raise VitreousError(
            f"{path}: cannot write {path.suffix}; {hint}files end in {', '.join(_FILES)}; give a folder a name without an "
            f"ending, or --format vitreous, timm or huggingface"
        )
    return "vitreous"


def _write_official(checkpoint: Checkpoint, path: Path) -> list[str]:
    if path.suffix != ".npz":
        raise VitreousError(f"{path}: the official format is a file; give a name that ends in .npz")
    notes = []
    config = checkpoint.config
    if isinstance(config, ViTConfig) and config.class_token and config.positions == "1d" and config.position_prefix == 0:
        # big_vision gives its class token no position; the released layout has a row for it: zeros change nothing.
        table = checkpoint.tensors["positions.0.table"]
        tensors = {**checkpoint.tensors, "positions.0.table": torch.cat([torch.zeros_like(table[:1]), table])}
        checkpoint = dataclasses.replace(checkpoint, config=replace_config(config, position_prefix=1), tensors=tensors)
        notes.append("the class token's position row, which this model lacks, is written as zeros")
    notes += _note_unsaid(config)
    sincos = isinstance(config, ViTConfig) and config.positions == "sincos"  # only big_vision's names imply those
    arrays = write_arrays(official.rules(checkpoint.config, linen=sincos), checkpoint.tensors)
    sidecar = path.with_suffix(".json")
    if sidecar.exists() and read_document(sidecar) is None:
        raise VitreousError(f"{sidecar}: is not ours, and would be overwritten; choose another name for the .npz")
    with atomic_file(path) as part:
        _write_npz(arrays, part)
    write_text(sidecar, format_document(checkpoint, path, path.name))
    if may_write_card(path.with_suffix(".md")):
        write_text(path.with_suffix(".md"), format_card(checkpoint))
    return notes


def _note_unsaid(config: ModelConfig) -> list[str]:
    """What the authors' code, which reads only the arrays, would do otherwise."""
    if not isinstance(config, ViTConfig):
        return []
    rows, columns = config.grid
    numerics = (
        f"the authors' code runs every file with the tanh GELU and an epsilon of 1e-6; this model wants "
        f"{config.activation} and {config.norm_eps:g}, which only the .json beside it says"
    )
    grid = f"the grid of {rows}x{columns} patches is said only by the .json beside it"
    other_numerics = (config.activation, config.norm_eps) != ("gelu-tanh", 1e-6)
    return _those({numerics: other_numerics, grid: config.positions == "1d" and rows != columns})


def _those(notes: Mapping[str, bool]) -> list[str]:
    return [note for note, holds in notes.items() if holds]


def _write_npz(arrays: Mapping[str, Tensor], path: Path) -> None:
    """As numpy.savez does, but with a fixed date, so that equal weights give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, arrays[name].numpy(), version=(1, 0), allow_pickle=False)


def _write_timm(checkpoint: Checkpoint, folder: Path) -> list[str]:
    checkpoint, notes = _without_mask_token(checkpoint)
    config = checkpoint.config
    rules = timm.rules(config)
    names = {each.ours: each.theirs[0].removesuffix(".weight") for each in rules}
    settings, numerics = timm.to_settings(config)
    notes += numerics
    fields = _fields(checkpoint, "timm", notes)
    pretrained: dict[str, Any] = dict(
        input_size=[config.channels, *config.image_size],
        num_classes=config.classes,
        # Of other channels none is named: timm would fold it to 3.
        first_conv=names.get("trunk.root.weight", names.get("embedding.weight")) if config.channels == 3 else None,
        classifier="head" if isinstance(config, ViTConfig) else "head.fc",
        license=checkpoint.licence,
    )
    notes += _note_losses(checkpoint, "timm", "bicubic-antialias", sigmoid=False)
    if fields is not None:
        crop, size = fields.get("crop", config.image_size), fields.get("small") or fields["resize"]
        share = min(part / whole for part, whole in zip(crop, size, strict=True))
        # timm divides and cuts off: 224 / (224 / 249) must not come out as 248.
        while any(int(part / share) < whole for part, whole in zip(crop, size, strict=True)):
            share = math.nextafter(share, 0.0)
        mode = "center" if "small" in fields else "squash"
        words = dict(mean=fields["mean"], std=fields["std"], interpolation=fields["filter"], crop_pct=share, crop_mode=mode)
        pretrained.update(words)
        notes += _note_preprocessing(checkpoint, "timm", preprocessing.timm(words, config.image_size))
    settings.update(num_classes=config.classes, pretrained_cfg=pretrained)
    if checkpoint.classes:
        settings["label_names"] = list(checkpoint.classes)
    _write_hub_folder(folder, write_arrays(rules, checkpoint.tensors), {"config.json": settings}, checkpoint)
    return notes


def _without_mask_token(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """timm has none; only masked-patch training reads it."""
    config = checkpoint.config
    if not isinstance(config, ViTConfig) or not config.mask_token:
        return checkpoint, []
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name != "mask_token"}
    note = "the mask token, which only masked-patch training reads, is left out: timm has none"
    return dataclasses.replace(checkpoint, config=replace_config(config, mask_token=False), tensors=tensors), [note]


def _note_losses(checkpoint: Checkpoint, family: str, position_resize: str, sigmoid: bool) -> list[str]:
    """What the other side has no place for, though the weights are the same."""
    mode = checkpoint.config.position_resize if isinstance(checkpoint.config, ViTConfig) else position_resize
    plain = f"{family} has no plain bilinear resize: written as the averaging one, so large images will look smoother"
    positions = f"at another image size {family} resizes positions {position_resize}, this checkpoint {mode}"
    head = f"{family} has no place to say that this head has sigmoid outputs"
    return _those(
        {
            plain: "bilinear-plain" in checkpoint.preprocess,
            positions: mode != position_resize and getattr(checkpoint.config, "positions", "") == "1d",
            head: checkpoint.outputs == "sigmoid" and not sigmoid,
        }
    )


def _write_huggingface(checkpoint: Checkpoint, folder: Path) -> list[str]:
    checkpoint, notes = _with_transformers_parts(checkpoint)
    config = checkpoint.config
    kind = huggingface.find_kind(config)
    assert isinstance(config, ViTConfig)
    arrays = huggingface.to_arrays(config, kind, checkpoint.tensors)
    files: dict[str, Any] = {"config.json": huggingface.to_settings(config, checkpoint.classes)}
    fields = _fields(checkpoint, "Hugging Face", notes)
    resize = "bicubic-antialias" if kind == "dinov2_with_registers" else "bicubic"
    notes += _note_losses(checkpoint, "Hugging Face", resize, sigmoid=True)
    if checkpoint.outputs == "sigmoid":
        files["config.json"]["problem_type"] = "multi_label_classification"
    if fields is not None:
        files["preprocessor_config.json"] = written = _preprocessor(fields, kind)
        notes += _note_preprocessing(checkpoint, "Hugging Face", preprocessing.huggingface(written))
    _write_hub_folder(folder, arrays, files, checkpoint)
    return notes


def _with_transformers_parts(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """With the parts that transformers' classes have in any case, as zeros that change no output.

    DINOv3 has a mask token; a DINOv2 classifier reads the class token and the mean of the patches.
    """
    config = checkpoint.config
    if isinstance(config, ViTConfig) and config.positions == "rope":
        if config.mask_token:
            return checkpoint, []
        tensors = {**checkpoint.tensors, "mask_token": torch.zeros(1, 1, config.width)}
        note = "transformers' DINOv3 has a mask token, which this model lacks: written as zeros"
        return dataclasses.replace(checkpoint, config=replace_config(config, mask_token=True), tensors=tensors), [note]
    if not isinstance(config, ViTConfig) or config.layer_scale is None or config.pool != "token" or not config.classes:
        return checkpoint, []
    weight = checkpoint.tensors["head.weight"]
    tensors = {**checkpoint.tensors, "head.weight": torch.cat([weight, torch.zeros_like(weight)], dim=1)}
    note = "transformers' DINOv2 head also reads the mean of the patches: written with zero weights for it, so logits are equal"
    return dataclasses.replace(checkpoint, config=replace_config(config, pool="token+mean"), tensors=tensors), [note]


def _fields(checkpoint: Checkpoint, family: str, notes: list[str]) -> dict[str, Any] | None:
    """The preprocessing in words that both hubs have; none, and a note, where there are none or it was only guessed."""
    if checkpoint.preprocess_guessed:
        notes.append(f"the preprocessing was only guessed ({checkpoint.preprocess}), so the export does not state it")
        return None
    fields = preprocessing.parse_fields(checkpoint.preprocess, checkpoint.config.channels)
    if fields is None or (family == "Hugging Face" and len(set(fields.get("small", (1, 1)))) > 1):
        notes.append(f"{family} has no words for the preprocessing {checkpoint.preprocess}")
        return None
    return fields


def _note_preprocessing(checkpoint: Checkpoint, family: str, theirs: str) -> list[str]:
    """Whether what was written, read as the other side reads it, gives other pixels than the checkpoint's own string."""
    ours = Preprocess(checkpoint.preprocess.replace("bilinear-plain", "bilinear"))  # of which another note speaks
    if Preprocess(theirs).ops == ours.ops:
        return []
    return [f"{family} prepares images as {Preprocess(theirs)}, this checkpoint as {ours}: some may differ by a pixel's shift"]


def _preprocessor(fields: dict[str, Any], kind: str) -> dict[str, Any]:
    crop = "crop" in fields
    size = (
        {"shortest_edge": fields["small"][0]}
        if "small" in fields
        else dict(zip(("height", "width"), fields["resize"], strict=True))
    )
    out: dict[str, Any] = dict(
        image_processor_type="BitImageProcessor" if crop else "DeiTImageProcessor" if kind == "deit" else "ViTImageProcessor",
        do_resize=True,
        size=size,
        resample=int(FILTERS[fields["filter"]]),
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=fields["mean"],
        image_std=fields["std"],
        do_center_crop=crop,
    )
    if crop:
        out["crop_size"] = dict(zip(("height", "width"), fields["crop"], strict=True))
    return out


_HUB_FILES = {"config.json", "preprocessor_config.json", "model.safetensors", CARD}


def _write_hub_folder(folder: Path, arrays: Mapping[str, Tensor], files: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """A new folder, complete before it takes its name; an earlier export of the same kind is replaced as a whole."""
    if folder.exists() and not folder.is_dir():
        raise VitreousError(f"{folder}: is a file; this format needs a folder")
    others = sorted({path.name for path in folder.iterdir()} - _HUB_FILES) if folder.exists() else []
    if others or not may_write_card(folder / CARD):
        raise VitreousError(
            f"{folder}: holds other files ({others[0] if others else CARD}); choose a folder of its own for the export"
        )
    with atomic_folder(folder) as part:
        for name, content in files.items():
            (part / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (part / CARD).write_text(format_card(checkpoint), encoding="utf-8")
        safetensors.torch.save_file(dict(arrays), part / "model.safetensors", metadata={"format": "pt"})
