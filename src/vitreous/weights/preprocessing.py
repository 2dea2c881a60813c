"""Each family's preprocessing as one of our strings, and back for exports."""

from __future__ import annotations

from typing import Any

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.image import FILTERS
from vitreous.data.transforms.ops import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CentralCrop,
    Normalise,
    Range,
    Resize,
    ResizeSmall,
)
from vitreous.data.transforms.parse import parse
from vitreous.models.config import Size, parse_size

_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_BY_NUMBER = {int(value): name for name, value in FILTERS.items()}


def format_size(op: str, size: Size, *more: str) -> str:
    numbers = [str(size[0])] if size[0] == size[1] else [str(size[0]), str(size[1])]
    return f"{op}({','.join([*numbers, *more])})"


def normalisation(mean: Any, std: Any) -> str:
    mean, std = tuple(float(x) for x in mean), tuple(float(x) for x in std)
    if set(mean) == set(std) == {0.5}:
        return "range(-1,1)"
    return str(Normalise(mean, std))


def official(size: Size) -> str:
    """The authors test on the whole image, resized without averaging, in [-1, 1] (section 0, item 9 of the facts)."""
    return f"{format_size('resize', size, 'bilinear-plain')}|range(-1,1)"


def huggingface_guess(kind: str, size: Size) -> str:
    """Where there is no preprocessor_config.json: the shape of the image kept, 256 pixels cropped to 224, for example.

    DINOv2's position table is for 518 pixels, but it is used at 224. DINOv3 and SigLIP squash the whole image; CLIP crops
    no more than makes it square.
    """
    if kind.startswith("siglip"):
        return f"{format_size('resize', size, 'bicubic')}|range(-1,1)"
    if kind.startswith("clip"):
        crop = f"{format_size('resize_small', size, 'bicubic', 'floor')}|{format_size('central_crop', size)}"
        return f"{crop}|{normalisation(_CLIP_MEAN, _CLIP_STD)}"
    if kind == "dinov3_vit":
        return f"{format_size('resize', size, 'bilinear')}|{normalisation(IMAGENET_MEAN, IMAGENET_STD)}"
    if kind.startswith("dinov2") and size == (518, 518):
        size = (224, 224)
    whole = (round(size[0] / 0.875), round(size[1] / 0.875))
    filter, values = ("bilinear", "range(-1,1)") if kind == "vit" else ("bicubic", normalisation(IMAGENET_MEAN, IMAGENET_STD))
    return f"{format_size('resize_small', whole, filter, 'floor')}|{format_size('central_crop', size)}|{values}"


def huggingface(settings: dict[str, Any]) -> str:
    """From a preprocessor_config.json; nothing where there is none, or where it says what our strings cannot.

    What the file leaves unsaid differs between the classes of transformers, so it must say everything that matters.
    """
    try:
        other_scale = abs(float(settings.get("rescale_factor", 1 / 255)) - 1 / 255) > 1e-6
        if other_scale or settings.get("do_rescale") is False or "crop_pct" in settings:  # the last is ConvNeXt's way
            return ""
        ops = []
        if settings.get("do_resize", True):
            ops.append(_huggingface_resize(settings, _BY_NUMBER[int(settings["resample"])]))
        if settings.get("do_center_crop", _crops_by_default(settings)):
            ops.append(format_size("central_crop", _read_size(settings["crop_size"])))
        normalised = settings.get("do_normalize", True)
        return "|".join([*ops, normalisation(settings["image_mean"], settings["image_std"]) if normalised else "range(0,1)"])
    except (KeyError, TypeError, ValueError, VitreousError):
        return ""


def _crops_by_default(settings: dict[str, Any]) -> bool:
    return _processor(settings).startswith(("Bit", "DeiT", "CLIP"))


def _processor(settings: dict[str, Any]) -> str:
    """The class that wrote the file, by the newer of its two fields."""
    return str(settings.get("image_processor_type", settings.get("feature_extractor_type", "")))


def _huggingface_resize(settings: dict[str, Any], filter: str) -> str:
    size: Any = settings["size"]
    if isinstance(size, int) and _processor(settings).startswith(("Bit", "CLIP")):
        size = {"shortest_edge": size}
    if isinstance(size, dict) and "shortest_edge" in size:
        return f"resize_small({int(size['shortest_edge'])},{filter},floor)"
    return format_size("resize", _read_size(size), filter)


def _read_size(size: Any) -> Size:
    return (int(size["height"]), int(size["width"])) if isinstance(size, dict) else parse_size(size)


def timm(settings: dict[str, Any], size: Size) -> str:
    """From the pretrained_cfg in timm's config.json; timm crops the centre of a slightly larger image, or squashes it first.

    Nothing where it says what our strings cannot.
    """
    mean, std = settings.get("mean", [0.5] * 3), settings.get("std", [0.5] * 3)
    how = str(settings.get("interpolation", "bicubic"))
    how = how if how in FILTERS else "bicubic"
    share = float(settings.get("crop_pct", 0.9))
    values = normalisation(mean, std)
    mode = settings.get("crop_mode") or "center"
    whole = (int(size[0] / share), int(size[1] / share))
    if mode == "squash":
        crop = "" if whole == size else f"{format_size('central_crop', size, 'round')}|"
        return f"{format_size('resize', whole, how)}|{crop}{values}"
    if mode != "center":
        return ""
    # torchvision resizes for a square; for a rectangle timm does it itself, rounded, and by its default filter in any case.
    resize = format_size("resize_small", whole, *((how, "floor") if whole[0] == whole[1] else ("bilinear",)))
    return f"{resize}|{format_size('central_crop', size, 'round')}|{values}"


def parse_fields(text: str, channels: int) -> dict[str, Any] | None:
    """A string taken apart for an export: mean, std, filter, resize, small, crop. None if it has another form."""
    out: dict[str, Any] = {}
    for op in parse(text):
        if isinstance(op, Resize):
            out.update(resize=(op.height, op.width), filter=op.filter)
        elif isinstance(op, ResizeSmall):
            out.update(small=(op.height, op.width), filter=op.filter)
        elif isinstance(op, CentralCrop):
            out["crop"] = (op.height, op.width)
        elif isinstance(op, Range) and (op.low, op.high) in ((-1.0, 1.0), (0.0, 1.0)):
            level = 0.5 if op.low < 0 else 0.0
            out.update(mean=[level] * channels, std=[0.5 if op.low < 0 else 1.0] * channels)
        elif isinstance(op, Normalise):
            out.update(mean=list(op.mean), std=list(op.std))
        else:
            return None
    # Neither peer has TensorFlow's plain bilinear filter; the nearest they have is the averaging one.
    if out.get("filter") == "bilinear-plain":
        out["filter"] = "bilinear"
    return out if "mean" in out and "filter" in out else None
