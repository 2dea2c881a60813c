from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitreous.commands.types import ImageSize
from vitreous.core.printable import printable
from vitreous.models.config import PositionResize
from vitreous.weights.formats import Family


@dataclass(frozen=True)
class Converted:
    """What was written, and what was changed on the way."""

    model: str
    source: str
    out: str
    format: str
    parameters: int
    notes: tuple[str, ...]
    exit_code: int = 0

    def text(self) -> str:
        return printable(f"{self.source} -> {self.out} ({self.format}): {self.model}, {self.parameters:,} parameters")

    def records(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in asdict(self).items() if key != "exit_code"}]


def convert(
    from_: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="from", metavar="FROM")],
    to: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TO")],
    format: Family | None = None,
    image_size: ImageSize = None,
    classes: int | None = None,
    patch: ImageSize = None,
    position_resize: PositionResize | None = None,
) -> Converted:
    """Convert between official, timm, Hugging Face and vitreous formats.

    There and back gives the same bits. A model card goes with every export.

    Example: vitreous convert ViT-B_16.npz exports/vit-b16 --format huggingface

    Args:
        from_: a file, a folder, or a name from `vitreous list weights`.
        to: where to write: NAME.npz for the official format, a folder for the others.
        format: what to write; without it, a name in .npz is official and any other a vitreous folder.
        image_size: resize the position embeddings for this image size.
        classes: replace the head by a zero one of so many classes, and drop the representation layer.
        patch: change the patch size, by pseudo-inverse resize of the patch embedding.
        position_resize: how positions are resized, instead of the way of the checkpoint's family.
    """
    from vitreous.classifier import read_checkpoint
    from vitreous.core.errors import VitreousError
    from vitreous.weights.transfer import adapt
    from vitreous.weights.write import guess_format, save_checkpoint

    target = Path(to)
    if Path(from_).exists() and target.exists() and target.samefile(from_):
        raise VitreousError(f"{to}: is what is read; write to another place, so that nothing is lost")
    chosen = format or guess_format(target)
    checkpoint = adapt(
        read_checkpoint(from_), image_size=image_size, classes=classes, patch=patch, position_resize=position_resize
    )
    notes = (*checkpoint.notes, *save_checkpoint(checkpoint, target, chosen))
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    return Converted(checkpoint.config.name, str(from_), str(target), chosen, parameters, notes)
