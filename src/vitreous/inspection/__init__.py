"""Look inside a model: functions that return arrays, and one to plot each of them.

    from vitreous.inspection import attention_distance, plot_attention_distance

Modules have other names than functions, so that `inspection.rollout` is always the function. Nothing heavy is imported
before it is used.

Modules:
    animation            attention layer by layer as an animation
    attention_rollout    attention rollout
    captions             how to read each figure, and what this model shows
    checked_arrays       validation of arrays before plotting
    compare              two checkpoints operation by operation
    data_map             2-D projection of features
    diagnose             likely causes of a difference
    distance             attention distance
    embedding_filters    filters of the patch embedding
    entropy              attention entropy
    eval_mode            classifier or bare model in eval mode
    figure_style         matplotlib style, PNG and SVG output
    figures              all plot functions
    figures_embedding    filters and position similarity
    figures_heads        attention distance and entropy
    figures_maps         rollout and single heads
    figures_patches      patch similarity and patch components
    figures_points       data map
    figures_tokens       token norms and similarity
    file_names           safe file names from image names
    gradient_weights     gradient-weighted rollout
    head_view            single heads
    images               which images `inspect` uses
    inspect_model        `vitreous inspect`: all results
    inspect_run          `vitreous inspect`: from options to results
    inspection_dir       output folder
    inspection_report    contents of the HTML report
    overlay              attention over its image
    patches              similarity and principal components of patch features
    position_embeddings  position-embedding similarity
    recorded_outputs     a checkpoint against recorded outputs
    report_map           interactive data map
    statistics           all statistics in one pass
    tokens               token norms and similarity
    verify_run           `vitreous verify`: from options to result
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
    "patch_features": "patches",
    "patch_similarity": "patches",
    "patch_components": "patches",
    "component_colours": "patches",
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
    "plot_patch_components": "figures",
    "plot_patch_similarity": "figures",
    "plot_token_norms": "figures",
    "plot_token_similarity": "figures",
    "plot_data_map": "figures",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
