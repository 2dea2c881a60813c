"""What is typed: seeds that are told apart, checks before anything is opened, results that stay out of the data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import TINY, pretrain

import vitreous
from vitreous.commands.training_run import Run
from vitreous.core.errors import VitreousError
from vitreous.core.progress import silence
from vitreous.training import data_split as training_images
from vitreous.training.build_options import build_options
from vitreous.training.data_split import choose_images
from vitreous.training.run_folder import read_config


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, no split."""
    folder = tmp_path_factory.mktemp("photos")
    for label in ("dark", "light"):
        (folder / label).mkdir()
        for number in range(20):
            pixels = np.full((8, 8, 3), 40 + 5 * number + 90 * (label == "light"), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def held_out(data: Path, **options: Any) -> tuple[set[str], set[str]]:
    asked, _ = build_options("pretrain", {"data": str(data), "out": "run", "model": "ViT-Ti/2", "workers": 0, **options})
    with silence():
        found = choose_images(asked, stop_early=False)
    train, judges = found.train, found.held_out
    return {train.id(i) for i in range(len(train))}, {judges.id(i) for i in range(len(judges))}  # type: ignore[union-attr,arg-type]


def test_other_seeds_keep_the_split_and_the_subset(photos: Path) -> None:
    """Pre-training with seed 0 and fine-tuning with seed 1 must not evaluate on images that were trained on."""
    train, judges = held_out(photos)
    assert judges
    assert not train & judges
    assert held_out(photos, seed=1) == (train, judges)
    assert held_out(photos, data_seed=1)[1] != judges
    fewer = held_out(photos, subset=12)
    assert held_out(photos, subset=12, seed=1) == fewer != held_out(photos, subset=12, data_seed=1)


def test_the_data_seed_is_recorded_and_replayed(photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(data=str(photos), steps=1, subset=None, batch_size=4, data_seed=3, eval_every=0)
    result = pretrain(tmp_path / "run", seed=1, **options).result
    assert result["majority"] == 0.5
    assert "(the largest class alone: 50.0%)" in (tmp_path / "run" / "log.txt").read_text()
    config = read_config(tmp_path / "run" / "config.json").settings
    assert (config["seed"], config["data_seed"], result["seed"], result["data_seed"]) == (1, 3, 1, 3)
    asked, _ = build_options("pretrain", {"config": str(tmp_path / "run"), "out": str(tmp_path / "again")})
    assert (asked.seed, asked.data_seed) == (1, 3)
    with pytest.raises(VitreousError, match="--data-seed -1: must be at least 0"):
        build_options("pretrain", {"data": str(photos), "out": "run", "data_seed": -1})


def test_a_run_of_an_older_version_gets_one_clear_line(tmp_path: Path) -> None:
    old = tmp_path / "run"
    old.mkdir()
    (old / "config.json").write_text('{"verb": "pretrain", "arguments": {}, "recipe": {}, "data": {}, "model": {}}')
    for options in ({"out": str(old)}, {"out": str(tmp_path / "new"), "config": str(old)}):
        with pytest.raises(VitreousError) as error:
            build_options("pretrain", {"data": "builtin:digits", **options})
        assert "is a config of version 1, and this program reads version 2; finish the run with the program" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("top1", "warned"), [(0.217, True), (0.238, True), (0.3, False)])
def test_the_majority_class_stands_beside_the_result(top1: float, warned: bool) -> None:
    text = Run("runs/pets", {"steps": 1, "seconds": 1.0, "top1": top1, "majority": 0.238, "best": {"top1": top1}}, False).text()
    assert "23.80%" in text
    assert ("no better than always predicting the largest class" in text) == warned


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("pretrain", dict(model="ViT-B16"), "unknown model 'ViT-B16'"),
        ("pretrain", dict(model="ViT-Ti/2", set=("model.widht=64",)), "widht"),
        ("pretrain", dict(model="ViT-Ti/2", set=("model.width=64",)), "64"),
        ("pretrain", dict(model="ViT-B/16", image_size=100), "100 is not a multiple"),
        ("pretrain", dict(model="ViT-B/16", set=("lrr=1",)), "unknown recipe field 'lrr'"),
        ("pretrain", dict(model="ViT-B/16", set=("lr=-1",)), "--set lr=-1.0 must lie between"),
        ("pretrain", dict(model="ViT-B/16", set=("schedule=cosin",)), "did you mean 'cosine'"),
        ("pretrain", dict(recipe="imagenet-ViT-B/17"), "unknown recipe"),
        ("pretrain", dict(preprocess="resize(224)|flipp"), "flipp"),
        ("pretrain", dict(set=("evaluation=resize(224)|flipp",)), "flipp"),
        ("pretrain", dict(track="tensorbord"), "did you mean 'tensorboard'"),
        ("pretrain", dict(device="cuda:99"), "cuda:99"),
        ("pretrain", dict(micro_batch="many"), "--micro-batch many"),
        ("finetune", dict(from_="ViT-B/16@imagenet21"), "ViT-B/16@imagenet21"),
        ("finetune", dict(from_="./nowhere.npz"), "nowhere.npz: no such file"),
        ("finetune", dict(), "say what to train"),
        ("finetune", dict(from_="a.npz", model="ViT-B/16"), "give one of them"),
    ],
)
def test_what_is_typed_is_checked_before_anything_is_opened(
    verb: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_images, "open_data", lambda *_, **__: pytest.fail("the data was opened"))
    with pytest.raises(VitreousError) as error, silence():
        getattr(vitreous, verb)("builtin:digits", out=str(tmp_path / "run"), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["ViT-H/14", "ViT-Ti/5", "R50+ViT-B/16", "R+ViT-Ti/16", "R50x1", "ViT-B/15"])
def test_a_name_is_not_refused_for_a_size_that_is_not_known_yet(name: str) -> None:
    assert build_options("pretrain", {"data": "photos", "out": "run", "model": name})[0].model == name


def test_results_inside_the_data_are_refused(photos: Path, tmp_path: Path) -> None:
    inside = str(photos / "run")
    for act in (
        lambda: vitreous.pretrain(str(photos), model="ViT-Ti/2", out=inside),
        lambda: vitreous.pretrain(f"{photos}:train", model="ViT-Ti/2", out=inside),
        lambda: vitreous.finetune(f"pets@{photos}", from_="scratch", model="ViT-Ti/2", out=inside),
        lambda: vitreous.shard(str(photos), inside),
        lambda: vitreous.doctor(str(photos), out=inside),
        lambda: vitreous.evaluate("ViT-B/16@imagenet21k", str(photos), out=inside),
        lambda: vitreous.fewshot("ViT-B/16@imagenet21k", str(photos), out=inside),
        lambda: vitreous.vtab("ViT-B/16@imagenet21k", str(photos), out=inside),
    ):
        with pytest.raises(VitreousError, match="lies inside the data; choose a folder elsewhere"), silence():
            act()
    assert not Path(inside).exists()
    shutil.copytree(photos, tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(VitreousError, match="inside the data"), silence():
        pretrain(tmp_path / "link" / "run", data=str(tmp_path / "data"), set=TINY[:0])
