"""The page of all studies: a card for each, what contradicts the paper first.

    python -m vitreous.studies.results_page docs/results

Verdicts are decided again, since Holm's correction of one study's primary claim depends on the other studies'.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.core.files import write_text
from vitreous.core.untrusted_json import read_json
from vitreous.studies import results
from vitreous.studies.registry import STUDIES, find_study
from vitreous.studies.run_study import GRID, write_results
from vitreous.studies.study import Scale, Study, Tuning, tuned_rates

_HEAD = """# The paper's experiments, re-run at small scale

Eleven claims of the paper, each with a metric, a smallest effect of interest and a decision rule that were fixed in the
study's file before its runs (`result.json` has its SHA-256). Models have 0.05 to 0.5 million parameters and train for
seconds to minutes on one CPU core: a verdict is about this scale, and "undecided" is an honest one. Effects are paired
by seed, intervals are 95 % t intervals over seeds, and Holm's correction is over the eleven primary claims; claims that
were not run count as p = 1. [How it works](../how-to/run-a-study.md).

| study | claim | effect, points (95 % interval; seeds) | verdict |
| --- | --- | --- | --- |
"""
_CLAIMS = """| claim | effect, points | 95 % interval | bootstrap | p | seeds | verdict |
| --- | --- | --- | --- | --- | --- | --- |"""
_ORDER = ("contradicted", "holds", "no difference within 1 point", "undecided")


@dataclass(frozen=True)
class Card:
    study: Study
    scale: Scale | None  # None: not begun
    verdicts: tuple[Mapping[str, Any], ...] = ()
    runs: int = 0
    planned: int = 0
    minutes: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)  # by family, as its trials chose

    @property
    def verdict(self) -> str:
        return str(self.verdicts[0]["verdict"]) if self.verdicts else "undecided"


def read_card(folder: Path, name: str) -> Card:
    study, sha256 = find_study(name)
    if not (folder / name / GRID).exists():
        return Card(study, None)
    scale = Scale(**read_json(folder / name / GRID)["scale"])
    cells = study.cells(scale)
    rows = results.read_runs(folder / name / results.RUNS)
    verdicts = write_results(study, sha256, folder / name, cells, rows)
    done = [rows[cell.key()] for cell in cells if cell.key() in rows]
    rates = tuned_rates(cells, {key: row["accuracy"] for key, row in rows.items()})
    return Card(study, scale, tuple(verdicts), len(done), len(cells), sum(row["seconds"] for row in done) / 60, rates)


def write_page(folder: Path) -> None:
    for name in STUDIES:  # so that every study's p is known to the others
        read_card(folder, name)
    cards = [read_card(folder, name) for name in STUDIES]
    cards.sort(key=lambda card: (_ORDER.index(card.verdict), not card.verdicts))
    rows = [
        f"| [{card.study.title}](#{card.study.name}) | {card.study.claims[0].text} | {_effect(card)} | **{card.verdict}** |"
        for card in cards
    ]
    write_text(folder / "README.md", _HEAD + "\n".join(rows) + "\n\n" + "\n".join(map(_draw_card, cards)))


def _effect(card: Card) -> str:
    if not card.verdicts or card.verdicts[0]["interval"] is None:
        return "not run yet"
    first = card.verdicts[0]
    low, high = first["interval"]
    return f"{first['effect']:+.1f} ({low:.1f} to {high:.1f}; {first['seeds']})"


def _draw_card(card: Card) -> str:
    study = card.study
    lines = [f"## {study.name}", f"**{study.title}** ({study.paper}). The paper: {study.sentence}", ""]
    if card.scale is None:
        return "\n".join([*lines, "Not run yet.", ""])
    if card.verdicts[0]["seeds"]:
        lines += [f"![{study.title}: means and 95 % intervals over seeds]({study.name}/figure.png)", ""]
    lines.append(_CLAIMS)
    for record in card.verdicts:
        effect = "-" if record["effect"] is None else f"{record['effect']:+.2f}"
        p = "-" if record["p"] is None else f"{record['p']:.2g}"
        if record["primary"] and record["p"] is not None:
            p += f" (Holm {record['p_holm']:.2g})"
        intervals = [_range(record[name]) for name in ("interval", "bootstrap")]
        cells = (record["claim"], effect, *intervals, p, record["seeds"], record["verdict"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    scale = card.scale
    upstream = f" --upstream {scale.upstream}" if scale.upstream and "builtin:" not in scale.upstream else ""
    command = f"vitreous study {study.name} {scale.data}{upstream} --level {scale.level} --out {study.name}"
    if card.rates:
        chosen = [_describe_rate(tuning, card.rates) for tuning in study.tunings(scale) if tuning.family in card.rates]
        lines += ["", f"Learning rates, by trials on held-out training images: {', '.join(chosen)}."]
    lines += ["", f"{card.runs} of {card.planned} runs, {card.minutes:.0f} minutes on one thread. `{command}`", ""]
    return "\n".join(lines)


def _describe_rate(tuning: Tuning, rates: Mapping[str, float]) -> str:
    """A best rate at the end of its list may not be the best there is: the reader should know."""
    rate = rates[tuning.family]
    ends = {min(tuning.rates): " (the smallest tried)", max(tuning.rates): " (the largest tried)"}
    return f"{tuning.family} {rate:g}{ends.get(rate, '')}"


def _range(interval: list[float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
