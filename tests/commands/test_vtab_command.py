"""`vitreous vtab` from end to end, on the real digits: interrupted, gone on with, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import Ridge as SklearnRidge

import vitreous
from vitreous.cli import main
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.data.splits import random_subset
from vitreous.studies import run_suite, suite_cells
from vitreous.studies.results import read_runs
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint

SUITE = """
name = "tiny"
[protocol]
steps = 4
batch_size = 16
lr = 0.01
warmup = 1
image_size = 8
seeds = 2
examples = 60
[[task]]
name = "digits"
group = "natural"
data = "builtin:digits"
flip = false
[[task]]
name = "fewer"
group = "structured"
data = "builtin:digits"
examples = 40
crop = false
flip = false
"""
OPTIONS: dict[str, Any] = dict(workers=0, device="cpu", precision="float32")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    made = random_checkpoint("ViT-Ti/4", classes=3, image_size=8, channels=1, width=16, depth=1, heads=2, mlp=16)
    write_checkpoint(made, tmp_path / "tiny")
    return str(tmp_path / "tiny")


@pytest.fixture
def suite(tmp_path: Path) -> str:
    (tmp_path / "suite.toml").write_text(SUITE)
    return str(tmp_path / "suite.toml")


@pytest.fixture
def _no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all the rest, and has tests of its own."""
    monkeypatch.setattr(run_suite, "save", lambda figure, folder, name: None)


def rows(out: Path, role: str = "main") -> list[dict[str, Any]]:
    return [row for row in read_runs(out / "runs.csv").values() if row["role"] == role]


def run(tiny: str, out: Path, **options: Any) -> Any:
    from vitreous.core.progress import silence

    with silence():
        return vitreous.vtab(tiny, out=str(out), **{**OPTIONS, **options})


