"""Runs as their users meet them: what is decided, written, refused and said."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import SMALL, TINY, digest, metrics, pretrain, states
from safetensors.torch import load_file

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.evaluation.ridge import Ridge
from vitreous.training import timing
from vitreous.training.outcomes import read_outcomes
from vitreous.training.timing import Pace


def finetune(out: Path, **options: Any) -> Any:
    common = dict(data="builtin:digits", steps=8, batch_size=32, workers=0, eval_every=0, device="cpu", precision="float32")
    with silence():
        return vitreous.finetune(out=str(out), **{**common, **options})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small pretrained model, with the tanh layer of pre-training."""
    out = tmp_path_factory.mktemp("start") / "run"
    pretrain(out, set=("representation=yes", "loss=sigmoid", "head_bias=-10", "smoothing=1e-4"), subset=None, steps=30)
    return out


def test_a_run_leaves_what_it_promises(tmp_path: Path) -> None:
    result = pretrain(tmp_path / "run", set=("average=0.9",))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "metrics.jsonl", "log.txt", "report.html", "mistakes.json", "outcomes.csv"}
    assert names == {*files, "checkpoint", "state"}
    inside = {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert {"model.safetensors", "model.json", "best", "raw"} <= inside
    keys = {"step", "epoch", "images", "seconds", "flops", "split", "loss", "lr", "images_per_second"}
    for record in metrics(tmp_path / "run"):
        assert keys <= record.keys()
    assert "top1" in metrics(tmp_path / "run", "validation")[-1]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["steps"] == 12
    assert config["model"]["width"] == 32
    assert config["decisions"]
    assert result.result["n"] == 200
    assert (result.steps, result.top1, result.loss) == tuple(result.result[key] for key in ("steps", "top1", "loss"))
    assert (result.checkpoint / "model.safetensors").is_file()
    assert result.text().endswith("report.html has curves, classes and mistakes")
    clf = vitreous.load(tmp_path / "run")  # the run itself is a checkpoint
    assert clf.classes == tuple("0123456789")
    digits = vitreous.open_data("builtin:digits").splits["validation"]
    right = [int(clf.predict(digits.read(i), top=1).classes[0]) in digits.labels(i) for i in range(len(digits))]
    assert np.mean(right) == pytest.approx(result.result["top1"])  # what the checkpoint predicts is what was reported
    assert read_outcomes(tmp_path / "run") == dict(zip(map(digits.id, range(len(digits))), right, strict=True))
    header, *rows = (tmp_path / "run" / "outcomes.csv").read_text().splitlines()
    assert header == "id,label,predicted,correct"
    assert rows == sorted(rows)
    assert all((label == predicted) == (correct == "1") for _, label, predicted, correct in (row.split(",") for row in rows))
    html = (tmp_path / "run" / "report.html").read_text()
    assert "<html" in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_training_flops_are_counted_from_the_equations_of_the_model(tmp_path: Path) -> None:
    result = pretrain(tmp_path / "run")
    tokens, width, mlp, depth = 16 + 1, 32, 64, 2  # 2 x 2 patches of 8 x 8 grey pixels, and the class token
    qkv_and_output, attention = 4 * tokens * width**2, 2 * tokens**2 * width
    block = qkv_and_output + attention + 2 * tokens * width * mlp
    macs = 16 * 4 * width + depth * block + 10 * width  # patches, blocks, head
    for record in metrics(tmp_path / "run"):
        assert record["flops"] == 3 * 2 * macs * record["images"]
    assert result.result["flops"] == metrics(tmp_path / "run")[-1]["flops"] == 6 * macs * 12 * 32
    html = (tmp_path / "run" / "report.html").read_text()
    assert f"{6e-9 * macs * 12 * 32:.3g} GFLOP of training" in html
    assert f"{100 * result.top1 / (6e-9 * macs * 12 * 32):.3g} % accuracy per GFLOP" in html
    assert "% accuracy per second" in html


def test_a_budget_of_flops_is_a_number_of_steps(tmp_path: Path) -> None:
    one = pretrain(tmp_path / "one", steps=1).result["flops"]
    options: dict[str, Any] = dict(steps=None, flops=9.9 * one)
    assert pretrain(tmp_path / "run", **options).steps == 9
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["steps"] == 9
    assert f"steps 9: --flops {9.9 * one:g}, {one:.4g} for each step of 32 images" in config["decisions"]
    pretrain(tmp_path / "steps", steps=9)
    assert digest(tmp_path / "run") == digest(tmp_path / "steps")
    # At another image size a step costs more.
    larger = pretrain(tmp_path / "larger", image_size=16, **options)
    assert larger.steps == 1
    assert pretrain(tmp_path / "replayed", config=str(tmp_path / "run"), **{**options, "flops": 2 * one}).steps == 2


def test_a_budget_of_flops_is_not_counted_again_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pretrain(tmp_path / "one", steps=1).result["flops"]
    assert pretrain(tmp_path / "run", steps=None, flops=4 * one).steps == 4
    with pytest.raises(VitreousError, match="--extend makes it longer"):
        pretrain(tmp_path / "run", steps=None, flops=6 * one)
    assert pretrain(tmp_path / "run", steps=None, flops=6 * one, extend=True).steps == 6
    # As another version of torch might count them.
    monkeypatch.setattr("vitreous.training.choose_recipe.compute_cost", lambda config: pytest.fail("counted again"))
    assert pretrain(tmp_path / "run", steps=None, flops=6 * one).already


def test_minutes_become_a_number_of_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps tried beforehand leave weights and random state alone: the bytes are those of as many steps by number."""
    monkeypatch.setattr(timing, "SECONDS", 0)  # one step is enough
    asked: dict[str, Any] = dict(steps=None, minutes=0.5, eval_every=None, set=("dropout=0.1",))
    measure = timing.measure_pace
    monkeypatch.setattr(timing, "measure_pace", lambda *given: measure(*given) and Pace(1.2, 0.004, 1))
    result = pretrain(tmp_path / "run", **asked)
    # An evaluation of 200 images takes 0.8 s, so three take a tenth of 30 s.
    assert result.steps == int((30 - 3 * 0.8) / 1.2) == 23
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (settings["recipe"]["steps"], settings["eval_every"]) == (23, 8)
    assert [row["step"] for row in metrics(tmp_path / "run", "validation")] == [8, 16, 23]
    assert (
        "steps 23: --minutes 0.5; a step took 1.2e+03 ms, the median of 1; evaluation takes about 2 s"
        in (tmp_path / "run" / "log.txt").read_text()
    )
    pretrain(tmp_path / "counted", steps=23, eval_every=8, set=("dropout=0.1",))
    assert digest(tmp_path / "run") == digest(tmp_path / "counted")

    monkeypatch.delattr(timing, "measure_pace")  # never measured again
    assert pretrain(tmp_path / "run", **asked).already
    assert pretrain(tmp_path / "replayed", config=str(tmp_path / "run"), **asked).steps == result.steps
    with pytest.raises(NameError):
        pretrain(tmp_path / "other", **{**asked, "minutes": 0.6})


def test_minutes_that_are_too_few_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure_pace", lambda config, world: Pace(2.0, 0.025, 1))
    with pytest.raises(VitreousError, match=r"--minutes 0.1: a step of 32 images takes 2 s here and evaluation 5 s; give more"):
        pretrain(tmp_path / "run", steps=None, minutes=0.1, eval_every=None)
    assert not (tmp_path / "run").exists()


def test_masked_patches_count_the_flops_of_the_same_forward_pass(tmp_path: Path) -> None:
    result = pretrain(tmp_path / "run", objective="masked-patch", subset=None, steps=2)
    cost = vitreous.cost("ViT-Ti/2", image_size=8, classes=0, channels=1, width=32, depth=2, heads=2, mlp=64)
    assert result.result["flops"] == cost.training_flops(2 * 32)


def test_evaluation_of_the_run_counts_every_image_once(tmp_path: Path) -> None:
    pretrain(tmp_path / "a", batch_size=32, steps=1)
    assert metrics(tmp_path / "a", "validation")[0]["n"] == 200


def test_micro_batches_change_rounding_alone(tmp_path: Path) -> None:
    pretrain(tmp_path / "whole")
    pretrain(tmp_path / "parts", micro_batch="5")  # 32 = 6 x 5 + 2
    for one, two in zip(metrics(tmp_path / "whole", "train"), metrics(tmp_path / "parts", "train"), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("backend", "depth", "batch"),
    [
        ("eager", 2, 32),
        # C++ takes a second for each kernel: one layer, and a batch size that divides the 200 images.
        pytest.param(
            *("inductor", 1, 40),
            marks=pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler, and there is none"),
        ),
    ],
)
def test_compiling_changes_rounding_alone(
    backend: str, depth: int, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SMALL, "set", (f"model.depth={depth}", *(word for word in TINY if "depth" not in word)))
    options: dict[str, Any] = dict(steps=4, eval_every=0, batch_size=batch)
    pretrain(tmp_path / "eager", **options)
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_(module, backend=backend))
    pretrain(tmp_path / "compiled", engine="compile", **options)
    for one, two in zip(metrics(tmp_path / "eager"), metrics(tmp_path / "compiled"), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_compiling_without_a_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(VitreousError, match=r"needs a C\+\+ compiler"):
        pretrain(tmp_path / "run", engine="compile")
    assert not (tmp_path / "run").exists()


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    pretrain(tmp_path / "plain", set=("dropout=0.1",))
    pretrain(tmp_path / "recomputed", set=("dropout=0.1",), activation_checkpointing=True)
    assert digest(tmp_path / "plain") == digest(tmp_path / "recomputed")  # dropout too is drawn again as it was


def test_a_loss_that_is_not_finite_stops_and_names_step_and_images(tmp_path: Path) -> None:
    wild = ("lr=1e6", "optimizer=sgd", "warmup=0", "schedule=constant", "clip=none")
    with pytest.raises(VitreousError, match=r"step \d+: the loss is (nan|inf).*batch: \d+, .*state of step \d+ is kept"):
        pretrain(tmp_path / "run", set=wild, save_every=1, steps=50)
    (listed,) = (tmp_path / "run").glob("not-finite-step-*.txt")
    assert len(listed.read_text().splitlines()) == 32
    assert states(tmp_path / "run")
    newest = sorted((tmp_path / "run" / "state").glob("step-*"))[-1]
    for path in newest.glob("*.safetensors"):
        assert all(torch.isfinite(tensor).all() for name, tensor in load_file(path).items() if name.startswith("objective"))


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    # The rate grows, until it undoes what was learnt.
    changes = ("patience=3", "optimizer=sgd", "lr=1", "warmup=100", "clip=1")
    options: dict[str, Any] = dict(steps=400, eval_every=5, set=changes)
    result = pretrain(tmp_path / "run", **options)
    measured = {record["step"]: record["top1"] for record in metrics(tmp_path / "run", "validation")}
    best = max(measured, key=lambda step: (measured[step], -step))
    assert best < result.result["steps"] == best + 15 < 400
    assert result.result["best"] == {"step": best, "top1": measured[best]}
    assert result.result["top1"] == measured[best] > measured[best + 15]
    assert digest(tmp_path / "run") == digest(tmp_path / "run", "checkpoint/best/model.safetensors")
    assert json.loads((tmp_path / "run" / "checkpoint" / "model.json").read_text())["metrics"]["step"] == best
    assert pretrain(tmp_path / "run", **options).already


def test_early_stopping_by_one_split_reports_another(tmp_path: Path) -> None:
    changes = ("patience=2", "optimizer=sgd", "lr=1", "warmup=100", "clip=1", "average=0.5")
    options: dict[str, Any] = dict(steps=400, eval_every=5, set=changes, held_out=0.2, test="test")
    result = pretrain(tmp_path / "run", **options)
    assert result.steps < 400
    assert (result.result["n"], result.result["test"]["n"], result.result["test"]["split"]) == (39, 500, "test")
    clf, digits = vitreous.load(tmp_path / "run"), vitreous.open_data("builtin:digits").splits["test"]
    right = {digits.id(i): int(clf.predict(digits.read(i), top=1).classes[0]) in digits.labels(i) for i in range(len(digits))}
    assert np.mean([*right.values()]) == pytest.approx(result.result["test"]["top1"])
    assert read_outcomes(tmp_path / "run") == right
    assert {record["split"] for record in metrics(tmp_path / "run")} == {"train", "validation"}
    assert "test top1" in result.text()
    assert "on test, which chose nothing: loss" in (tmp_path / "run" / "report.html").read_text()
    # What is read once, at the end, has no part in training.
    pretrain(tmp_path / "untested", **{**options, "test": None})
    assert digest(tmp_path / "run") == digest(tmp_path / "untested")


@pytest.mark.parametrize("average", ["0", "0.9"])
def test_kept_checkpoints_are_what_a_run_of_that_length_would_give(average: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(set=("schedule=constant", "warmup=0", f"average={average}"))
    pretrain(tmp_path / "run", keep_every=5, **options)
    pretrain(tmp_path / "short", steps=5, **options)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoint").glob("step-*"))
    assert kept == ["step-000005", "step-000010"]
    assert digest(tmp_path / "run", "checkpoint/step-000005/model.safetensors") == digest(tmp_path / "short")
    clf = vitreous.load(tmp_path / "run" / "checkpoint" / "step-000005")
    assert clf.classes == tuple("0123456789")
    pretrain(tmp_path / "plain", **options)
    assert digest(tmp_path / "run") == digest(tmp_path / "plain")
    assert json.loads((tmp_path / "run" / "checkpoint" / "model.json").read_text())["metrics"]["step"] == 12


def test_among_equal_accuracies_the_lower_loss_is_better(tmp_path: Path) -> None:
    """All are taken for cats, as most are, at every evaluation; and yet training goes on."""
    for name, split, count in (("cat", "train", 12), ("dog", "train", 1), ("cat", "val", 4), ("dog", "val", 1)):
        for number in range(count):
            path = tmp_path / "photos" / split / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    rows = ["path,label,split"]
    for path in sorted((tmp_path / "photos").rglob("*.png")):
        rows.append(f"{path},{path.parent.name},{path.parent.parent.name}")
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    options: dict[str, Any] = dict(data=str(tmp_path / "list.csv"), subset=None, batch_size=13, steps=12, eval_every=2)
    result = pretrain(tmp_path / "run", **options, set=("patience=2", "class_weights=none", "lr=1e-3"))
    measured = metrics(tmp_path / "run", "validation")
    assert {record["top1"] for record in measured} == {0.8}
    assert [record["loss"] for record in measured] == sorted((record["loss"] for record in measured), reverse=True)
    assert result.steps == result.result["best"]["step"] == 12


def test_images_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    """They would count among the images of a step and teach nothing: losses and accuracies came out too low."""
    digits = vitreous.open_data("builtin:digits").source("train")
    rows = []
    for index in range(300):
        Image.fromarray(digits.read(index)).save(tmp_path / f"{index}.png")
        label = {"label": str(digits.labels(index)[0])} if index % 2 or index >= 200 else {}
        rows.append(json.dumps({"path": f"{index}.png", "split": "train" if index < 200 else "val", **label}))
    (tmp_path / "half.jsonl").write_text("\n".join(rows))
    changes = ("lr=1e-9", "smoothing=0", "class_weights=none")
    pretrain(tmp_path / "run", data=str(tmp_path / "half.jsonl"), subset=None, batch_size=20, steps=2, set=changes)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"]["train"] == 100
    assert "left out 100 of 200 training images, which have no label" in config["decisions"]
    classes = config["data"]["classes"]
    assert metrics(tmp_path / "run", "train")[0]["loss"] == pytest.approx(math.log(classes), rel=1e-3)  # of a head of zeros


def test_shards_of_images_with_several_labels_get_the_sigmoid_loss(tmp_path: Path) -> None:
    rows = []
    for number in range(24):
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(tmp_path / f"{number}.png")
        split = "train" if number < 16 else "val"
        rows.append(json.dumps({"path": f"{number}.png", "label": ["red", f"group{number % 2}"], "split": split}))
    (tmp_path / "two.jsonl").write_text("\n".join(rows))
    with silence():
        vitreous.shard(str(tmp_path / "two.jsonl"), str(tmp_path / "shards"))
    pretrain(tmp_path / "run", data=str(tmp_path / "shards"), subset=None, batch_size=4, steps=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]["loss"] == "sigmoid"


def test_held_out_images_are_not_weighted_by_the_training_set(tmp_path: Path) -> None:
    for split, numbers in (("train", {"cat": 12, "dog": 2}), ("val", {"cat": 3, "dog": 3})):
        for name, count in numbers.items():
            for number in range(count):
                path = tmp_path / "photos" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    options: dict[str, Any] = dict(data=str(tmp_path / "photos"), subset=None, batch_size=4, steps=1)
    result = pretrain(tmp_path / "run", **options, set=("lr=1e-9", "class_weights=balanced", "smoothing=0"))
    assert result.loss == pytest.approx(math.log(2), rel=1e-4)  # a head of zeros, whoever is weighted how


def test_a_run_that_met_a_bad_image_goes_on_without_it(tmp_path: Path) -> None:
    """Its header is sound, so that only training finds it."""
    _photos(tmp_path / "photos", bad=0)
    for number in range(12):  # whichever are held out
        whole = (tmp_path / "photos" / "dog" / f"{number}.png").read_bytes()
        if number % 2:
            (tmp_path / "photos" / "dog" / f"{number}.png").write_bytes(whole[: len(whole) // 2])
    options: dict[str, Any] = dict(data=str(tmp_path / "photos"), model="ViT-Ti/8", image_size=16, batch_size=2, subset=None)
    options |= dict(steps=12, save_every=1, eval_every=0)
    with pytest.raises(VitreousError, match=r"dog/\d+.png: .*--bad-images skip"):
        pretrain(tmp_path / "run", **options)
    assert pretrain(tmp_path / "run", **options, bad_images="skip").steps == 12
    assert "dog" in (tmp_path / "run" / "bad_images.jsonl").read_text()


@pytest.mark.parametrize(
    "spelling",
    [
        dict(image_size=16),
        dict(image_size=[16, 16]),
        dict(set={"lr": 0.01, "model.depth": 1}),
        dict(set="lr=0.01,model.depth=1"),
        dict(epochs=1, steps=None),
    ],
)
def test_python_may_say_it_as_python_does(spelling: dict[str, Any], tmp_path: Path) -> None:
    common: dict[str, Any] = dict(data=Path("builtin:digits"), steps=1, subset=40, workers=0, precision="float32")
    common |= dict(batch_size=20, set=("model.depth=1",))
    with silence():
        found = vitreous.pretrain(model="ViT-Ti/4", out=tmp_path / "run", **{**common, **spelling})  # type: ignore[arg-type]
    assert found.steps == (2 if "epochs" in spelling else 1)


def test_subsets_are_fixed_and_nested(tmp_path: Path) -> None:
    from vitreous.data.splits import random_subset, subset_per_class

    train = vitreous.open_data("builtin:digits").splits["train"]
    small, large = (random_subset(train, count, 3) for count in (50, 300))
    ids = [{part.id(i) for i in range(len(part))} for part in (small, large)]
    assert ids[0] < ids[1]
    few = subset_per_class(train, 7, 0)
    assert few.counts().tolist() == [7] * 10


def test_evaluation_sees_pixel_values_like_training(tmp_path: Path) -> None:
    pretrain(tmp_path / "run", preprocess="resize(8)|normalise(0.5,0.25)", steps=1)
    assert str(vitreous.load(tmp_path / "run").preprocess).endswith("normalise(0.5,0.25)")
    with pytest.raises(VitreousError, match="different pixel values"):
        pretrain(tmp_path / "b", preprocess="resize(8)|normalise(0.5,0.25)", set=("evaluation=resize(8)|range(-1,1)",))
    with pytest.raises(VitreousError, match="different pixel values"):
        pretrain(tmp_path / "b", set=("evaluation=resize(8)|range(0,1)",))


# Fine-tuning -----------------------------------------------------------------------------------------------------------


def test_fine_tuning_begins_with_the_weights_and_a_zero_head(start: Path, tmp_path: Path) -> None:
    finetune(tmp_path / "run", from_=str(start), set=("lr=0", "train=all", "head_start=zero"), steps=1)
    before, after = (load_file(run / "checkpoint" / "model.safetensors") for run in (start, tmp_path / "run"))
    assert not [name for name in after if name.startswith("representation")]  # dropped, as in section 3.2
    assert torch.equal(after["head.weight"], torch.zeros(10, 32))
    for name in after:
        if not name.startswith("head"):
            assert torch.equal(after[name], before[name]), name
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["from"]["source"] == str(start)
    document = json.loads((tmp_path / "run" / "checkpoint" / "model.json").read_text())
    assert document["parent"]["source"] == str(start)
    assert "frozen features with a linear classifier get" in (tmp_path / "run" / "log.txt").read_text()


def test_fine_tuning_at_a_higher_resolution_resizes_positions(start: Path, tmp_path: Path) -> None:
    finetune(tmp_path / "run", from_=str(start), image_size=(12, 16), steps=2)
    clf = vitreous.load(tmp_path / "run")
    assert clf.config.grid == (6, 8)
    assert clf.preprocess.size == (12, 16)


def test_a_linear_probe_changes_the_head_alone(start: Path, tmp_path: Path) -> None:
    finetune(tmp_path / "run", from_=str(start), set=("train=head", "lr=0.1"))
    before, after = (load_file(run / "checkpoint" / "model.safetensors") for run in (start, tmp_path / "run"))
    changed = {name for name in after if name not in before or not torch.equal(after[name], before[name])}
    assert changed == {"head.weight", "head.bias"}


def test_a_linear_probe_has_a_recipe_of_its_own_and_comes_close_to_the_closed_form(start: Path, tmp_path: Path) -> None:
    """The same features, fitted by an independent method."""
    probe = finetune(tmp_path / "probe", from_=str(start), train="head", steps=None, batch_size=None)
    config = json.loads((tmp_path / "probe" / "config.json").read_text())
    recipe = config["recipe"]
    assert (recipe["name"], recipe["train"], recipe["optimizer"]) == ("linear-probe", "head", "adam")
    assert recipe["preprocess"] == recipe["evaluation"] == str(vitreous.load(start).preprocess)
    clf, digits = vitreous.load(tmp_path / "probe"), vitreous.open_data("builtin:digits").splits
    parts = [digits[split] for split in ("train", "validation")]
    train, test = (clf.features([part.read(i) for i in range(len(part))]) for part in parts)  # without the tanh layer, as here
    ridge = Ridge(train, [part.labels(i) for part in parts[:1] for i in range(len(part))], 10)
    right = [int(name) in parts[1].labels(i) for i, name in enumerate(ridge.classify(test, ridge.choose()))]
    assert probe.top1 is not None
    assert probe.top1 > np.mean(right) - 0.12
    listed = {row["name"]: row for row in vitreous.list("recipes").records()}
    assert listed["linear-probe"]["train"] == "head"
    with pytest.raises(VitreousError, match="--train head: a model from scratch has only random features"), silence():
        vitreous.finetune("builtin:digits", from_="scratch", model="ViT-Ti/2", train="head", out=str(tmp_path / "none"))
    with pytest.raises(VitreousError, match="--train and --set train=all both give train"), silence():
        vitreous.finetune("builtin:digits", from_=str(start), set=("train=all",), train="head", out=str(tmp_path / "none"))


def test_masked_patches_then_fine_tuning(tmp_path: Path) -> None:
    result = pretrain(tmp_path / "masked", objective="masked-patch", steps=20)
    assert "top1" in result.result
    assert all("top1" in record for record in metrics(tmp_path / "masked"))  # also where nothing was right
    assert result.text().endswith("report.html has the curves")
    losses = [record["loss"] for record in metrics(tmp_path / "masked", "validation")]
    assert losses[-1] < losses[0]
    assert vitreous.load(tmp_path / "masked").config.classes == 0
    tuned = finetune(tmp_path / "tuned", from_=str(tmp_path / "masked"), set=("lr=0.01",))
    assert tuned.result["n"] == 200
    assert not vitreous.load(tmp_path / "tuned").config.mask_token


def test_a_sweep_tries_rates_on_held_out_images_then_trains_on_all(start: Path, tmp_path: Path) -> None:
    changes = ("sweep=1e-6:0.05", "sweep_share=0.2", "head_start=zero")
    result = finetune(tmp_path / "run", from_=str(start), sweep=True, set=changes, steps=12)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["lr"] == 0.05
    assert config["data"]["train"] == 1097  # all of them
    trial = json.loads((tmp_path / "run" / "sweep" / "lr-0.05" / "config.json").read_text())
    assert trial["data"]["train"] + trial["data"]["held_out"] == 1097
    assert trial["data"]["held_out_split"] == "validation"
    assert any("the best of the sweep" in line for line in config["decisions"])
    again = finetune(tmp_path / "run", from_=str(start), sweep=True, set=changes, steps=12)
    assert again.already
    assert again.result == result.result


# Bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(set=("lrr=1",)), "unknown recipe field 'lrr'; did you mean 'lr'"),
        (dict(set=("model.widht=64",)), "widht"),
        (dict(set=("lr=fast",)), "--set lr='fast' must be a finite number"),
        (dict(recipe="imagenet-ViT-B/17"), "unknown recipe"),
        (dict(steps=5, epochs=2.0), "contradict each other"),
        (dict(minutes=1.0), "--steps 12 and --minutes 1 contradict each other; give one of them"),
        (dict(minutes=1.0, steps=None, sweep=True), "--sweep and --minutes 1: trials must be of the run's length"),
        (dict(flops=1e9), "--steps 12 and --flops 1e+09 contradict each other; give one of them"),
        (dict(flops=1e9, steps=None, epochs=2.0), "--epochs 2 and --flops 1e+09 contradict each other"),
        (dict(flops=1e9, steps=None, set=("steps=3",)), "--flops 1e+09 and --set steps=3 contradict each other"),
        (
            dict(flops=1e6, steps=None),
            "--flops 1e+06: one step of 32 images takes 6.1e+07; give more, or a smaller --batch-size",
        ),
        (dict(flops=0, steps=None), "--flops 0"),
        (dict(steps=0), "--steps 0: must be at least 1"),
        (dict(device="cuda:99"), "cuda:99"),
        (dict(micro_batch="many"), "--micro-batch many"),
        (dict(subset=5000), "--subset 5000: there are only 1,097"),
        (dict(subset=5, per_class=2), "give one of them"),
        (dict(track="tensorbord"), "did you mean 'tensorboard'"),
        (dict(preprocess="resize(9)|range(-1,1)"), "image height 9 is not a multiple"),
        (dict(preprocess="resize(8)|range(-1,1)", image_size=(16, 16)), "change the string or --image-size"),
        (
            dict(objective="classification", recipe="jft-masked-patch"),
            "not for --objective classification",
        ),
        (dict(objective="masked-patch", recipe="imagenet-ViT-S/16"), "is for classification, not for --objective masked-patch"),
        (dict(config="nowhere.json"), "nowhere.json"),
        (dict(data="builtin:digit"), "did you mean"),
        (dict(held_out=1.5), "--held-out 1.5"),
        (dict(test="validation"), "--test validation: a result is tested on images that it neither learns from nor"),
        (dict(test="train"), "--test train: a result is tested on images that it neither learns from nor"),
        (dict(test="tset"), "there is no split 'tset'; it has train, validation, test"),
        (dict(seed=-1), "--seed -1"),
        (dict(epochs=math.inf, steps=None), "--epochs inf"),
        (dict(workers=-3), "--workers -3"),
        (dict(micro_batch="²"), "--micro-batch ²"),
        (dict(set=("model.classes=4",)), "--set model.classes=4"),
        (dict(set=("model.pool=a,b",)), "pool"),
        (dict(shard_group=2), "--shard-group 2 is for --parallel hybrid"),
        (dict(shard_group=2, micro_batch="8"), "--shard-group 2 is for --parallel hybrid"),
        (dict(engine="compiled"), "--engine 'compiled': must be one of torch, eager, compile; did you mean 'compile'"),
        (dict(steps="2"), "--steps '2': must be a whole number"),
        (dict(extend="no"), "--extend 'no': must be true or false"),
        (dict(seed=1.5), "--seed 1.5: must be a whole number"),
        (dict(set=("steps=4",)), "--steps and --set steps=4 both give steps"),
    ],
)
def test_a_wrong_option_is_one_clear_line_and_leaves_nothing(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError) as error:
        pretrain(tmp_path / "run", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_set_steps_and_epochs_are_the_options(tmp_path: Path) -> None:
    """Whatever a recipe is counted in: table 4's batch of 512 does not shrink because somebody counts in epochs."""
    found = []
    for name, options in (("a", dict(epochs=2.0, set=())), ("b", dict(set=("epochs=2",)))):
        common: dict[str, Any] = dict(steps=None, subset=None, batch_size=None, recipe="finetune-cifar10", image_size=(8, 8))
        pretrain(tmp_path / name, **common, **options)
        config = json.loads((tmp_path / name / "config.json").read_text())
        found.append({key: config["recipe"][key] for key in ("steps", "epochs", "batch_size", "lr", "warmup")})
    assert found[0] == found[1]
    assert found[0]["batch_size"] == 512
    assert found[0]["steps"] == round(2 * 1097 / 512)


def _photos(folder: Path, bad: int) -> None:
    for name in ("cat", "dog"):
        for number in range(12):
            path = folder / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).integers(0, 255, (24, 30, 3), np.uint8)
            Image.fromarray(noise).save(path)
    for number in range(bad):
        (folder / "cat" / f"broken{number}.png").write_bytes(b"not an image")


