"""`--sweep`: each learning rate is tried by the recipe of the run that it is chosen for, and nothing is tried in vain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, TINY, pretrain

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("start") / "run"
    pretrain(out, steps=5)
    return out


def swept(out: Path, start: Path, **changes: Any) -> Any:
    options: dict[str, Any] = dict(data="builtin:digits", workers=0, eval_every=0, device="cpu", precision="float32")
    with silence():
        return vitreous.finetune(from_=str(start), out=str(out), sweep=True, **{**options, **changes})


def recipe(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "config.json").read_text())["recipe"])


def test_trials_train_by_the_recipe_of_the_run(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen anew for the 80 % of images that a trial has, length and warm-up would be others."""
    monkeypatch.setattr("vitreous.training.recipes.automatic._FEWEST_STEPS", 1)  # a short run, whose length the images decide
    monkeypatch.setattr("vitreous.training.recipes.automatic._MOST_EPOCHS", 10)
    swept(tmp_path / "run", start, subset=320, set=("sweep=1e-5:0.02", "sweep_share=0.2"))
    whole = recipe(tmp_path / "run")
    assert whole["steps"] == round(10 * 320 / whole["batch_size"])
    for rate in ("1e-05", "0.02"):
        trial = recipe(tmp_path / "run" / "sweep" / f"lr-{rate}")
        assert {name: value for name, value in trial.items() if name != "lr"} == {
            name: value for name, value in whole.items() if name != "lr"
        }
        assert trial["lr"] == float(rate)


def test_of_equal_accuracies_the_lower_loss_wins_and_a_rate_that_diverges_loses(start: Path, tmp_path: Path) -> None:
    """Of a few held-out images many rates get the same number right: then the smallest would be the least trained."""
    changes = ("sweep=1e-8:1e-7:1e6", "sweep_share=0.2", "clip=none", "warmup=0", "schedule=constant", "head_start=zero")
    swept(tmp_path / "run", start, steps=4, batch_size=32, subset=100, set=changes)
    done = [tmp_path / "run" / "sweep" / f"lr-{rate}" / "state" / "done.json" for rate in ("1e-08", "1e-07")]
    trials = [json.loads(path.read_text()) for path in done]
    assert trials[0]["top1"] == trials[1]["top1"]
    assert trials[0]["loss"] > trials[1]["loss"]
    assert recipe(tmp_path / "run")["lr"] == 1e-7
    decisions = json.loads((tmp_path / "run" / "config.json").read_text())["decisions"]
    assert "1e+06: diverged" in decisions[-1]
    with pytest.raises(VitreousError, match="diverged with every rate"):
        swept(tmp_path / "all", start, steps=4, batch_size=32, subset=100, set=("sweep=5e5:1e6", *changes[1:]))


def test_a_folder_that_is_not_free_is_refused_before_the_first_trial(start: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(VitreousError, match="is not empty, and not a run"):
        swept(tmp_path, start, steps=2, batch_size=32, set=("sweep=0.001:0.01",))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    other = tmp_path / "other"
    pretrain(other, steps=2, eval_every=0)
    with pytest.raises(VitreousError, match="belongs to a run with other settings"):
        swept(other, start, steps=2, batch_size=32, set=("sweep=0.001:0.01",))
    assert not (other / "sweep").exists()


def test_pre_training_sweeps_around_the_rate_of_its_recipe(tmp_path: Path) -> None:
    own = recipe_of(tmp_path / "plain")
    assert not own["sweep"]
    result = pretrain(tmp_path / "run", sweep=True, steps=6, eval_every=0)
    rates = {path.name for path in (tmp_path / "run" / "sweep").iterdir()}
    assert rates == {f"lr-{float(format(own['lr'] * factor, '.3g')):g}" for factor in (0.3, 1, 3)}
    trials = {path.parent.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("run/sweep/*/state/done.json")}
    best = max(trials, key=lambda name: (trials[name]["top1"], -trials[name]["loss"]))
    assert f"lr-{recipe(tmp_path / 'run')['lr']:g}" == best
    assert all(trial["n"] == 20 for trial in trials.values())  # a tenth of the 200 training images
    assert result.result["n"] == 200


def recipe_of(out: Path) -> dict[str, Any]:
    pretrain(out, steps=6, eval_every=0)
    return recipe(out)


def test_a_sweep_chooses_by_accuracy(tmp_path: Path) -> None:
    """Masked patches learn no classes: said at once, and nothing is trained."""
    from vitreous.core.distributed import init_distributed
    from vitreous.training.build_options import build_options
    from vitreous.training.sweep import run_training

    options = {**SMALL, "out": str(tmp_path / "run"), "objective": "masked-patch"}
    options |= {"sweep": True, "set": (*TINY, "sweep=0.001:0.01")}
    asked, previous = build_options("pretrain", options)
    with silence(), init_distributed("cpu") as world, pytest.raises(VitreousError, match="--sweep chooses by accuracy"):
        run_training(asked, previous, world)
    assert not (tmp_path / "run").exists()
