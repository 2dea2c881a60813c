from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from vitreous.verbs.table import table


@dataclass(frozen=True)
class Listing:
    """Rows under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    exit_code: int = 0
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        return table(self.headings, self.rows)

    def records(self) -> builtins.list[dict[str, Any]]:
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]


def list(
    what: Annotated[Literal["models", "weights"], tyro.conf.Positional, tyro.conf.arg(metavar="models|weights")],
) -> Listing:
    """List the models that can be built by name, or the pretrained weights that can be loaded by name.

    Example: vitreous list models

    Args:
        what: models, with their sizes at 224 pixels (`vitreous.cost` tells more); or weights, with their origin.
    """
    return _models() if what == "models" else _weights()


def _models() -> Listing:
    from vitreous.models.build import layout
    from vitreous.models.config import ViTConfig
    from vitreous.models.names import KNOWN, parse

    rows: builtins.list[tuple[Any, ...]] = []
    for name in KNOWN:
        config = parse(name)
        parameters = sum(p.numel() for p in layout(config).parameters())
        if isinstance(config, ViTConfig):
            rows.append((name, parameters, config.depth, config.width, config.mlp, config.heads, config.tokens))
        else:
            rows.append((name, parameters, 3 * sum(config.units) + 2, config.feature_width, None, None, None))
    return Listing(("name", "parameters", "depth", "width", "mlp", "heads", "tokens"), tuple(rows))


def _weights() -> Listing:
    from vitreous.weights.catalogue import entries

    rows = tuple((e.name, e.image_size, e.classes, e.trained_on, e.licence, e.note) for e in entries())
    return Listing(("name", "image_size", "classes", "trained_on", "licence", "note"), rows)