def test_bad_images_stop_or_are_left_out(tmp_path: Path) -> None:
    _photos(tmp_path / "photos", bad=2)
    options = dict(data=str(tmp_path / "photos"), model="ViT-Ti/8", image_size=(16, 16), batch_size=4, steps=3, subset=None)
    with pytest.raises(VitreousError, match=r"2 images cannot be read, the first: .*broken.*--bad-images skip"):
        pretrain(tmp_path / "run", **options)
    pretrain(tmp_path / "run", **options, bad_images="skip")
    listed = [json.loads(line) for line in (tmp_path / "run" / "bad_images.jsonl").read_text().splitlines()]
    assert len(listed) == 2
    assert "broken" in listed[0]["path"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"]["train"] + config["data"]["held_out"] == 24


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        _photos(tmp_path / "photos" / split, bad=0)
    with silence():
        vitreous.shard(str(tmp_path / "photos"), str(tmp_path / "shards"), shard_size="8KB")
    broken = sorted((tmp_path / "shards").glob("train-*.tar"))[1]
    os.truncate(broken, 3000)
    options = dict(data=str(tmp_path / "shards"), model="ViT-Ti/8", image_size=(16, 16), batch_size=4, steps=8, subset=None)
    with pytest.raises(VitreousError, match=broken.name):
        pretrain(tmp_path / "stops", **options)
    pretrain(tmp_path / "run", **options, bad_images="skip")
    lines = [line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if broken.name in line]
    assert len(lines) == 1
    assert "passed over" in lines[0]


def test_bfloat16_keeps_loss_and_norms_in_float32(tmp_path: Path) -> None:
    """In a process of its own: where bfloat16 would crash, the limit must be set before the first operation."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from pathlib import Path
from torch import nn
from runs import pretrain
kinds = set()
plain = nn.LayerNorm.forward
nn.LayerNorm.forward = lambda self, x: (kinds.add(x.dtype), plain(self, x))[1]
pretrain(Path({str(tmp_path / "run")!r}), precision="bfloat16", steps=3, eval_every=0)
assert kinds == {{torch.float32}}, kinds
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(math.isfinite(record["loss"]) for record in metrics(tmp_path / "run"))
    tensors = load_file(tmp_path / "run" / "checkpoint" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_pictures_without_classes_are_for_masked_patches(tmp_path: Path) -> None:
    for number in range(9):
        path = tmp_path / "flat" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    options = dict(data=str(tmp_path / "flat"), batch_size=4, steps=2, subset=None)
    with pytest.raises(VitreousError, match="has no labels to learn; use class folders, or --objective masked-patch"):
        pretrain(tmp_path / "run", **options)
    pretrain(tmp_path / "run", **options, objective="masked-patch")


def test_what_is_refused_leaves_the_folder_free(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(set=("model.width=32",), steps=1, batch_size=8, workers=0, activation_checkpointing=True)
    with silence(), pytest.raises(VitreousError, match=r"activation.checkpointing"):
        vitreous.pretrain("builtin:digits", "R26x1", out=str(tmp_path / "run"), precision="float32", **options)
    assert not (tmp_path / "run").exists()


def test_set_may_be_given_twice(tmp_path: Path) -> None:
    from vitreous.cli import main

    words = [
        "pretrain",
        "builtin:digits",
        "--model",
        "ViT-Ti/2",
        "--set",
        ",".join(TINY),
        "--steps",
        "2",
        "--batch-size",
        "16",
        "--quiet",
    ]
    words += [
        "--set",
        "lr=0.004",
        "--workers",
        "0",
        "--eval-every",
        "0",
        "--precision",
        "float32",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["model"]["width"], config["recipe"]["lr"]) == (32, 0.004)


def test_the_command_line_trains_reports_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitreous.cli import main

    words = ["pretrain", "builtin:digits", "--model", "ViT-Ti/2", "--set", ",".join(TINY), "--steps", "4", "--batch-size", "16"]
    words += ["--workers", "0", "--eval-every", "0", "--precision", "float32", "--out", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 4
    assert "batch_size" in err  # decisions, with their reasons
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*words, "--seed", "3"]) == 2
    assert "seed: 0 there, 3 now" in capsys.readouterr().err
