from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.commands.types import Checkpoint

if TYPE_CHECKING:
    from vitreous.inspection.compare import Verification


def verify(
    checkpoint: Checkpoint,
    against: str,
    images: tuple[str, ...] = (),
    tolerance: float | None = None,
) -> Verification:
    """Compare two checkpoints and name the first operation that differs.

    The reference is another checkpoint of any kind, or an .npz with recorded images and logits. Both models get the same
    images, each with its own preprocessing. Exit code 1 means that they differ.

    Example: vitreous verify runs/pets/checkpoint --against ViT-B_16.npz

    Args:
        checkpoint: a file, a folder, or a name from `vitreous list weights`.
        against: the reference: another checkpoint, or recorded outputs.
        images: images to run on; a rendered one if none are given.
        tolerance: relative difference that still counts as equal; 1e-9 between checkpoints (which run in float64),
            1e-5 for recorded outputs.
    """
    from vitreous.inspection.verify_run import run_verification

    return run_verification(checkpoint, against, images, tolerance)
