"""Looking inside: plain functions that return arrays, and one to plot each of them.

    from vitreous.inspection import attention_distance, plot_attention_distance

Modules have other names than functions, so that `inspection.rollout` is always the function. Nothing heavy is imported
before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

# Every public name and the module that it comes from.
_PUBLIC = {
    "rollout": "attention_rollout",
    "gradient_rollout": "gradient_weights",
    "attention_by_head": "head_view",
    "attention_distance": "distance",
    "attention_entropy": "entropy",
    "filters": "embedding_filters",
    "position_similarity": "position_embeddings",
    "token_norms": "tokens",
    "norm_quantiles": "tokens",
    "token_similarity": "tokens",
    "token_change": "tokens",
    "plot_rollout": "figures",
    "plot_attention": "figures",
    "plot_attention_distance": "figures",
    "plot_attention_entropy": "figures",
    "plot_filters": "figures",
    "plot_position_similarity": "figures",
    "plot_token_norms": "figures",
    "plot_token_similarity": "figures",
    "plot_data_map": "figures",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
