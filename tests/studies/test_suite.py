"""Suites: what is read from TOML, which images a task gets, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitreous.core.errors import VitreousError
from vitreous.data.datasets.vtab_tasks import TASKS
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.studies.suite import Protocol, Task, parse_suite, read_suite, resolve_data
from vitreous.studies.suite_cells import evaluation_preprocess, training_preprocess
from vitreous.studies.suite_data import final_parts, sweep_parts
from vitreous.studies.vtab import vtab_suite
from vitreous.training.data_split import choose_images
from vitreous.training.options import TrainOptions

from conftest import random_checkpoint

TASK = '[[task]]\nname = "digits"\ndata = "builtin:digits"\n'


def parse(text: str, base: Path = Path("/base")) -> object:
    return parse_suite(text, "my.toml", base)


def test_defaults_are_the_papers() -> None:
    suite = parse_suite('name = "mine"\n' + TASK, "my.toml", Path())
    made = suite.protocol
    assert (made.steps, made.lr, made.batch_size, made.image_size, made.warmup) == (2500, 0.01, 512, (384, 384), 200)
    assert (made.seeds, made.examples) == (3, 1000)
    assert made.lengths() == (500, 2500)
    assert made.rates() == (0.003, 0.01)
    assert suite.tasks == (Task("digits", "builtin:digits"),)
    assert suite.tasks[0].crop
    assert suite.tasks[0].flip


def test_other_lengths_and_batches_take_warmup_and_rate_along() -> None:
    assert Protocol().at(steps=100) == Protocol(steps=100, warmup=10)
    assert Protocol().at(batch_size=64) == Protocol(batch_size=64, lr=0.00125)
    assert Protocol().at(batch_size=64, lr=0.01) == Protocol(batch_size=64)
    assert Protocol(sweep_steps=(10, 20)).at(steps=100).lengths() == (20, 100)
    assert Protocol().at(seeds=None) == Protocol()


def test_everything_that_can_be_said() -> None:
    suite = parse_suite(
        """
        name = "mine"
        [protocol]
        steps = 60
        lr = 1
        batch_size = 32
        image_size = [24, 32]
        warmup = 5
        seeds = 2
        examples = 50
        sweep_lr = [0.1, 1]
        sweep_steps = [30]
        [[task]]
        name = "one"
        title = "The one"
        group = "g"
        data = "photos"
        crop = false
        flip = false
        examples = 20
        [[task]]
        name = "two"
        data = "builtin:digits"
        """,
        "my.toml",
        Path("/base"),
    )
    assert suite.protocol == Protocol(60, 1.0, 32, (24, 32), 5, 2, 50, (0.1, 1.0), (30,))
    assert suite.tasks[0].group == "g"
    assert (suite.tasks[0].crop, suite.tasks[0].flip, suite.tasks[0].examples) == (False, False, 20)
    assert suite.groups == ("g", "all")
    assert suite.only(["two"]).of == 2
    assert len(suite.only(["two"]).tasks) == 1
    with pytest.raises(VitreousError, match="task of suite mine 'tow'; did you mean 'two'"):
        suite.only(["tow"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "my.toml: is no valid TOML"),
        (TASK, "needs a name"),
        ('name = "m"', "has no tasks"),
        ('name = "m"\ntask = 3', "has no tasks"),
        ('name = "m"\nprotcol = 1\n' + TASK, "'protcol'; did you mean 'protocol'"),
        ('name = "m"\nprotocol = 1\n' + TASK, "must be a table"),
        ('name = "m"\n[protocol]\nstep = 3\n' + TASK, r"\[protocol\] 'step'; did you mean 'steps'"),
        ('name = "m"\n[protocol]\nsteps = "3"\n' + TASK, "steps = '3' must be a whole number"),
        ('name = "m"\n[protocol]\nsteps = true\n' + TASK, "steps = True must be a whole number"),
        ('name = "m"\n[protocol]\nsteps = 0\n' + TASK, "steps = 0 must be at least 1"),
        ('name = "m"\n[protocol]\nlr = -1.0\n' + TASK, "lr = .* must (lie between|be a finite number)"),
        ('name = "m"\n[protocol]\nlr = nan\n' + TASK, "lr = .* must (lie between|be a finite number)"),
        ('name = "m"\n[protocol]\nbatch_size = 0\n' + TASK, "batch_size = 0"),
        ('name = "m"\n[protocol]\nimage_size = [1, 2, 3]\n' + TASK, "image_size"),
        ('name = "m"\n[protocol]\nimage_size = 0\n' + TASK, "at least 1"),
        ('name = "m"\n[protocol]\nwarmup = 2500\n' + TASK, "below the 2,500 steps"),
        ('name = "m"\n[protocol]\nsweep_lr = 3\n' + TASK, "finite numbers"),
        ('name = "m"\n[protocol]\nsweep_steps = [1.5]\n' + TASK, "whole numbers"),
        ('name = "m"\n' + TASK + "filp = false", "'filp'; did you mean 'flip'"),
        ('name = "m"\n' + TASK + 'flip = "no"', "true or false"),
        ('name = "m"\n' + TASK + "examples = 0", "at least 1"),
        ('name = "m"\n' + TASK + TASK.replace("digits", "Digits", 1), "two tasks are called"),
        ('name = "m"\n[[task]]\nname = "a/b"\ndata = "x"', "needs a name of letters"),
        ('name = "m"\n[[task]]\nname = "../a"\ndata = "x"', "needs a name of letters"),
        ('name = "m"\n[[task]]\nname = "a"', "needs data"),
    ],
)
def test_mistakes_in_a_suite_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(VitreousError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert "my.toml" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="no such file, and no suite of that name; there is small"):
        read_suite("smal")
    with pytest.raises(VitreousError, match="cannot be read"):
        read_suite(str(tmp_path / "none.toml"))
    with pytest.raises(VitreousError, match="cannot be read"):
        read_suite(str(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(VitreousError, match="cannot be read"):
        read_suite(str(tmp_path / "latin.toml"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for text in ("photos", "photos/", "deep/photos", "list.csv", "shards/train-{00..09}.tar"):
        assert resolve_data(text, tmp_path) == str(tmp_path / text)
    assert resolve_data("cifar10@there", tmp_path) == f"cifar10@{tmp_path}/there"
    assert resolve_data("vtab:pets@../v", tmp_path) == f"vtab:pets@{tmp_path}/../v"
    for text in ("builtin:digits", "hf:owner/name", "s3://bucket/a.tar", "cifar10", "/data/photos"):
        assert resolve_data(text, tmp_path) == text


def test_the_small_suite_is_four_tasks_that_open() -> None:
    suite = read_suite("small")
    assert [task.name for task in suite.tasks] == ["digits", "count", "position", "orientation"]
    for task in suite.tasks:
        parts = final_parts(task, suite.protocol)
        assert isinstance(parts.train, Source)
        assert len(parts.train) == 1000
        assert parts.test.split == "test"


# Which images ----------------------------------------------------------------------------------------------------------


def ids(source: object) -> list[str]:
    assert isinstance(source, Source)
    return [source.id(index) for index in range(len(source))]


def test_the_examples_are_drawn_from_train_and_the_rest_is_as_it_was() -> None:
    task, digits = Task("digits", "builtin:digits", examples=100), open_data("builtin:digits")
    parts, again = final_parts(task, Protocol()), final_parts(task, Protocol())
    assert ids(parts.train) == ids(again.train)
    assert len(set(ids(parts.train))) == 100
    assert set(ids(parts.train)) <= set(ids(digits.source("train")))
    assert ids(parts.test) == ids(digits.source("test"))
    assert parts.fingerprint() == again.fingerprint()
    assert parts.fingerprint() != final_parts(Task("digits", "builtin:digits", examples=101), Protocol()).fingerprint()


def test_a_sweep_divides_the_examples_four_to_one_and_never_sees_a_test_image() -> None:
    task = Task("digits", "builtin:digits", examples=100)
    final, sweep = final_parts(task, Protocol()), sweep_parts(task, Protocol())
    assert (len(ids(sweep.train)), len(ids(sweep.test))) == (80, 20)
    assert sorted([*ids(sweep.train), *ids(sweep.test)]) == sorted(ids(final.train))
    assert sweep.test.split == "validation"
    assert not set(ids(final.test)) & {*ids(sweep.train), *ids(sweep.test)}


def test_too_few_images_are_said_or_refused() -> None:
    parts = final_parts(Task("digits", "builtin:digits"), Protocol(examples=5000))
    assert isinstance(parts.train, Source)
    assert len(parts.train) == 1097
    assert "all 1,097 images, fewer than the suite's 5,000" in parts.notes[-1]
    with pytest.raises(VitreousError, match="task digits: examples = 5,000, but builtin:digits has only 1,097"):
        final_parts(Task("digits", "builtin:digits", examples=5000), Protocol())
    few = final_parts(Task("digits", "builtin:digits", examples=3), Protocol())
    assert "no example of" in few.notes[-1]


def photographs(folder: Path, counts: dict[str, int]) -> Path:
    from PIL import Image

    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((8, 8, 3), number * 7, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_a_folder_without_a_test_split_holds_a_fifth_out(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "photos", {"a": 10, "b": 20})
    parts = final_parts(Task("photos", str(folder)), Protocol(examples=10))
    assert isinstance(parts.test, Source)
    assert np.bincount(parts.test.targets()).tolist() == [2, 4]
    assert not set(ids(parts.test)) & set(ids(parts.train))
    assert any("no test split" in note for note in parts.notes)
    asked = TrainOptions("finetune", data=parts.where, out="x", workers=0)
    images = choose_images(asked, stop_early=False, dataset=parts.dataset())
    assert (images.train, images.held_out) == (parts.train, parts.test), "a run takes these and opens nothing anew"
    broken = Path(parts.test.path(0) or "")
    broken.write_bytes(b"no image")
    with pytest.raises(VitreousError, match="1 images cannot be read"):  # every model is to be evaluated on the same images
        choose_images(asked, stop_early=False, dataset=parts.dataset())


def test_data_that_no_task_can_be_made_of(tmp_path: Path) -> None:
    photographs(tmp_path / "hollow" / "train", {"a": 9, "b": 9})
    (tmp_path / "hollow" / "test" / "a").mkdir(parents=True)
    with pytest.raises(VitreousError, match=r"test split of .* is empty"):  # and no part of train takes its place
        final_parts(Task("hollow", str(tmp_path / "hollow")), Protocol())
    with pytest.raises(VitreousError, match="1 classes; there is nothing to tell apart"):
        final_parts(Task("one", str(photographs(tmp_path / "one", {"a": 3}))), Protocol())
    photographs(tmp_path / "two" / "train", {"a": 3, "b": 3})
    photographs(tmp_path / "two" / "test", {"a": 3, "c": 3})
    with pytest.raises(VitreousError, match="different classes"):
        final_parts(Task("two", str(tmp_path / "two")), Protocol())
    photographs(tmp_path / "three" / "test", {"a": 3, "b": 3})
    with pytest.raises(VitreousError, match="no train split"):
        final_parts(Task("three", f"{tmp_path / 'three'}"), Protocol())


# VTAB ------------------------------------------------------------------------------------------------------------------


def test_vtab_has_nineteen_tasks_and_never_a_mean_of_fewer_by_its_name() -> None:
    suite = vtab_suite("there")
    assert [task.name for task in suite.tasks] == [task.name for task in TASKS]
    assert suite.of == 19
    assert suite.groups == ("natural", "specialized", "structured")
    some = vtab_suite("there", ("pets", "kitti"))
    assert [task.name for task in some.tasks] == ["pets", "kitti-distance"]
    assert some.of == 19
    assert some.tasks[0].data == "vtab:pets@there"
    assert some.tasks[0].sweep_data == "vtab:pets/sweep@there"
    with pytest.raises(VitreousError, match="did you mean 'pets'"):
        vtab_suite("there", ("pet",))


def test_augmentation_is_what_leaves_the_label_true() -> None:
    from vitreous.data.transforms.parse import Preprocess

    scales = Preprocess("resize(8)|normalise(imagenet)").scales
    by_name = {task.name: task for task in vtab_suite("there").tasks}

    def string(name: str, side: int = 384) -> str:
        return training_preprocess(by_name[name], (side, side), scales)

    end = "normalise(imagenet)"
    assert string("pets") == f"resize(448,bilinear-plain)|random_crop(384)|flip|{end}"
    assert string("clevr-count") == f"resize(384,bilinear-plain)|flip|{end}"
    assert string("dsprites-orientation") == f"resize(448,bilinear-plain)|random_crop(384)|{end}"
    assert string("dsprites-location") == f"resize(384,bilinear-plain)|{end}"
    assert string("pets", 192) == f"resize(224,bilinear-plain)|random_crop(192)|flip|{end}"
    checkpoint = random_checkpoint("ViT-Ti/4", classes=3, image_size=8, width=16, depth=1, heads=2, mlp=16)
    for preprocess, scale in ((f"resize(8)|{end}", end), ("resize(8)", "range(-1,1)")):
        other = replace(checkpoint, preprocess=preprocess)
        assert evaluation_preprocess("finetune", (96, 96), other) == f"resize(96,bilinear-plain)|{scale}"
