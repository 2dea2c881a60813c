from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from vitreous.core.table import table


@dataclass(frozen=True)
class Listing:
    """Rows under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    exit_code: int = 0
    notes: tuple[str, ...] = ()
    full: tuple[dict[str, Any], ...] = ()  # for programs, where a table for people has room for a part only

    def text(self) -> str:
        return table(self.headings, [tuple(map(_words, row)) for row in self.rows])

    def records(self) -> builtins.list[dict[str, Any]]:
        return [*self.full] or [dict(zip(self.headings, row, strict=True)) for row in self.rows]


def list(
    what: Annotated[
        Literal["models", "weights", "recipes", "data", "studies"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="models|weights|recipes|data|studies"),
    ],
) -> Listing:
    """List known models, weights, recipes, data sets or studies.

    Example: vitreous list models

    Args:
        what: models, with their sizes at 224 pixels; weights, with their origin and licence; recipes, with their main fields
            (`--json` has all); data, real or rendered, with its source and terms; or studies, with their primary claims
            (`--json` has all claims and their rules).
    """
    return {"models": _models, "weights": _weights, "recipes": _recipes, "data": _data, "studies": _studies}[what]()


def _models() -> Listing:
    from vitreous.models.build import build_on_meta
    from vitreous.models.config import AxialResNetConfig, ViTConfig
    from vitreous.models.names import KNOWN, parse_name

    rows: builtins.list[tuple[Any, ...]] = []
    for name in KNOWN:
        config = parse_name(name)
        parameters = sum(p.numel() for p in build_on_meta(config).parameters())
        if isinstance(config, ViTConfig):
            rows.append((name, parameters, config.depth, config.width, config.mlp, config.heads, config.tokens))
        else:
            heads = config.heads if isinstance(config, AxialResNetConfig) else None
            rows.append((name, parameters, 3 * sum(config.units) + 2, config.feature_width, None, heads, None))
    return Listing(("name", "parameters", "depth", "width", "mlp", "heads", "tokens"), tuple(rows))


def _weights() -> Listing:
    from vitreous.weights.catalogue import ENTRIES

    rows = tuple((e.name, e.image_size, e.classes, e.trained_on, e.licence, e.note) for e in ENTRIES.values())
    return Listing(("name", "image_size", "classes", "trained_on", "licence", "note"), rows)


def _recipes() -> Listing:
    from vitreous.training.recipes.recipe import to_json
    from vitreous.training.recipes.tables import RECIPES

    rows = []
    for recipe in RECIPES.values():
        length = f"{recipe.epochs:g} epochs" if recipe.epochs is not None else f"{recipe.steps:,} steps"
        rates = ", ".join(f"{rate:g}" for rate in recipe.sweep) or None
        what = (recipe.name, recipe.about.partition(":")[0], length, recipe.batch_size, recipe.image_size)
        how = (recipe.optimizer, f"{recipe.lr:g}", rates, recipe.schedule, recipe.warmup, recipe.weight_decay)
        rows.append((*what, *how, recipe.dropout, recipe.mixup, recipe.clip))
    headings = ("name", "source", "length", "batch", "size", "optimizer", "lr", "sweep", "schedule", "warmup", "decay")
    note = "--recipe NAME takes one, --set FIELD=VALUE changes it; docs/reference/recipes.md has their origins"
    return Listing(
        (*headings, "dropout", "mixup", "clip"), tuple(rows), notes=(note,), full=tuple(map(to_json, RECIPES.values()))
    )


def _data() -> Listing:
    from vitreous.core.files import cache_dir
    from vitreous.data.datasets.builtin import BUILTIN
    from vitreous.data.datasets.known import SETS
    from vitreous.data.datasets.vtab_tasks import TASKS

    rows: builtins.list[tuple[Any, ...]] = []
    for built in BUILTIN:
        terms = "CC BY 4.0 (UCI), with scikit-learn" if built.kind == "real" else "rendered by vitreous"
        rows.append((f"builtin:{built.name}", built.kind, built.classes, dict(built.images), "built in", terms))
    for known in SETS:
        obtained = f"downloaded ({known.megabytes} MB)" if known.files else f"by hand: {known.page}"
        rows.append((known.name, known.kind, known.classes, dict(known.images), obtained, known.terms))
    headings = ("name", "kind", "classes", "images", "obtained", "terms")
    own = cache_dir() / "data"
    note = (
        f"files may also be put into {own}/NAME, or into $VITREOUS_DATA/NAME; docs/reference/data-sets.md names them; "
        "also hf:OWNER/NAME"
    )
    vtab = f"vtab:TASK@DIR is a task of VTAB-1k (docs/how-to/vtab.md): {', '.join(task.name for task in TASKS)}"
    return Listing(headings, tuple(rows), notes=(note, vtab))


def _studies() -> Listing:
    from vitreous.studies.budget import DEFAULT_LEVEL, scale_at
    from vitreous.studies.cost_study import MODELS, SIZES
    from vitreous.studies.registry import COST, STUDIES, find_study

    rows: builtins.list[tuple[Any, ...]] = []
    full = []
    for name in STUDIES:
        study, sha256 = find_study(name)
        scale = scale_at(study, DEFAULT_LEVEL, study.data, "", None)
        runs = len(study.cells(scale))
        rows.append((name, study.paper, study.claims[0].text, study.data, runs))
        claims = [claim.describe(primary=not number) for number, claim in enumerate(study.claims)]
        about = {"name": name, "title": study.title, "paper": study.paper, "sentence": study.sentence, "data": study.data}
        full.append({**about, "upstream": scale.upstream or None, "runs": runs, "claims": claims, "study_sha256": sha256})
    cost = (COST, "Figure 12, appendix D.5", "images per second and largest batch, measured", None, len(MODELS) * len(SIZES))
    headings = ("name", "paper", "claim", "data", "runs")
    note = "`vitreous study NAME [DATA] --out DIR` runs one; runs: at the smallest size, without --budget"
    entry: dict[str, Any] = {**dict(zip(headings, cost, strict=True)), "claims": []}
    return Listing(headings, (*rows, cost), notes=(note,), full=(*full, entry))


def _words(cell: Any) -> Any:
    return ", ".join(f"{split} {count:,}" for split, count in cell.items()) if isinstance(cell, dict) else cell
