"""How alike places are to a model: cosine similarity of its position embeddings (figures 7 centre and 10 of the paper).

In a trained model near patches have similar embeddings, and so have patches of one row or of one column: the model has
found the plane from a table that began as noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.core.errors import VitreousError
from vitreous.inspection.eval_mode import Subject, eval_mode
from vitreous.models.vit import ViT


def position_similarity(subject: Subject) -> NDArray[np.float32]:
    """Cosine similarity of every place with every other, (rows, columns, rows, columns), on the grid the model is built for.

    `[r, c]` is the tile of one place. Rows of leading tokens are dropped. Of models with a table in every layer (appendix D.4)
    it is the first layer's.
    """
    with eval_mode(subject) as model:
        if not isinstance(model, ViT):
            raise VitreousError(f"{type(model).__name__} has no position embeddings; use a ViT or a hybrid")
        if not len(model.positions):
            raise VitreousError(
                f"{model.config.name} has positions={model.config.positions!r}, so no place has an embedding to compare; "
                "use a model with positions '1d', '2d' or 'sincos'"
            )
        grid = model.config.grid
        table_ND = model.positions[0](grid).detach().cpu().double().numpy()[model.config.position_prefix :]
    length = np.linalg.norm(table_ND, axis=1, keepdims=True)
    unit = table_ND / np.where(length > 0, length, 1)  # an embedding of zeros is like no other
    return np.clip(unit @ unit.T, -1, 1).reshape(*grid, *grid).astype(np.float32)
