"""Two-way tables of rules between the parameter names and layouts of other libraries and ours.

A rule says which of our tensors is made of which arrays of theirs, and how. Reading and writing are the same
rule run forwards and backwards, so there and back gives the same bits, and a family is one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.models.build import build_on_meta
from vitreous.models.config import ModelConfig, ResNetConfig, Size, ViTConfig, replace_config
from vitreous.models.names import name_vit
from vitreous.weights.arrays import Arrays
from vitreous.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Codec:
    """How one array of theirs becomes one tensor of ours (or one slice of it), and back."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]
    ignore_ones: bool = False  # axes of length 1 may come and go


SAME = Codec(lambda theirs: theirs, lambda ours: ours)
LINEAR = Codec(lambda theirs: theirs.T, lambda ours: ours.T)  # flax: (in, out)
CONV = Codec(lambda theirs: theirs.permute(3, 2, 0, 1), lambda ours: ours.permute(2, 3, 1, 0))  # flax: (H, W, in, out)
ONE_ROW = Codec(lambda theirs: theirs[0], lambda ours: ours[None])  # a leading axis of 1 that we do without
ADD_ROW = Codec(lambda theirs: theirs[None], lambda ours: ours[0])  # ... or that they do without
TORCH_CONV_AS_LINEAR = Codec(lambda theirs: theirs[:, :, 0, 0], lambda ours: ours[:, :, None, None])


def heads_in(heads: int) -> Codec:
    """flax q, k, v kernels: (D, heads, K)."""
    return Codec(lambda theirs: theirs.flatten(1).T, lambda ours: ours.T.unflatten(1, (heads, -1)))


def heads_bias(heads: int) -> Codec:
    return Codec(lambda theirs: theirs.flatten(), lambda ours: ours.unflatten(0, (heads, -1)))


def heads_out(heads: int) -> Codec:
    """flax's output kernel: (heads, K, D)."""
    return Codec(lambda theirs: theirs.flatten(0, 1).T, lambda ours: ours.T.unflatten(0, (heads, -1)))


@dataclass(frozen=True)
class Rule:
    """Our tensor `ours` is the arrays `theirs`, each decoded and then stacked along the first axis."""

    ours: str
    theirs: tuple[str, ...]
    codec: Codec = SAME

    def read(self, arrays: Sequence[Tensor]) -> Tensor:
        parts = [self.codec.read(array) for array in arrays]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()

    def write(self, tensor: Tensor) -> list[Tensor]:
        return [self.codec.write(part).contiguous() for part in tensor.chunk(len(self.theirs))]


def rule(ours: str, theirs: str | Iterable[str], codec: Codec = SAME) -> Rule:
    return Rule(ours, (theirs,) if isinstance(theirs, str) else tuple(theirs), codec)


def pair(ours: str, theirs: str, codec: Codec = SAME, names: tuple[str, str] = (".weight", ".bias")) -> list[Rule]:
    """The weight and the bias of a layer; `names` is what the other library puts behind the layer's own."""
    return [rule(f"{ours}.weight", theirs + names[0], codec), rule(f"{ours}.bias", theirs + names[1])]


def optional(*parts: tuple[object, list[Rule]]) -> list[Rule]:
    """The rules of those parts that a model has."""
    return [each for there, rules in parts if there for each in rules]


@dataclass(frozen=True)
class ResNetNames:
    """What another library calls the parts of a ResNet. In `unit`, {stage} and {unit} are numbers; the rest follows it."""

    root: str
    unit: str
    convolutions: tuple[str, str, str]
    norms: tuple[str, str, str]
    shortcut: str
    first: int  # number of the first stage and of the first unit
    root_norm: str = ""  # of the post-activation form
    shortcut_norm: str = ""
    last_norm: str = ""  # of the pre-activation form
    codec: Codec = SAME  # of convolutions
    norm: Callable[[str, str], list[Rule]] = pair


