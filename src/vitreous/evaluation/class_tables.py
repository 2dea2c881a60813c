"""Class by class: precision and recall, who is taken for whom, and the worst mistakes as pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.counts import PerClass
from vitreous.evaluation.validation_result import Mistake, ValidationResult
from vitreous.reports.html import picture, scrolled, text

ROWS = 1000  # classes in the table; of more, those with the lowest F1
CELLS = 40  # classes up to which the whole matrix is drawn
PAIRS = 25  # of classes, the most confused
MISTAKES = 48

Link = Callable[[int, int], str | None]
"""Where the pictures of (truth, guess) are on the page; None where none are shown."""


def per_class(outcome: ValidationResult) -> tuple[PerClass, ...]:
    """As it was counted, or else by the confusion; 0 stands for a share of nothing, as in `Counts`."""
    if outcome.per_class or not outcome.confusion.size:
        return outcome.per_class
    right, named, there = (
        part.tolist() for part in (np.diag(outcome.confusion), *(outcome.confusion.sum(axis=k) for k in (0, 1)))
    )
    return tuple(
        PerClass(r / max(1, g), r / max(1, n), 2 * r / max(1, g + n), n) for r, g, n in zip(right, named, there, strict=True)
    )


def class_table(outcome: ValidationResult) -> str:
    """Nothing where nothing was counted class by class."""
    every = per_class(outcome)
    there = [row for row in every if row.n]
    if not there:
        return ""
    worst = sorted(range(len(every)), key=lambda k: (not every[k].n, every[k].f1, -every[k].n, k))
    rows = []
    for k in worst[:ROWS]:
        row = every[k]
        shares = "".join(_share(value, bool(row.n)) for value in (row.precision, row.recall, row.f1))
        rows.append(f'<tr><th scope="row">{text(outcome.classes[k])}</th>{shares}{_cell(row.n)}</tr>')
    head = '<th scope="col" data-sort="text">class</th>' + "".join(
        f'<th scope="col" class="number" data-sort="number"{" aria-sort=ascending" if name == "F1" else ""}>{name}</th>'
        for name in ("precision", "recall", "F1", "images")
    )
    table = f'<table class="classes sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    more = f" The {ROWS:,} lowest of {len(every):,} classes." if len(every) > ROWS else ""
    precision, recall, f1 = (sum(row[k] for row in there) / len(there) for k in range(3))
    said = (
        f"Lowest F1 first. The mean over the {len(there):,} classes that have images: precision {_percent(precision)}, "
        f"recall {_percent(recall)}, F1 {_percent(f1)}.{more}"
    )
    return f'<p class="quiet">{said}</p><div class="tall">{scrolled("results of each class", table)}</div>'


def confused_pairs(confusion: NDArray[np.int64], most: int = PAIRS) -> list[tuple[int, int, int]]:
    """(truth, guess, images): off the diagonal, the largest numbers; of equal ones, the larger share of its class first."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    truth, guess = np.nonzero(wrong)
    count = wrong[truth, guess]
    share = count / confusion.sum(axis=1)[truth]
    order = np.lexsort((guess, truth, -share, -count))[:most]
    return [(int(truth[k]), int(guess[k]), int(count[k])) for k in order]


def confusion_section(outcome: ValidationResult, link: Link | None = None) -> str:
    """Nothing where the pairs were not counted."""
    if not outcome.confusion.size:
        return ""
    pairs = confused_pairs(outcome.confusion)
    matrix = _matrix(outcome, link) if len(outcome.classes) <= CELLS else ""
    if not pairs:
        return matrix + "<p>Nothing was confused.</p>"
    shown = pairs_table(outcome.classes, pairs, outcome.confusion.sum(axis=1).tolist(), link)
    many = f"The {len(pairs)} most confused pairs" if len(pairs) > 1 else "The one pair that was confused"
    if not matrix:
        return f'<p class="quiet">{many} of {len(outcome.classes):,} classes.</p>{shown}'
    return f"{matrix}<details><summary>{many}</summary>{shown}</details>"


