"""The demo tells what happened, finds every planted fault, and resumes where it was interrupted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge as OtherRidge

import vitreous
from vitreous.cli import _parse
from vitreous.commands.demo import RECORD, story
from vitreous.core.errors import VitreousError
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.splits import reduce_training_images
from vitreous.evaluation.ridge import EPSILON, L2S


@pytest.fixture(scope="module")
def small() -> None:
    """As short as it can be: the models learn nothing, so the numbers are bad, and are told all the same."""
    patch = pytest.MonkeyPatch()
    patch.setattr(story, "LETTERS", "builtin:letters?size=8&count=256")
    patch.setattr(story, "PRETRAIN", {"steps": 2, "eval_every": 0})
    patch.setattr(story, "FINETUNE", {**story.FINETUNE, "steps": 2})
    patch.setattr(story, "SCRATCH", {"steps": 2})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def out(small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was interrupted in its third part, and started again."""
    folder = tmp_path_factory.mktemp("place") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        broken = {**story.PARTS, "transfer": lambda out: (_ for _ in ()).throw(KeyboardInterrupt)}
        patch.setattr(story, "PARTS", broken)
        with pytest.raises(KeyboardInterrupt):
            vitreous.demo(str(folder))
    assert list(json.loads((folder / RECORD).read_text())["parts"]) == ["check", "pre-train"]
    finished = {path: path.stat().st_mtime_ns for path in (folder / "photos").rglob("*")}
    done = vitreous.demo(str(folder))
    assert {path: path.stat().st_mtime_ns for path in (folder / "photos").rglob("*")} == finished
    assert done.exit_code == 0
    return folder


def test_every_planted_fault_is_found_and_nothing_else(out: Path) -> None:
    part = json.loads((out / RECORD).read_text())["parts"]["check"]
    assert len(part["faults"]) == 10
    assert [row for row in part["faults"] if not row["found"]] == []
    assert part["result"].endswith("0 false alarms")


def test_it_says_when_pre_training_does_not_win(out: Path) -> None:
    done = vitreous.demo(str(out))
    accuracy = done.parts["transfer"]["accuracy"]
    assert accuracy["pre-trained on letters"] < accuracy["ridge on pixels"]  # after two steps
    assert "does not win" in done.verdict
    assert "does not win" in done.text()
    assert list(done.parts) == list(story.PARTS)
    report = (out / "report.html").read_text()
    assert "does not win" in report
    assert report.count("<img") > 30


def test_its_accuracies_are_those_of_the_checkpoints(out: Path) -> None:
    parts = json.loads((out / RECORD).read_text())["parts"]
    clf, test = vitreous.load(out / "digits"), open_data("builtin:digits").source("test")
    assert isinstance(test, Source)
    named = [clf.predict(np.asarray(test.read(k)), top=1).classes[0] for k in range(0, len(test), 5)]
    right = np.mean([int(name) == test.labels(k)[0] for name, k in zip(named, range(0, len(test), 5), strict=True)])
    assert abs(right - parts["transfer"]["accuracy"]["pre-trained on letters"]) < 0.12  # a fifth of them
    assert f"{parts['transfer']['accuracy']['pre-trained on letters']:.1%} of 500" in parts["evaluate"]["result"]


def test_ridge_on_pixels_is_scikit_learns() -> None:
    train, _ = reduce_training_images(story._train("builtin:digits"), None, 10, 0)
    test = open_data("builtin:digits").source("test")
    assert isinstance(test, Source)
    x, tests = story._pixels(train).double().numpy(), story._pixels(test).double().numpy()
    scaled = [(a - x.mean(0)) / (x.std(0) + EPSILON) for a in (x, tests)]
    y = np.where(train.targets()[:, None] == np.arange(10), 1.0, -1.0)
    right = [float((OtherRidge(l2).fit(scaled[0], y).predict(scaled[1]).argmax(1) == test.targets()).mean()) for l2 in L2S]
    assert min(abs(story.measure_ridge_on_pixels() - one) for one in right) < 0.0021  # one digit of 500


def test_the_commands_that_it_shows_can_be_typed(capsys: pytest.CaptureFixture[str], out: Path, tmp_path: Path) -> None:
    (record := json.loads((out / RECORD).read_text()))["parts"].popitem()
    (out / RECORD).write_text(json.dumps(record))
    done = vitreous.demo(str(out))
    shown = [line.strip(" $") for line in capsys.readouterr().err.splitlines() if line.startswith("  $")]
    assert len(shown) >= 1
    shown.append(story.command_line("pretrain", ("x",), {**story.PRETRAIN, **story.SETTINGS, "out": "y"}))
    for line in (*shown, done.serve):
        program, command, *words = shlex.split(line)
        assert program == "vitreous"
        _parse(command, words)


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_bytes(b"precious")
    with pytest.raises(VitreousError, match="holds other files"):
        vitreous.demo(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jpg"]