def test_a_suite_from_end_to_end_interrupted_and_resumed(
    tiny: str, suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    calls = []
    real = suite_cells.train_stage

    def interrupted(stage: Any, given: Any, *args: Any) -> Any:
        calls.append((Path(given["out"]).parent.name, stage.options["seed"]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(stage, given, *args)

    monkeypatch.setattr(suite_cells, "train_stage", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, out, suite=suite)
    assert [(row["arm"], row["seed"]) for row in rows(out)] == [("digits", 0), ("digits", 1)]
    assert not (out / "vtab.json").exists()
    calls[:] = [("", -1)] * 3
    found = run(tiny, out, suite=suite)
    assert calls[3:] == [("fewer", 0), ("fewer", 1)]  # only what was missing
    (straight,) = run(tiny, tmp_path / "straight", suite=suite, tasks="fewer", seeds=1, seed=1).summary.tasks
    assert straight.accuracies[0] == rows(out)[3]["accuracy"]
    calls.pop()
    matrix = np.array([row["accuracy"] for row in rows(out)]).reshape(2, 2)
    assert found.records()[-1]["accuracy"] == pytest.approx(matrix.mean(), abs=1e-12)
    assert found.records()[-1]["spread"] == pytest.approx(matrix.mean(axis=0).std(ddof=1), abs=1e-12)

    # What the runs were: evaluated on the whole test split, trained on the suite's draw, and no weights left behind.
    assert {(row["arm"], row["n_train"], row["n"]) for row in rows(out)} == {("digits", 60, 500), ("fewer", 40, 500)}
    config = json.loads((out / "runs" / "fewer" / "seed-1" / "config.json").read_text())
    assert (config["recipe"]["lr"], config["recipe"]["steps"], config["recipe"]["warmup"]) == (0.01, 4, 1)
    assert (config["recipe"]["batch_size"], config["recipe"]["optimizer"], config["recipe"]["clip"]) == (16, "sgd", 1.0)
    assert config["recipe"]["preprocess"] == "resize(8,bilinear-plain)|range(-1,1)"
    assert config["data"]["held_out_split"] == "test"
    same = json.loads((out / "runs" / "fewer" / "seed-0" / "config.json").read_text())
    assert same["data"] == config["data"]  # the seed draws no other images
    assert not list(out.glob("runs/*/*/checkpoint/*"))
    assert all((out / name).stat().st_size for name in ("vtab.png", "vtab.svg", "table.txt", "table.md", "vtab.json"))
    assert not list(out.glob("runs/*/*/state/step-*"))

    # Finished: nothing is changed, more seeds are added, another protocol is refused.
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = run(tiny, out, suite=suite)
    assert any("nothing was changed" in note for note in again.notes)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert len(calls) == 5
    one = run(tiny, out, suite=suite, tasks="fewer", seeds=1, seed=1)
    assert len(calls) == 5
    assert [record["task"] for record in one.records()] == ["fewer", "mean"]
    assert "mean of 1 of 2" in one.text()
    with pytest.raises(vitreous.VitreousError, match=r"protocol.steps: 4 there, 5 now"):
        run(tiny, out, suite=suite, steps=5)


@pytest.mark.usefixtures("_no_chart")
def test_a_sweep_then_the_final_runs(tiny: str, suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are planted; what is asked for, and with which images, is real."""
    asked = []

    def planted(stage: Any, given: Any, dataset: Any, world: Any) -> Any:
        (split,) = dataset.splits.keys() - {"train"}
        lr, steps, seed = stage.set["lr"], stage.options["steps"], stage.options["seed"]
        folder = Path(given["out"])
        name = folder.name if split == "validation" else folder.parent.name
        asked.append((name, lr, steps, seed, len(dataset.splits["train"]), split))
        accuracy = 0.75 if (lr, steps) == (0.003, 4) else 0.5
        return {"top1": accuracy, "n": len(dataset.splits[split]), "flops": 1.0, "seconds": 1.0}

    monkeypatch.setattr(suite_cells, "train_stage", planted)
    found = run(tiny, tmp_path / "out", suite=suite, sweep=True, seeds=1)
    settings = [(lr, steps) for steps in (1, 4) for lr in (0.003, 0.01)]
    trials = [(name, *setting, 0, n, "validation") for setting in settings for name, n in (("digits", 48), ("fewer", 32))]
    assert asked == [*trials, ("digits", 0.003, 4, 0, 60, "test"), ("fewer", 0.003, 4, 0, 40, "test")]
    assert len(rows(tmp_path / "out", "trial")) == 8
    assert any("lr 0.003, 4 steps: the best mean on the validation images of 2 tasks" in note for note in found.notes)
    assert found.summary.suite.protocol.lr == 0.003
    run(tiny, tmp_path / "out", suite=suite, sweep=True, seeds=1)
    assert len(asked) == 10


@pytest.mark.usefixtures("_no_chart")
def test_closed_form_in_another_engine(tiny: str, suite: str, tmp_path: Path) -> None:
    own = dict(suite=suite, mode="linear", tasks="digits", precision="float32")
    run(tiny, tmp_path / "torch", **own)
    run(tiny, tmp_path / "onnx", **own, engine="onnx")
    accuracies = [rows(tmp_path / name)[0]["accuracy"] for name in ("torch", "onnx")]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=2 / 500)
    with pytest.raises(vitreous.VitreousError, match="onnx"):  # results of another engine are another study
        run(tiny, tmp_path / "torch", **own, engine="onnx")


@pytest.mark.usefixtures("_no_chart")
def test_closed_form_is_sklearns_ridge(tiny: str, suite: str, tmp_path: Path) -> None:
    found = run(tiny, tmp_path / "out", suite=suite, mode="linear", tasks="digits")
    (row,) = rows(tmp_path / "out")
    clf, digits = vitreous.load(tiny), open_data("builtin:digits")
    pool, test = digits.source("train"), digits.source("test")
    assert isinstance(pool, Source)
    assert isinstance(test, Source)
    train = random_subset(pool, 60, 0)

    def features(source: Source) -> np.ndarray[Any, Any]:
        pixels = np.stack([np.asarray(source.read(index)) for index in range(len(source))]).astype(np.float32)
        import torch

        prepared = torch.from_numpy(pixels / 127.5 - 1)[:, None]
        return clf.features(prepared).double().numpy()

    x, t = features(train), features(test)
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    x, t = (np.c_[(part - mean) / std, np.full(len(part), 100.0)] for part in (x, t))
    y = np.where(np.eye(10)[train.targets()] > 0, 1.0, -1.0)
    fitted = SklearnRidge(alpha=row["l2"], fit_intercept=False, solver="svd").fit(x, y)
    expected = (fitted.predict(t).argmax(axis=1) == test.targets()).mean()
    assert row["accuracy"] == pytest.approx(expected, abs=1e-12)
    assert (row["n_train"], row["n"], row["mode"]) == (60, 500, "linear")
    assert found.records()[0]["accuracy"] == row["accuracy"]
    largest = np.bincount(train.targets()).argmax()
    assert found.records()[0]["majority"] == row["majority"] == pytest.approx((test.targets() == largest).mean())
    heading = next(line for line in found.text().splitlines() if line.strip().startswith("task"))
    assert heading.split() == ["task", "accuracy", "majority"]
    assert f"{100 * row['majority']:.2f}" in found.text()
    assert "±" not in found.text()


@pytest.mark.usefixtures("_no_chart")
def test_results_of_another_checkpoint_are_refused(
    tiny: str, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    words = ["--suite", suite, "--mode", "linear", "--out", str(tmp_path / "out"), "--workers", "0", "--device", "cpu"]
    assert main(["vtab", tiny, *words, "--precision", "float32", "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["preprocess"] for record in printed} == {str(vitreous.load(tiny).preprocess)}
    assert [record["task"] for record in printed] == ["digits", "fewer", "mean"]
    other = random_checkpoint("ViT-Ti/4", classes=3, image_size=8, channels=1, width=16, depth=1, heads=2, mlp=16)
    other.tensors["norm.weight"].add_(torch.full_like(other.tensors["norm.weight"], 0.01))
    write_checkpoint(other, tmp_path / "other")
    before = (tmp_path / "out" / "runs.csv").read_bytes()
    assert main(["vtab", str(tmp_path / "other"), *words, "--precision", "float32"]) == 2
    error = capsys.readouterr().err
    assert "holds results of another model or protocol (checkpoint.sha256" in error
    assert (tmp_path / "out" / "runs.csv").read_bytes() == before


def community(folder: Path, task: str, classes: int) -> None:
    """A task in the community's layout: lists of images."""
    for split, count in (("train800", 16), ("val200", 8), ("test", 12)):
        (folder / task / "images" / split).mkdir(parents=True)
        lines = []
        for number in range(count):
            name = f"images/{split}/{number:06d}.jpg"
            Image.fromarray(np.full((8, 8, 3), 20 * (number % classes), np.uint8)).save(folder / task / name)
            lines.append(f"{name} {number % classes}\n")
        (folder / task / f"{split}.txt").write_text("".join(lines))


@pytest.mark.usefixtures("_no_chart")
def test_vtab_itself_names_what_is_missing_and_calls_no_part_of_it_the_whole(tiny: str, tmp_path: Path) -> None:
    community(tmp_path / "vtab-1k", "patch_camelyon", 2)
    community(tmp_path / "vtab-1k", "kitti", 4)
    with pytest.raises(vitreous.VitreousError, match=r"17 of 19 tasks cannot be opened: caltech101, .*--tasks camelyon,kitti"):
        run(tiny, tmp_path / "out", data=str(tmp_path / "vtab-1k"), mode="linear")
    assert not (tmp_path / "out").exists()
    found = run(tiny, tmp_path / "out", data=str(tmp_path / "vtab-1k"), mode="linear", tasks="kitti,camelyon")
    assert [record["task"] for record in found.records()] == ["camelyon", "kitti-distance", "mean"]
    assert "mean of 2 of 19" in found.text()
    assert "closed form on frozen features at 8, where the paper fine-tunes at 384" in found.text()
    assert found.records()[0]["paper"] == {"ViT-H/14 (JFT)": 83.3, "ViT-L/16 (JFT)": 83.6, "ViT-L/16 (ImageNet-21k)": 82.5}
    assert (found.records()[0]["n_train"], found.records()[0]["n_test"]) == (24, 12)
    few: dict[str, Any] = dict(seeds=1, steps=1, batch_size=8, image_size=(8, 8))
    tuned = run(tiny, tmp_path / "tuned", data=str(tmp_path / "vtab-1k"), tasks="kitti", sweep=True, **few)
    assert {(row["n_train"], row["n"]) for row in rows(tmp_path / "tuned", "trial")} == {(16, 8)}
    (row,) = rows(tmp_path / "tuned")
    assert (row["n_train"], row["n"]) == (24, 12)
    assert "not the paper's protocol: steps" in tuned.text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(), "DATA is missing"),
        (dict(data="nowhere"), "nowhere: no such folder"),
        (dict(data=".", suite="small"), "leave DATA out"),
        (dict(suite="small", tasks="digit"), "did you mean 'digits'"),
        (dict(data=".", tasks="petz"), "did you mean 'pets'"),
        (dict(suite="small", seeds=0), "--seeds 0: must be at least 1"),
        (dict(suite="small", steps=-1), "--steps -1: must be at least 1"),
        (dict(suite="small", seed=-1), "--seed -1"),
        (dict(suite="small", workers=-1), "--workers -1"),
        (dict(suite="small", mode="linear", seeds=3), "--seeds is for --mode finetune"),
        (dict(suite="small", mode="linear", set=("lr=1",)), "--set is for --mode finetune"),
        (dict(suite="small", engine="onnx"), "--engine onnx is for --mode linear: fine-tuning computes in torch"),
        (dict(suite="small", mode="linear", sweep=True), "--sweep is for --mode finetune"),
        (dict(suite="small", sweep=True, set=("lr=1",)), "--sweep chooses the learning rate"),
        (dict(suite="small", set=("lr=0",)), "must lie between"),
        (dict(suite="small", set=("patience=3",)), "would choose by the test images"),
        (dict(suite="small", set=("preprocess=resize(8)",)), "follows from each task's crop and flip"),
        (dict(suite="small", set=("dropuot=0.1",)), "did you mean 'dropout'"),
        (dict(suite="small", steps=3, set=("steps=4",)), "say the same"),
        (dict(suite="small", set=("warmup=200",)), "below the 200 steps"),
        (dict(suite="small", image_size=(30, 30)), "30 is not a multiple"),
        (dict(suite="small", mode="linear", image_size=(30, 30)), "30 is not a multiple"),
    ],
)
def test_a_wrong_command_is_one_clear_line_and_leaves_nothing(
    options: dict[str, Any], message: str, tiny: str, tmp_path: Path
) -> None:
    with pytest.raises(vitreous.VitreousError, match=message) as caught:
        run(tiny, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_no_chart")
def test_settings_reach_the_runs(tiny: str, suite: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tiny, out, suite=suite, tasks="digits", seeds=1, batch_size=8, set=("schedule=linear",), keep_weights=True)
    config = json.loads((out / "runs" / "digits" / "seed-0" / "config.json").read_text())
    assert (config["recipe"]["schedule"], config["recipe"]["batch_size"], config["recipe"]["lr"]) == ("linear", 8, 0.005)
    assert config["recipe"]["preprocess"] == "resize(9,bilinear-plain)|random_crop(8)|range(-1,1)"
    again = vitreous.load(out / "runs" / "digits" / "seed-0")
    assert len(again.classes) == 10