def resnet_rules(config: ResNetConfig, names: ResNetNames) -> list[Rule]:
    """Root and stages of a ResNet."""
    post = config.form == "post"
    out = [rule("trunk.root.weight", names.root, names.codec)]
    out += names.norm("trunk.root_norm", names.root_norm) if post else names.norm("trunk.norm", names.last_norm)
    for stage, index in ((stage, index) for stage, count in enumerate(config.units) for index in range(count)):
        ours = f"trunk.stages.{stage}.{index}"
        theirs = names.unit.format(stage=stage + names.first, unit=index + names.first)
        for k, (convolution, norm) in enumerate(zip(names.convolutions, names.norms, strict=True), start=1):
            out.append(rule(f"{ours}.conv{k}.weight", theirs + convolution, names.codec))
            out += names.norm(f"{ours}.norm{k}", theirs + norm)
        if index == 0:
            out.append(rule(f"{ours}.shortcut.weight", theirs + names.shortcut, names.codec))
            out += names.norm(f"{ours}.shortcut_norm", theirs + names.shortcut_norm) if post else []
    return out


def refuse_parts(config: ModelConfig, format: str, parts: Mapping[str, object]) -> None:
    """Refuse a model that has one of these parts, which the format cannot express."""
    for part, there in {"a convolutional stem": getattr(config, "stem", ()), **parts}.items():
        if there:
            raise VitreousError(f"{config.name} has {part}, which {format} does not have; keep it as a vitreous checkpoint")


def refuse_unused(rules: Sequence[Rule], arrays: Arrays, model: str, names: Iterable[str] | None = None) -> None:
    """Refuse a file that holds arrays (of those called `names`) which no rule takes: the model would be another one."""
    used = {name for each in rules for name in each.theirs}
    for name in sorted(arrays.shapes if names is None else names):
        if name not in used:
            raise VitreousError(
                f"{arrays.path}: array {name!r} belongs to no {model} that this program knows, so outputs would be wrong"
            )


def build_config(trunk: ResNetConfig | None, image_size: Size, fields: Mapping[str, Any]) -> ViTConfig:
    """The config of a ViT found in a file, under the name that it has by its shape."""
    if trunk is not None:
        trunk = replace_config(trunk, image_size=image_size)
    config = ViTConfig(trunk=trunk, image_size=image_size, **fields)
    named: ViTConfig = replace_config(config, name=name_vit(config))
    return named


class Recognised(NamedTuple):
    """What a file of another library holds."""

    checkpoint: Checkpoint  # without its tensors
    arrays: Arrays  # under the names that the rules know
    rules: list[Rule]


def read_tensors(rules: Sequence[Rule], arrays: Arrays, config: ModelConfig) -> dict[str, Tensor]:
    """All tensors of a model, after every name and shape has been checked against what the config asks for."""
    expected_by_name = dict(build_on_meta(config).state_dict())
    if different := {rule.ours for rule in rules} ^ set(expected_by_name):  # only a config file can ask for what no rule makes
        raise VitreousError(
            f"{arrays.path}: the config asks for a model with, or without, {min(different)!r}, unlike its family"
        )
    missing = [name for rule in rules for name in rule.theirs if name not in arrays.shapes]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise VitreousError(f"{arrays.path}: array {missing[0]!r}{more} is missing; the file is incomplete or of another kind")
    for each in rules:
        for name, expected in zip(each.theirs, each.write(expected_by_name[each.ours]), strict=True):
            found, needed = arrays.shapes[name], tuple(expected.shape)
            if each.codec.ignore_ones:
                found, needed = (tuple(size for size in shape if size != 1) for shape in (found, needed))
            if found != needed:
                raise VitreousError(
                    f"{arrays.path}: array {name!r} has shape {arrays.shapes[name]}, but the rest of the file asks for "
                    f"{tuple(expected.shape)}"
                )
    return {each.ours: each.read([arrays[name] for name in each.theirs]) for each in rules}


def write_arrays(rules: Sequence[Rule], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for each in rules:
        out.update(zip(each.theirs, each.write(tensors[each.ours]), strict=True))
    return out
