"""The figures, one function each: arrays in, a matplotlib figure out.

    from vitreous.inspection.figures import plot_attention_distance, save

    save(plot_attention_distance(attention_distance(clf, images)), Path("figures"), "attention_distance")

None is known to pyplot, so nothing piles up; a notebook shows one by `figure`, a script keeps one by `figure.savefig(...)`.
"""

from __future__ import annotations

from vitreous.inspection.figure_style import DPI, save
from vitreous.inspection.figures_embedding import plot_filters, plot_position_similarity
from vitreous.inspection.figures_heads import plot_attention_distance, plot_attention_entropy
from vitreous.inspection.figures_maps import plot_attention, plot_rollout
from vitreous.inspection.figures_patches import plot_patch_components, plot_patch_similarity
from vitreous.inspection.figures_points import plot_data_map
from vitreous.inspection.figures_tokens import plot_token_norms, plot_token_similarity

__all__ = [
    "DPI",
    "plot_attention",
    "plot_attention_distance",
    "plot_attention_entropy",
    "plot_data_map",
    "plot_filters",
    "plot_patch_components",
    "plot_patch_similarity",
    "plot_position_similarity",
    "plot_rollout",
    "plot_token_norms",
    "plot_token_similarity",
    "save",
]
