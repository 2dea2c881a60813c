"""Model names, their grammar, and the config that each name stands for.

    ViT-<size>/<patch>                       ViT-B/16
    R<depth>x<width>                         R50x1, a BiT ResNet
    AxialR<depth>x<width>                    AxialR50x1, a ResNet with axial attention instead of 3x3 convolutions
    R[<depth>[x<width>]]+ViT-<size>/<step>   R50+ViT-B/16, a hybrid; <step> is its total downsampling
    C<convs>x<width>[r]+ViT-<size>/<step>    C4x32+ViT-256x4/8, a stem of convolutions of 32, 64, 128 and 256 channels

<size> is one of SIZES, or <width>x<depth> with heads of 32 and an MLP of twice the width, as suits small images. Behind a stem
the mean of all places enters the head, without a class token; `r` makes the stem residual.
A hybrid forms its sequence in one of two ways, and the name says which. /32 takes the output of stage 4 of an
ordinary ResNet. /16 removes stage 4 and moves its units into stage 3, for a sequence four times as long.
`R+ViT-Ti/16` has only the root of a ResNet, with patches of 8 behind it; the root downsamples by 4, so the
model's true step is 32, whatever its name says. The name is kept because the released weights bear it.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, TypeAlias

from vitreous.core.errors import VitreousError, did_you_mean
from vitreous.models.config import (
    AxialResNetConfig,
    Form,
    ModelConfig,
    ResNetConfig,
    Size,
    ViTConfig,
    parse_size,
    replace_config,
)

Family: TypeAlias = Literal["ViT", "hybrid", "ResNet"]

# size: (depth, width, MLP, heads). B, L and H are the paper's table 1; Ti and S came with AugReg, the others with big_vision.
SIZES: dict[str, tuple[int, int, int, int]] = {
    "Ti": (12, 192, 768, 3),
    "S": (12, 384, 1536, 6),
    "M": (12, 512, 2048, 8),
    "B": (12, 768, 3072, 12),
    "L": (24, 1024, 4096, 16),
    "So400m": (27, 1152, 4304, 16),
    "H": (32, 1280, 5120, 16),
    "g": (40, 1408, 6144, 16),
    "G": (48, 1664, 8192, 16),
}

UNITS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}

# The models of the paper and of the weights released with it, in the order they are listed to people.
KNOWN: tuple[str, ...] = (
    *("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-B/8", "ViT-L/32", "ViT-L/16", "ViT-H/14"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"),
    *("R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32", "R50+ViT-L/16"),
    *("R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4", "R200x3"),
    "AxialR50x1",
)

_VIT = re.compile(r"ViT-(?P<size>[A-Za-z0-9]+)/(?P<step>\d+)")
_RESNET = re.compile(r"(?P<axial>Axial)?R(?P<depth>\d+)x(?P<width>\d+)")
_STEM = re.compile(r"C(?P<convs>[1-8])x(?P<width>\d{1,5})(?P<residual>r?)\+ViT-(?P<size>[A-Za-z0-9]+)/(?P<step>\d+)")
_SHAPE = re.compile(r"(?P<width>\d{1,5})x(?P<depth>\d{1,4})")
_HYBRID = re.compile(r"R(?:(?P<depth>\d+)(?:x(?P<width>\d+))?)?\+ViT-(?P<size>[A-Za-z0-9]+)/(?P<step>\d+)")

# Numerics that belong to each form of ResNet; see the table in resnet.py.
_FORMS: dict[str, dict[str, Any]] = {
    "pre": dict(norm_eps=1e-5, standardise="sqrt(var+eps)", standardise_eps=1e-10),
    "post": dict(norm_eps=1e-6, standardise="std+eps", standardise_eps=1e-5),
}


def parse_name(name: str, *, image_size: int | Size = 224, classes: int = 1000, **overrides: Any) -> ModelConfig:
    """The config that a name stands for, with any of its fields overridden."""
    size = parse_size(image_size)
    if match := _RESNET.fullmatch(name):
        return _bit_config(name, match, size, classes, overrides)
    if match := _HYBRID.fullmatch(name):
        depth = int(match["depth"]) if match["depth"] else None
        return _hybrid_config(
            name, depth, int(match["width"] or 1), match["size"], int(match["step"]), size, classes, overrides
        )
    if match := _STEM.fullmatch(name):
        return _stem_config(name, match, size, classes, overrides)
    if match := _VIT.fullmatch(name):
        patch = parse_size(overrides.pop("patch", int(match["step"])))
        name = name if patch == parse_size(int(match["step"])) else f"ViT-{match['size']}/{_format_patch(patch)}"
        return _vit_config(name, match["size"], patch, size, classes, None, overrides)
    raise _unknown_name(name)


def check_name(name: str, image_size: Size | None = None, **overrides: Any) -> None:
    """Refuse a name or a field that no model can have; where the image size is not known yet, one that the patch divides."""
    step, patch = name.rpartition("/")[2], overrides.get("patch", 1)
    sides = (int(step) if step.isdecimal() else 1, *(patch if isinstance(patch, tuple) else (patch,)))
    good = all(isinstance(side, int) and 0 < side < 10_000 for side in sides)
    parse_name(name, image_size=image_size or (32 * math.lcm(*sides) if good else 224), **overrides)


def resnet_config(name: str, form: Form, **fields: Any) -> ResNetConfig:
    """A ResNet with the numerics of its form, unless given otherwise."""
    if form not in _FORMS:
        raise VitreousError(f"form {form!r} is neither 'pre' (the BiT paper) nor 'post' (the released hybrids)")
    return ResNetConfig(name=name, form=form, **{**_FORMS[form], **fields})


def _vit_config(
    name: str, size: str, patch: Size, image_size: Size, classes: int, trunk: ResNetConfig | None, overrides: dict[str, Any]
) -> ViTConfig:
    if shape := _SHAPE.fullmatch(size):
        width, depth = int(shape["width"]), int(shape["depth"])
        mlp, heads = 2 * width, max(1, width // 32)
    elif size in SIZES:
        depth, width, mlp, heads = SIZES[size]
    else:
        raise _unknown_name(name)
    fields: dict[str, Any] = dict(depth=depth, width=width, mlp=mlp, heads=heads)
    fields.update(_derive_options(overrides, width))
    base = ViTConfig(name=name, trunk=trunk, patch=(1, 1))  # a valid start: `replace` then checks every option's name
    config: ViTConfig = replace_config(base, patch=patch, image_size=image_size, classes=classes, **fields)
    # Overridden in shape, it is no longer the model of that name.
    return (
        replace_config(config, name=name_vit(config)) if {"depth", "width", "mlp", "heads", "stem"} & set(overrides) else config
    )


def _derive_options(overrides: dict[str, Any], width: int) -> dict[str, Any]:
    """Options that follow from others: written once, so that `create(name, pool="gap")` is all a person types."""
    settled = dict(overrides)
    if isinstance(settled.get("representation"), bool):
        settled["representation"] = settled.get("width", width) if settled["representation"] else None
    # The paper's global average pooling and axial attention do without a class token.
    if settled.get("attention") == "axial":
        settled.setdefault("pool", "gap")
    if settled.get("pool") in ("gap", "map"):
        settled.setdefault("class_token", False)
    if settled.get("positions") in ("relative", "rope"):
        settled.setdefault("position_placement", "every" if settled["positions"] == "relative" else "shared")
    if not settled.get("class_token", True) or settled.get("positions", "1d") != "1d":
        settled.setdefault("position_prefix", 0)
    return settled


def _hybrid_config(
    name: str, depth: int | None, width: int, size: str, step: int, image_size: Size, classes: int, overrides: dict[str, Any]
) -> ViTConfig:
    channels = overrides.get("channels", 3)
    units: tuple[int, ...]
    if depth is None:
        units, patch = (), step / 2
    elif depth not in UNITS:
        raise _unknown_name(name)
    elif step % 32 == 0:  # stage 4's output
        units, patch = UNITS[depth], step / 32
    else:  # no stage 4: its units stand in stage 3
        a, b, c, d = UNITS[depth]
        units, patch = (a, b, c + d), step / 16
    if patch != int(patch) or patch < 1:
        choices = "an even number" if depth is None else "a multiple of 16"
        raise VitreousError(
            f"model {name!r}: /{step} is not possible with this trunk; it must be {choices}, such as /16 or /32"
        )
    own = {"units": overrides.pop("trunk_units", units), "width": overrides.pop("trunk_width", 64 * width)}
    if isinstance(own["units"], int):
        own["units"] = (own["units"],)
    trunk_name = f"R{depth or ''}x{width}"
    trunk = resnet_config(trunk_name, "post", **own, channels=channels, classes=0, image_size=image_size)
    changed = own != {"units": units, "width": 64 * width}  # then it is no longer the trunk of that name
    if changed:
        trunk = replace_config(trunk, name=name_resnet(trunk))
    config = _vit_config(name, size, parse_size(overrides.pop("patch", int(patch))), image_size, classes, trunk, overrides)
    return replace_config(config, name=name_vit(config)) if changed else config


def _stem_config(name: str, match: re.Match[str], image_size: Size, classes: int, overrides: dict[str, Any]) -> ViTConfig:
    convs, first, step = int(match["convs"]), int(match["width"]), int(match["step"])
    stride = 2 ** (convs - 1)
    if step % stride or not step:
        raise VitreousError(
            f"model {name!r}: {convs} convolutions halve {convs - 1} times; /{step} must be a multiple of {stride}"
        )
    channels = tuple(first * 2**i for i in range(convs))
    own = {"stem": channels, "stem_residual": bool(match["residual"]), "pool": "gap"}
    patch = parse_size(overrides.pop("patch", step // stride))
    config = _vit_config(name, match["size"], patch, image_size, classes, None, {**own, **overrides})
    return replace_config(config, name=name_vit(config))


def _bit_config(name: str, match: re.Match[str], image_size: Size, classes: int, overrides: dict[str, Any]) -> ResNetConfig:
    depth, width = int(match["depth"]), int(match["width"])
    if depth not in UNITS or width < 1:
        raise _unknown_name(name)
    if match["axial"]:
        base: ResNetConfig = AxialResNetConfig(name=name, units=UNITS[depth], width=64 * width)
    else:
        base = resnet_config(name, overrides.pop("form", "pre"), units=UNITS[depth], width=64 * width)
    config: ResNetConfig = replace_config(base, image_size=image_size, classes=classes, **overrides)
    return replace_config(config, name=name_resnet(config)) if {"units", "width"} & set(overrides) else config


def _unknown_name(name: str) -> VitreousError:
    close = did_you_mean(name.replace("_", "/"), KNOWN)
    return VitreousError(
        f"unknown model {name!r}; {close}"
        f"names are ViT-SIZE/PATCH (sizes {', '.join(SIZES)}), R50x1 or AxialR50x1 (depths {', '.join(map(str, UNITS))}) "
        f"or R50+ViT-B/16 or C4x32+ViT-256x4/8; `vitreous list models` shows them"
    )


def model_family(name: str) -> Family:
    """As the paper groups its models."""
    return "hybrid" if "+" in name else "ViT" if name.startswith("ViT") else "ResNet"


def name_vit(config: ViTConfig) -> str:
    """A name for a config that was inferred from a file: the official one where it fits, a telling one otherwise."""
    shape = (config.depth, config.width, config.mlp, config.heads)
    size = next((size for size, numbers in SIZES.items() if numbers == shape), f"{config.width}x{config.depth}")
    step = _format_patch(config.step)
    if config.trunk is None:
        residual = "r" if config.stem_residual else ""
        return f"{f'C{len(config.stem)}x{config.stem[0]}{residual}+' if config.stem else ''}ViT-{size}/{step}"
    if not config.trunk.units:
        return f"R+ViT-{size}/{config.patch[0] * 2}"
    return f"{name_resnet(config.trunk).removesuffix('x1')}+ViT-{size}/{step}"


def _format_patch(size: Size) -> str:
    return f"{size[0]}" if size[0] == size[1] else f"{size[0]}x{size[1]}"


def name_resnet(config: ResNetConfig) -> str:
    axial = "Axial" if isinstance(config, AxialResNetConfig) else ""
    width = f"x{config.width // 64}" if config.width % 64 == 0 else f"x{config.width / 64:g}"
    for depth, units in UNITS.items():
        moved = (*units[:2], units[2] + units[3])
        if config.units in (units, moved):
            return f"{axial}R{depth}{width}"
    return f"{axial}R{3 * sum(config.units) + 2}{width}"
