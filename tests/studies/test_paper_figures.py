"""`vitreous study NAME --paper`: every study draws the paper's numbers, or says that there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitreous.cli import main
from vitreous.studies.paper_figures import FIGURES, UNPUBLISHED, draw_paper_figure
from vitreous.studies.registry import COST, STUDIES
from vitreous.studies.study import Point


def test_every_study_has_a_figure_or_a_reason() -> None:
    assert {*FIGURES, *UNPUBLISHED} == {*STUDIES, COST}
    assert not set(FIGURES) & set(UNPUBLISHED)


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_drawn_and_nothing_is_trained(name: str, tmp_path: Path) -> None:
    result = draw_paper_figure(name, str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["paper.png", "paper.svg"]
    drawing = (tmp_path / "out" / "paper.svg").read_text()
    assert "Numbers of the paper" in drawing
    assert "mathdefault" not in drawing  # ticks of a logarithmic axis are text, too
    assert [record["y"] for record in result.records()] == [point.y for point in result.points]


@pytest.mark.parametrize(
    ("name", "point"),
    [  # by hand, from the tables as printed
        ("data-size", Point("ViT-L/16", 303e6, 87.12)),
        ("compute", Point("ResNet", 50e18, (77.54 + 97.67 + 86.07 + 91.11 + 94.26) / 5)),
        ("compute", Point("hybrid", 1668e18, (87.12 + 99.31 + 93.89 + 97.36 + 99.11) / 5)),
        ("transfer", Point("imagenet", "pets", 93.81)),
        ("self-supervision", Point("scratch", "scratch", 77.9)),
        ("positions", Point("", "none", 61.382)),
        ("optimizer", Point("SGD", "R50x1, average", 88.79)),
        ("axial", Point("full attention", "ViT-B/16, full", 63.75, 62.5, 65.0)),
        ("axial", Point("axial attention", "ViT-B/16, axial (at least)", 65.0, 65.0, None)),
    ],
)
def test_a_number_stands_where_the_paper_has_it(name: str, point: Point) -> None:
    assert any(
        (found.series, found.x, found.low, found.high) == (point.series, point.x, point.low, point.high)
        and found.y == pytest.approx(point.y)
        for found in FIGURES[name].points()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((name, f"--paper: the paper prints no numbers that {name} could draw; ") for name in UNPUBLISHED),
        ("position", "unknown study 'position'; did you mean 'positions'? (valid: axial, compute, cost, "),
        ("positions cifar10", "DATA cifar10: --paper trains nothing; leave it out"),
        ("positions --budget 2h", "--budget: --paper trains nothing; leave it out"),
        ("positions --level 0", "--level: --paper trains nothing; leave it out"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *words.split(), "--paper", "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"vitreous: {said}")
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()
