"""Studies as a whole at the smallest size: each runs, keeps what was run, and refuses bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous.studies
from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.studies import measures, registry, run_cells, study_data
from vitreous.studies.registry import STUDIES
from vitreous.studies.results import read_runs
from vitreous.studies.run_cells import CellRunner
from vitreous.studies.run_study import StudyOptions, StudyResult, run_study
from vitreous.training.loop import Diverged

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-study.md"
Run = Callable[..., StudyResult]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training runs and rendered images, which studies have in common."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def run(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("VITREOUS_CACHE", str(shared / "cache"))
    monkeypatch.setattr(study_data, "EVALUATED", 64)
    monkeypatch.setattr(measures, "SHOTS", 2)
    study_data.open_once.cache_clear()

    def run_one(name: str, out: Path | None = None, **options: Any) -> StudyResult:
        given: dict[str, Any] = {"level": 0, "seeds": 2, "primary": True, "runs": str(shared / "runs"), **options}
        with silence():
            return run_study(StudyOptions(name=name, out=str(out or tmp_path / name), **given))

    yield run_one
    study_data.open_once.cache_clear()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_the_smallest_size(name: str, run: Run, tmp_path: Path) -> None:
    result = run(name)
    study, sha256 = registry.find_study(name)
    out = tmp_path / name
    assert {"grid.json", "runs.csv", "result.json", "figure.png", "figure.svg"} <= {path.name for path in out.iterdir()}
    first = json.loads((out / "result.json").read_text())[0]
    assert (first["seeds"], first["verdict"], first["study_sha256"]) == (2, "undecided", sha256)
    assert len(first["interval"]) == 2
    rows = read_runs(out / "runs.csv")
    assert {row["arm"] for row in rows.values() if row["role"] == "main"} == set(study.claims[0].weights)
    assert all(0 <= row["accuracy"] <= 1 and row["flops"] > 0 for row in rows.values())
    assert study.claims[0].text in result.text()


def start(out: Path, runs: Path) -> subprocess.Popen[bytes]:
    options = ["--level", "0", "--seeds", "2", "--primary", "--out", str(out), "--runs", str(runs)]
    # As torchrun would set them: processes share cells, and do not wait for each other.
    launcher = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return subprocess.Popen([sys.executable, "-m", "vitreous", "study", "axial", *options], env={**os.environ, **launcher})


def test_a_killed_study_is_resumed_and_two_processes_share_it(run: Run, tmp_path: Path) -> None:
    out, runs = tmp_path / "interrupted", tmp_path / "runs"
    killed = start(out, runs)
    while len(list(out.glob("rows/*.json"))) < 2:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    before = len(list(out.glob("rows/*.json")))
    both = [start(out, runs) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    run("axial", tmp_path / "uninterrupted", runs=str(tmp_path / "other runs"))
    interrupted, uninterrupted = (read_runs(tmp_path / name / "runs.csv") for name in ("interrupted", "uninterrupted"))
    assert 2 <= before < len(interrupted)
    assert {key: row["accuracy"] for key, row in interrupted.items()} == {
        key: row["accuracy"] for key, row in uninterrupted.items()
    }


def test_rows_that_came_with_the_results_are_not_run_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("distance", tmp_path / "first")
    (tmp_path / "clone").mkdir()
    for name in ("grid.json", "runs.csv", "outcomes.npz"):
        if (tmp_path / "first" / name).exists():
            shutil.copy(tmp_path / "first" / name, tmp_path / "clone")
    monkeypatch.setattr(CellRunner, "_run", lambda *_: pytest.fail("was run again"))
    run("distance", tmp_path / "clone", runs=str(tmp_path / "none"))
    for name in ("runs.csv", "result.json"):
        assert (tmp_path / "clone" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


def test_a_run_that_diverges_is_wrong_everywhere_and_does_not_stop_the_study(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = run_cells.train_stage

    def diverging(stage: Any, *rest: Any) -> Any:
        if stage.set["lr"] == 3e-3:
            raise Diverged("the loss is nan")
        return train(stage, *rest)

    monkeypatch.setattr(run_cells, "train_stage", diverging)
    run("axial", runs=str(tmp_path / "runs"))
    rows = read_runs(tmp_path / "axial" / "runs.csv").values()
    assert {row["accuracy"] for row in rows if row["lr"] == 3e-3} == {0}
    assert {row["diverged"] for row in rows if row["lr"] == 3e-3} == {1}
    assert all(row["diverged"] is None for row in rows if row["role"] == "main")


def test_the_study_of_the_documentation_works(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "smoothing_study.py").write_text(code)
    monkeypatch.setattr(vitreous.studies, "__path__", [*vitreous.studies.__path__, str(tmp_path / "own")])
    monkeypatch.setattr(registry, "STUDIES", (*STUDIES, "smoothing"))
    result = run("smoothing")
    assert "Label smoothing helps." in result.text()
    assert len(result.rows) == 3 * 2 + 2 * 2


# Bad input -------------------------------------------------------------------------------------------------------------


def make_images(folder: Path, splits: dict[str, int], classes: int) -> Path:
    random = np.random.default_rng(0)
    for split, count in splits.items():
        for label in range(classes):
            (folder / split / f"class {label}").mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / f"class {label}" / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("position", "unknown study 'position'; did you mean 'positions'? (valid: "),
        ("positions --level 8", "--level 8: must be from 0 to 7"),
        ("positions --level -1", "--level -1: must be from 0 to 7"),
        ("positions --level 0 --budget 2h", "--level and --budget: both choose the size; leave one out"),
        ("positions --seeds 1", "--seeds 1: a comparison needs at least two"),
        ("positions --budget soon", "--budget soon: give a time such as 90s, 30m, 2h or 1d"),
        ("axial --budget 1s", "--budget: axial takes about "),
        ("positions --upstream builtin:letters", "--upstream builtin:letters: positions trains from scratch; leave it out"),
        ("positions no-test --level 0", "no-test: a study needs a train and a test split"),
        ("positions one-class --level 0", "one-class: has 1 classes; a study compares accuracies"),
        ("transfer few --level 0", "few: class class 0 has 4 training images; this study needs 90 of each class: add images"),
        ("compute few --level 0", "few: class class 0 has 4 training images; this study needs 10 of each class"),
        ("positions nowhere", "'nowhere': no such file or folder, and no known data set"),
        ("positions few --level 0", "few: has 8 training images; this study needs 20"),
        ("cost --primary", "--primary: cost trains nothing; leave it out"),
        ("cost builtin:digits", "DATA builtin:digits: cost trains nothing; leave it out"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_trained(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study_data.open_once.cache_clear()
    study_data.count_training_images.cache_clear()
    monkeypatch.setattr(study_data, "EVALUATED", 8)
    make_images(tmp_path / "no-test", {"train": 3}, 2)
    make_images(tmp_path / "one-class", {"train": 3, "test": 2}, 1)
    make_images(tmp_path / "few", {"train": 4, "test": 2}, 2)
    monkeypatch.setattr(CellRunner, "_run", lambda *_: pytest.fail("was trained"))
    assert main(["study", *words.split(), "--out", "out", "--quiet"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"vitreous: {said}"), printed
    assert printed.count("\n") == 1
    study_data.open_once.cache_clear()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose grid is made, and of which nothing was run."""
    out = tmp_path_factory.mktemp("finished") / "positions"
    with pytest.MonkeyPatch.context() as patched, silence():
        patched.setattr(CellRunner, "run_missing", lambda *_: iter(()))
        run_study(StudyOptions(name="positions", out=str(out), level=0, seeds=2))
    return out


