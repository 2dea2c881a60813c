"""`--fewshot`: few-shot accuracy along a run, which is the command's own and leaves training as it is."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from runs import digest, finished, metrics, pretrain, together

import vitreous
from html_page import Page
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.serving.runs import RunsFolder

RANDOM: dict[str, Any] = dict(set=("dropout=0.1", "mixup=0.2", "average=0.9"), keep_every=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fewshot") / "run"
    pretrain(out, **RANDOM, fewshot="builtin:digits", shots=(2, 5))
    return out


def test_it_changes_nothing_of_the_run(run: Path, tmp_path: Path) -> None:
    pretrain(tmp_path / "plain", **RANDOM)
    for name in ("", "best/", "raw/", "step-000006/"):
        assert digest(run, f"checkpoint/{name}model.safetensors") == digest(
            tmp_path / "plain", f"checkpoint/{name}model.safetensors"
        )

    def trained(out: Path) -> list[Any]:
        return [(record["step"], record["split"], record["loss"]) for record in metrics(out) if record["split"] != "fewshot"]

    assert trained(run) == trained(tmp_path / "plain")


def test_each_evaluation_has_the_accuracy_of_the_command(run: Path) -> None:
    records = metrics(run, "fewshot")
    assert [record["step"] for record in records] == [6, 12]
    keys = ["step", "epoch", "images", "seconds", "flops", "split", "loss", "fewshot_2", "fewshot_5", "n", "lr"]
    assert [*records[0]] == [*keys, "images_per_second"]
    assert records[0]["n"] == 500  # the test images
    checkpoints = [run / "checkpoint" / "step-000006", run / "checkpoint"]
    for record, checkpoint in zip(records, checkpoints, strict=True):
        for shots in (2, 5):
            with silence():
                # The draws are from as many images of a class as three draws of the most shots need.
                found = vitreous.fewshot(checkpoint, "builtin:digits", shots=str(shots), seeds=3, per_class=15, workers=0)
            assert record[f"fewshot_{shots}"] == pytest.approx(fmean(one.accuracy for one in found.rounds))
    assert "few-shot accuracy, 2 shots" in (run / "log.txt").read_text()


def test_reports_and_the_runs_view_keep_to_the_validation_loss(run: Path) -> None:
    (seen,) = RunsFolder(run.parent).listing()["runs"]
    last = metrics(run, "validation")[-1]
    assert (seen["loss"], seen["top1"], seen["split"]) == (last["loss"], last["top1"], "validation")
    page = Page((run / "report.html").read_text())
    assert "fewshot_5" in page.said


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    finished(together(tmp_path / "run", **RANDOM, fewshot="builtin:digits", shots=(2, 5), steps=1, eval_every=1))
    pretrain(tmp_path / "one", **RANDOM, fewshot="builtin:digits", shots=(2, 5), steps=1, eval_every=1)
    (both,), (one,) = (metrics(tmp_path / name, "fewshot") for name in ("run", "one"))
    assert both["n"] == one["n"] == 500
    # After one step, at the rate of a warm-up, only rounding and the masks of dropout differ.
    assert both["fewshot_5"] == pytest.approx(one["fewshot_5"], abs=0.02)


def test_masked_patches_are_followed_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    pretrain(out, objective="masked-patch", subset=None, steps=4, eval_every=2, fewshot="builtin:digits")
    assert [record["step"] for record in metrics(out, "fewshot")] == [2, 4]
    assert all(0 < record["fewshot_5"] < 1 for record in metrics(out, "fewshot"))
    verdict = f"Validation loss {metrics(out, 'validation')[-1]['loss']:.4g} after 4 steps."
    assert verdict in Page((out / "report.html").read_text()).said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(shots="5"), "--shots 5: is for --fewshot DATA, which is missing"),
        (dict(fewshot="builtin:digits", shots="some"), "--shots some: write numbers of images once each"),
        (dict(fewshot="builtin:digits", shots="500"), "--shots 500: class '.' of builtin:digits has"),
        (dict(fewshot="builtin:digit"), "did you mean"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_training(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=message):
        pretrain(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
