from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.commands.types import Checkpoint
from vitreous.core.table import table

if TYPE_CHECKING:
    from vitreous.inspection.compare import Difference


@dataclass(frozen=True)
class Verification:
    equal: bool
    operations: int
    logits: float
    first: Difference | None
    findings: tuple[Difference, ...]
    notes: tuple[str, ...]
    preprocess: str  # of the checkpoint; the reference has its own

    @property
    def exit_code(self) -> int:
        return 0 if self.equal else 1

    def text(self) -> str:
        if self.first is None:
            what = f"{self.operations} operations" if self.operations > 2 else "recorded outputs"
            return f"equal: {what} compared, logits differ by {self.logits:.1e} relative"
        lines = [
            f"DIFFERENT, first at {self.first.operation}: {self.first.cause}",
            f"logits differ by {self.logits:.1e} relative",
        ]
        rows = []
        for cause in dict.fromkeys(finding.cause for finding in self.findings):
            same = [finding for finding in self.findings if finding.cause == cause]
            rows.append((cause, same[0].operation, len(same), f"{max(f.relative for f in same):.1e}"))
        return "\n".join([*lines, "", table(("likely cause", "first at", "operations", "relative difference"), rows)])

    def records(self) -> list[dict[str, Any]]:
        return [asdict(self)]


def verify(
    checkpoint: Checkpoint,
    against: str,
    images: tuple[str, ...] = (),
    tolerance: float | None = None,
) -> Verification:
    """Compare a checkpoint with a reference, operation by operation, and name the first that differs.

    The reference is another checkpoint of any kind, or an .npz with recorded `images` and `logits`. Both models get
    the same images, each prepared in its own way. Exit code 1 means that they differ.

    Example: vitreous verify runs/pets/checkpoint --against ViT-B_16.npz

    Args:
        checkpoint: a file, a folder, or a name from `vitreous list weights`.
        against: the reference: the same, or recorded outputs.
        images: images to run on; one is drawn if none are given.
        tolerance: relative difference that still counts as equal; 1e-9 between checkpoints (which run in float64),
            1e-5 for recorded outputs.
    """
    from vitreous.classifier import load
    from vitreous.core.errors import VitreousError
    from vitreous.inspection.compare import compare_checkpoints
    from vitreous.inspection.recorded_outputs import compare_recorded, read_recorded

    if tolerance is not None and not 0 <= tolerance < 1:
        raise VitreousError(f"--tolerance {tolerance}: must be at least 0 and less than 1")
    clf = load(checkpoint)
    said = (*clf.notes, clf.preprocessing_note())
    outputs = read_recorded(Path(against))
    options = {} if tolerance is None else {"tolerance": tolerance}
    if outputs is not None:
        found, notes = compare_recorded(clf, outputs, **options), said
    else:
        other = load(against)
        found, notes = compare_checkpoints(clf, other, list(images) or [_picture()], **options), (*said, *other.notes)
    first = found.differences[0] if found.differences else None
    return Verification(
        found.equal, found.operations, found.logits, first, found.differences, (*notes, *found.notes), str(clf.preprocess)
    )


def _picture() -> Any:
    """Neither flat nor noise: colours that change smoothly, with some grain."""
    import numpy as np

    random = np.random.default_rng(0)
    height, width = 300, 400
    y, x = np.mgrid[:height, :width] / 100.0
    waves = [np.sin(a * x + b * y + c) for a, b, c in random.uniform(-4, 4, (3, 3))]
    grain = random.normal(0, 8, (height, width, 3))
    return np.clip(127.5 + 100 * np.stack(waves, axis=2) + grain, 0, 255).astype(np.uint8)