def pairs_table(
    classes: Sequence[str], pairs: Sequence[tuple[int, int, int]], there: Sequence[int], link: Link | None = None
) -> str:
    """(truth, guess, images) of the most confused; `there` is how many images each class has."""
    rows = "".join(
        f'<tr><th scope="row">{text(classes[truth])}</th><td>{_linked(text(classes[guess]), link, truth, guess)}</td>'
        f"{_cell(count)}{_share(count / max(1, there[truth]))}</tr>"
        for truth, guess, count in pairs
    )
    head = (
        '<th scope="col">class</th><th scope="col">taken for</th><th scope="col" class="number">images</th>'
        '<th scope="col" class="number">of the class</th>'
    )
    table = f'<table class="pairs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return scrolled("the most confused pairs", table)


def mistakes_section(outcome: ValidationResult) -> str:
    shown = outcome.mistakes[:MISTAKES]
    return f'<div class="mistakes">{"".join(_mistake(mistake) for mistake in shown)}</div>'


# Pieces -----------------------------------------------------------------------------------------------------------------------


def _matrix(outcome: ValidationResult, link: Link | None) -> str:
    """Rows are classes, columns guesses; what is right in blue, what is wrong in red, deeper for a larger share of the row."""
    there = outcome.confusion.sum(axis=1)
    names = [text(name) for name in outcome.classes]
    head = "".join(f'<th scope="col"><span>{name}</span></th>' for name in names)
    rows = []
    for truth, row in enumerate(outcome.confusion.tolist()):
        cells = []
        for guess, count in enumerate(row):
            share = count / there[truth] if there[truth] else 0.0
            if not count:
                cells.append("<td></td>")
                continue
            kind = "right" if truth == guess else "wrong"
            depth = share if truth == guess else math.sqrt(share)  # few mistakes should be seen too
            told = f"{names[truth]} taken for {names[guess]}: {count:,}, {share:.1%} of the class"
            deep = " deep" if depth > 0.55 else ""
            inside = _linked(_compact(count), link, truth, guess, told)
            cells.append(f'<td class="{kind}{deep}" style="--d:{max(0.06, depth):.2f}" title="{told}">{inside}</td>')
        rows.append(f'<tr><th scope="row"><span>{names[truth]}</span></th>{"".join(cells)}</tr>')
    table = (
        f'<table class="matrix"><thead><tr><td class="quiet">true ↓ guessed →</td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return scrolled("confusion matrix", table)


def _linked(inside: str, link: Link | None, truth: int, guess: int, told: str = "") -> str:
    """All of these are escaped already."""
    target = link(truth, guess) if link is not None else None
    label = f' aria-label="{told}"' if told else ""
    return f'<a href="#{target}"{label}>{inside}</a>' if target else inside


def _mistake(mistake: Mistake) -> str:
    bars = guess_bars([(name, probability, name in mistake.truth) for name, probability in mistake.guesses[:5]])
    truth = " + ".join(mistake.truth)
    loss = f"loss {mistake.loss:.3g}" if math.isfinite(mistake.loss) else "loss not finite"
    return (
        f"<figure>{picture(mistake.picture, truth)}<figcaption>"
        f'<span class="quiet">true:</span> <span class="label">{text(truth)}</span>'
        f'{bars}<span class="quiet">{text(mistake.id)} · {loss}</span></figcaption></figure>'
    )


def guess_bars(guesses: Sequence[tuple[str, float, bool]]) -> str:
    """(class, probability, whether it is right), best first."""
    bars = []
    for name, probability, right in guesses:
        share = min(1.0, max(0.0, probability)) if math.isfinite(probability) else 0.0
        kind = "guess right" if right else "guess"
        bars.append(
            f'<li class="{kind}" style="--p:{share:.3f}"><span title="{text(name)}">{text(name)}</span>'
            f"<span>{f'{probability:.0%}' if math.isfinite(probability) else '–'}</span></li>"
        )
    return f'<ol class="guesses">{"".join(bars)}</ol>'


def _share(value: float, known: bool = True) -> str:
    return f'<td class="number" data-value="{value if known else -1:.6g}">{_percent(value) if known else "–"}</td>'


def _cell(count: int) -> str:
    return f'<td class="number" data-value="{count}">{count:,}</td>'


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _compact(count: int) -> str:
    """1,234 in a narrow cell."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.3g}k" if count < 999_500 else f"{count / 1e6:.3g}M"
