"""Images whose pixels lie in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.data.source import Content, Source


class Arrays(Source):
    """Items whose pixels lie in one array (N, H, W[, C]), in memory or mapped from a file."""

    encoded = False

    def __init__(
        self,
        where: str,
        split: str,
        classes: Sequence[str],
        images: NDArray[np.uint8],
        targets: NDArray[Any],
        ids: Sequence[str] | None = None,
    ) -> None:
        if len(images) != len(targets):
            raise VitreousError(f"{where}: {len(images):,} images but {len(targets):,} labels; not one set's files")
        labels = np.asarray(targets, np.int64)
        if len(labels) and (labels.min() < -1 or labels.max() >= len(classes)):
            raise VitreousError(f"{where}: labels from {labels.min()} to {labels.max()} of {len(classes)} classes")
        self.where, self.split, self.classes = where, split, tuple(classes)
        self.images, self._targets, self._ids = images, labels, ids

    def __len__(self) -> int:
        return len(self.images)

    def id(self, index: int) -> str:
        return self._ids[index] if self._ids is not None else f"{self.split}/{index:06d}"

    def labels(self, index: int) -> tuple[int, ...]:
        target = int(self._targets[index])
        return (target,) if target >= 0 else ()

    def read(self, index: int) -> Content:
        return np.asarray(self.images[index])

    def targets(self) -> NDArray[np.int64]:
        return self._targets

    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self._targets[self._targets >= 0], minlength=len(self.classes))
