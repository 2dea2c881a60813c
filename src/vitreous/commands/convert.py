from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from vitreous.commands.types import ImageSize
from vitreous.core.printable import printable
from vitreous.models.config import PositionResize
from vitreous.weights.formats import Family

if TYPE_CHECKING:
    from vitreous.export.check import Agreement
    from vitreous.export.int8 import Quantised

Format = Literal["vitreous", "official", "timm", "huggingface", "onnx", "openvino"]


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
    check: Agreement | None = None  # of an export: how far it is from the original

    int8: Quantised | None = None  # what it costs

    def text(self) -> str:
        line = f"{self.source} -> {self.out} ({self.format}): {self.model}, {self.parameters:,} parameters"
        return "\n".join(printable(text) for text in [line, *(part.text() for part in (self.check, self.int8) if part)])

    def records(self) -> list[dict[str, Any]]:
        found = {key: value for key, value in asdict(self).items() if key not in ("exit_code", "check", "int8")}
        if self.check is not None:
            found["check"] = {**asdict(self.check), "agrees": self.check.agrees}
        if self.int8 is not None:
            found["int8"] = {**asdict(self.int8), "loss": self.int8.loss, "within": self.int8.within}
        return [found]


_GRAPHS: dict[str, Format] = {".onnx": "onnx", ".xml": "openvino"}


def convert(
    from_: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="from", metavar="FROM")],
    to: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TO")],
    format: Format | None = None,
    check: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    dynamic_size: bool = False,
    int8: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    tolerance: float = 0.5,
    image_size: ImageSize = None,
    classes: int | None = None,
    patch: ImageSize = None,
    position_resize: PositionResize | None = None,
) -> Converted:
    """Convert between weight formats, or export to ONNX and OpenVINO.

    official, timm, Hugging Face, vitreous: a round trip gives the same bits, and a model card is written. ONNX and
    OpenVINO: one input `images` (B, C, H, W), preprocessed; outputs `logits` and `features`. The file is run against the
    original; where they differ beyond rounding, it is not written and the exit code is 1.

    Example: vitreous convert runs/pets/checkpoint pets.onnx --check photos/

    Args:
        from_: a file, a folder, or a name from `vitreous list weights`.
        to: where to write: NAME.npz (official), NAME.onnx, NAME.xml (OpenVINO, with NAME.bin), a folder for the others.
        format: what to write; by the name if not given: .npz, .onnx, .xml, else a vitreous folder.
        check: images to compare an export with the original on; rendered scenes if not given.
        dynamic_size: an export that takes images of any size that the patches divide.
        int8: quantise an export to 8 bits, with the training images of DATA (.xml: calibration; .onnx: which layers stay in
            float), and measure it on the held-out ones.
        tolerance: points of accuracy that int8 may lose. Layers stay in float until it loses no more; else no file is written.
        image_size: resize the position embeddings for this image size.
        classes: replace the head by a zero-initialised one of this many classes, and drop the representation layer.
        patch: change the patch size, by pseudo-inverse resize of the patch embedding.
        position_resize: how position embeddings are resized. Default: as the checkpoint's family does.
    """
    from vitreous.classifier import read_checkpoint
    from vitreous.core.errors import VitreousError
    from vitreous.export.export_run import check_target, export_checkpoint
    from vitreous.inference.engines.engine import check_engine
    from vitreous.weights.transfer import adapt
    from vitreous.weights.write import guess_format, save_checkpoint

    target = Path(to)
    if Path(from_).exists() and target.exists() and target.samefile(from_):
        raise VitreousError(f"{to}: is what is read; write to another place, so that nothing is lost")
    chosen = format or _GRAPHS.get(target.suffix.lower()) or guess_format(target)
    if chosen in ("onnx", "openvino"):
        check_target(target, chosen)
    elif check is not None or dynamic_size or int8 is not None:
        raise VitreousError(f"--check, --dynamic-size and --int8 are for .onnx and .xml files, and {to} is none")
    if not 0 <= tolerance <= 100:
        raise VitreousError(f"--tolerance {tolerance:g}: is in points of accuracy, from 0 to 100")
    if int8 is not None and chosen == "openvino":
        check_engine("nncf", "--int8 of an .xml file:")
    checkpoint = adapt(
        read_checkpoint(from_), image_size=image_size, classes=classes, patch=patch, position_resize=position_resize
    )
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    about = (checkpoint.config.name, str(from_), str(target), chosen, parameters)
    if chosen in ("onnx", "openvino"):
        found = export_checkpoint(
            checkpoint, target, chosen, dynamic_size=dynamic_size, check=check, int8=int8, tolerance=tolerance
        )
        return Converted(*about, (*checkpoint.notes, *found.notes), found.exit_code, found.agreement, found.quantised)
    return Converted(*about, (*checkpoint.notes, *save_checkpoint(checkpoint, target, cast(Family, chosen))))