def edited(change: Callable[[Any], object]) -> Callable[[Path], object]:
    def edit(out: Path) -> None:
        found = json.loads((out / "grid.json").read_text())
        change(found)
        (out / "grid.json").write_text(json.dumps(found))

    return edit


def table(line: str) -> Callable[[Path], object]:
    return lambda out: (out / "runs.csv").write_text(f"cell,arm,role,accuracy,seed,flops,seconds\n{line}\n")


@pytest.mark.parametrize(
    ("options", "damage", "said"),
    [
        (dict(name="axial"), None, "its grid is of study positions, not axial; choose another folder"),
        (dict(data="builtin:position"), None, "its grid is of data builtin:digits, not builtin:position"),
        (dict(seeds=3), None, "its grid is of seeds 2, not 3"),
        (dict(level=1), None, "its grid is of level 0, not 1"),
        (dict(precision="bfloat16"), None, "its grid is of precision float32, not bfloat16"),
        (
            {},
            edited(lambda grid: grid.update(data_fingerprint="x")),
            "its grid is of images x, not",
        ),
        (
            {},
            edited(lambda grid: grid.update(study_sha256="x")),
            "study positions has changed since",
        ),
        ({}, edited(lambda grid: grid["cells"].pop()), "study positions has changed since"),
        (
            {},
            edited(lambda grid: grid["scale"].update(image_size=0)),
            "study positions has changed",
        ),
        (
            {},
            edited(lambda grid: grid["scale"].update(width="x")),
            "grid.json: is no grid of a study",
        ),
        ({}, edited(lambda grid: grid.pop("study")), "grid.json: is no grid of a study"),
        ({}, lambda out: (out / "grid.json").write_text("[1]"), "grid.json: is no grid of a study"),
        ({}, lambda out: (out / "grid.json").write_bytes(b"\xff\x00"), "grid.json: is no grid of a study"),
        ({}, lambda out: (out / "grid.json").unlink(), "holds other files; choose a new folder"),
        ({}, lambda out: (out / "runs.csv").write_bytes(b"\xff\x00\n1"), "runs.csv: is no table of runs"),
        ({}, lambda out: (out / "runs.csv").write_text("a,b\n1,2\n"), "runs.csv: is no table of runs"),
        (
            {},
            table("x,a,main,0.5"),
            "is no table",
        ),
        (
            {},
            table("x,a,main,nan,0,1,1"),
            "no number",
        ),
        (
            {},
            table("x,a,none,1,0,1,1"),
            "no cell, arm",
        ),
        ({}, lambda out: (out / "outcomes.npz").write_bytes(b"PK"), "outcomes.npz: holds no outcomes of test images"),
    ],
)
def test_a_folder_of_something_else_is_refused(
    options: dict[str, Any], damage: Callable[[Path], object] | None, said: str, finished: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "positions"
    shutil.copytree(finished, out)
    if damage is not None:
        damage(out)
    monkeypatch.setattr(CellRunner, "_run", lambda *_: pytest.fail("was trained"))
    if "outcomes" in said:
        monkeypatch.setattr(CellRunner, "run_missing", lambda *_: iter(()))
    with silence(), pytest.raises(VitreousError) as error:
        run_study(StudyOptions(**{"name": "positions", "out": str(out), **options}))
    assert said in str(error.value)
