"""The few-shot protocol against scikit-learn on the same subsets, and what a curve says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import linear_model

from vitreous.classifier import Classifier
from vitreous.core.errors import VitreousError
from vitreous.data.source import Dataset
from vitreous.data.sources.arrays import Arrays
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation import fewshot as module
from vitreous.evaluation import fewshot_tasks
from vitreous.evaluation.fewshot import FIXED, FewshotResult, FewshotTask, best_mean_rank, draw_subset, fewshot, fits
from vitreous.evaluation.fewshot_curve import draw_curve, points, verdicts
from vitreous.evaluation.fewshot_tasks import choose_preprocess, paper_preprocess, possible_shots, split_names
from vitreous.evaluation.knn import classify_by_neighbours
from vitreous.evaluation.ridge import L2S
from vitreous.inference.features import Features

from conftest import random_checkpoint

CLASSES = ("a", "b", "c", "d")


def made(count: int, seed: int, prefix: str, noise: float = 2.5, width: int = 12) -> Features:
    rng = np.random.default_rng(seed)
    targets = np.arange(count) % len(CLASSES)
    means = np.random.default_rng(9).normal(size=(len(CLASSES), width))
    values = (means[targets] + noise * rng.normal(size=(count, width))).astype(np.float32)
    ids = tuple(f"{prefix}/{number}" for number in range(count))
    return Features(values, tuple((int(t),) for t in targets), ids, np.arange(count), CLASSES)


def task(name: str = "made", train: int = 120, test: int = 200, noise: float = 2.5) -> FewshotTask:
    return FewshotTask(name, made(train, 0, "train", noise), made(test, 1, "test", noise))


def by_hand(own: FewshotTask, rows: Any, l2: float) -> np.ndarray[Any, Any]:
    x, z = own.train.values[rows].astype(np.float64), own.test.values.astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    x, z = (np.hstack([(part - mean) / std, np.full((len(part), 1), 100.0)]) for part in (x, z))
    y = 2 * np.eye(len(CLASSES))[own.train.targets()[rows]] - 1
    named = linear_model.Ridge(alpha=l2, fit_intercept=False).fit(x, y).predict(z).argmax(axis=1)
    return np.asarray(named == own.test.targets())


def test_every_round_is_scikit_learns_on_its_subset() -> None:
    own = task()
    rounds = fewshot([own], shots=(1, 5, "all"), seeds=(3, 4), l2=64.0)
    assert [(r.shots, r.seed, r.n_train) for r in rounds] == [(1, 3, 4), (1, 4, 4), (5, 3, 20), (5, 4, 20), ("all", None, 120)]
    for found in rounds:
        right = by_hand(own, draw_subset(own, found.shots, found.seed), 64.0)
        assert np.array_equal(found.right, right)
        assert found.accuracy == right.mean()
        assert (found.n_test, found.l2, found.data) == (200, 64.0, "made")
    assert rounds[-1].record() == {
        "data": "made", "shots": "all", "seed": None, "l2": 64.0, "accuracy": rounds[-1].accuracy,
        "majority": 0.25, "n_train": 120, "n_test": 200, "fitted": rounds[-1].fitted, "left_out": rounds[-1].left_out,
        "knn": rounds[-1].knn,
    }  # fmt: skip


def test_nearest_neighbours_of_the_same_subset_stand_beside_it() -> None:
    own = task()
    for found in fewshot([own], shots=(5, "all"), seeds=(3,), l2=64.0):
        subset = own.train.some(draw_subset(own, found.shots, found.seed))
        named = classify_by_neighbours(subset, own.test.values)
        assert found.knn == (named == own.test.targets()).mean()


def test_subsets_are_drawn_by_the_seed_and_lie_within_each_other() -> None:
    own = task()
    five, ten = draw_subset(own, 5, 0), draw_subset(own, 10, 0)
    assert np.bincount(own.train.targets()[five]).tolist() == [5] * 4
    assert set(five) < set(ten)
    assert len({tuple(draw_subset(own, 5, seed)) for seed in range(5)}) == 5
    assert draw_subset(own, 2, None).tolist() == list(range(8))  # the first of each, in the order of the data
    order = np.random.default_rng(0).permutation(120)
    elsewhere = FewshotTask("made", own.train.some(order), own.test)
    assert {elsewhere.train.ids[row] for row in draw_subset(elsewhere, 5, 0)} == {own.train.ids[row] for row in five}


def test_leave_one_out_chooses_without_the_test_images() -> None:
    own = task()
    (found,) = fewshot([own], shots=(10,), seeds=(0,))
    other = FewshotTask("made", own.train, made(200, 5, "test", noise=9.0))
    (again,) = fewshot([other], shots=(10,), seeds=(0,))
    assert again.l2 == found.l2
    assert again.accuracy != found.accuracy
    rows = draw_subset(own, 10, 0)
    x = own.train.values[rows].astype(np.float64)
    x = np.hstack([(x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5), np.full((40, 1), 100.0)])
    y = 2 * np.eye(4)[own.train.targets()[rows]] - 1
    right = {}
    for l2 in L2S:
        kept = [np.delete(np.arange(40), row) for row in range(40)]
        named = [
            (x[row] @ np.linalg.solve(x[k].T @ x[k] + l2 * np.eye(13), x[k].T @ y[k])).argmax() for row, k in enumerate(kept)
        ]
        right[l2] = float((np.array(named) == own.train.targets()[rows]).mean())
    assert found.l2 == max(l2 for l2 in L2S if right[l2] == max(right.values()))
    assert found.left_out == right[found.l2]
    assert fewshot([own], shots=(1,), seeds=(0,))[0].l2 == FIXED  # nothing to leave out


def test_one_l2_for_all_data_sets_by_mean_rank() -> None:
    tasks = [task("one"), task("two", noise=4.0), task("three", noise=1.5)]
    rounds = fewshot(tasks, shots=(5, 10), seeds=(0, 1), l2="joint")
    for shots in (5, 10):
        accuracies = [
            [np.mean([by_hand(own, draw_subset(own, shots, seed), l2).mean() for seed in (0, 1)]) for l2 in L2S]
            for own in tasks
        ]
        ranks = stats.rankdata(accuracies, axis=1).mean(axis=0)
        best = max(l2 for l2, rank in zip(L2S, ranks, strict=True) if rank == ranks.max())
        assert {found.l2 for found in rounds if found.shots == shots} == {best}
    assert [found.data for found in rounds] == ["one", "one", "two", "two", "three", "three"] * 2


def test_mean_rank_against_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        accuracies = rng.integers(0, 4, (3, 6)) / 4
        ranks = stats.rankdata(accuracies, axis=1).mean(axis=0)
        assert best_mean_rank(accuracies) == max(np.flatnonzero(np.isclose(ranks, ranks.max())))


def test_as_many_fits_as_were_promised() -> None:
    for l2, draw in itertools.product((64.0, "joint"), ("seed", "first")):
        counted: list[int] = []
        tasks, options = [task("one"), task("two")], dict(shots=(1, 5, "all"), seeds=(0, 1))
        fewshot(tasks, l2=l2, draw=draw, advance=counted.append, **options)  # type: ignore[arg-type]
        assert sum(counted) == fits(2, (1, 5, "all"), (0, 1), l2, draw)  # type: ignore[arg-type]


def test_images_with_several_labels_are_right_by_any() -> None:
    own = task()
    any_label = Features(own.test.values, (tuple(range(4)),) * 200, own.test.ids, own.test.numbers, CLASSES)
    assert fewshot([FewshotTask("made", own.train, any_label)], shots=(1,), seeds=(0,), l2=1.0)[0].accuracy == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(shots=(1, 31)), r"--shots 31: class 'a' of made has 30 training images; use --shots 30"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = dict(tasks=[task()], shots=(1,), seeds=(0,)) | change
    with pytest.raises(VitreousError, match=message):
        fewshot(arguments.pop("tasks"), **arguments)


def test_refusals_of_a_task() -> None:
    train, test = made(12, 0, "train"), made(8, 1, "test")
    one = train.some([0, 4, 8])
    with pytest.raises(VitreousError, match=r"made: its training images are of one class only \(a\)"):
        FewshotTask("made", one, test)
    with pytest.raises(VitreousError, match=r"made: test/0, test/1 is there twice"):
        FewshotTask("made", train, test.some([0, 0, 1, 1]))
    with pytest.raises(VitreousError, match=r"made: train/0 is in both the training and the test images"):
        FewshotTask("made", train, train.some([0]))
    with pytest.raises(VitreousError, match="not finite"):
        FewshotTask("made", train, Features(test.values * np.nan, test.labels, test.ids, test.numbers, CLASSES))
    with pytest.raises(VitreousError, match="different classes"):
        FewshotTask("made", train, Features(test.values, test.labels, test.ids, test.numbers, ("a", "b", "c", "e")))
    missing = FewshotTask("made", train.some([0, 1, 2, 4, 5, 6]), test)  # class d is tested and never seen
    with pytest.raises(VitreousError, match=r"class 'd' of made has 0 training images; remove it, or give it some"):
        fewshot([missing], shots=(1,))


# The curve -------------------------------------------------------------------------------------------------------------


def a_round(
    shots: Any, seed: int | None, right: Any, fitted: float = 1.0, left_out: float = 0.5, data: str = "made"
) -> FewshotResult:
    right, per_class = np.asarray(right, bool), 100.0 if shots == "all" else float(shots)
    return FewshotResult(
        data, shots, seed, 1.0, float(right.mean()), 0.3, int(4 * per_class), len(right), fitted, left_out, per_class, right
    )


def share(of: float, count: int = 1000) -> np.ndarray[Any, Any]:
    return np.arange(count) < round(of * count)


def test_points_have_the_mean_and_the_spread_of_the_seeds() -> None:
    rounds = [a_round("all", None, share(0.9)), *(a_round(5, seed, share(0.5 + 0.1 * seed)) for seed in range(3))]
    five, everything = points(rounds)
    assert (five.mean("accuracy"), five.spread) == pytest.approx((0.6, 0.1))
    assert (len(five.rounds), five.first.shots, everything.first.shots, everything.spread) == (3, 5, "all", None)


@pytest.mark.parametrize(
    ("late", "fitted", "left_out", "expected", "said"),
    [
        (0.7, 1.0, 0.7, True, "more labels would help"),
        (0.601, 1.0, 0.6, False, "features are the limit"),  # the curve is flat
        (0.7, 0.705, 0.7, False, "features are the limit"),  # it has met the training images
        (1.0, 1.0, 0.99, False, "hardly anything left to gain"),  # no better checkpoint is needed
        (0.62, 1.0, 0.6, None, "undecided: 1,000 test images and 2 seeds are too few"),
    ],
)
def test_what_the_curve_says(late: float, fitted: float, left_out: float, expected: bool | None, said: str) -> None:
    first = [share(0.6), share(0.6)]
    if expected is None:  # the two ends are right about different images: the same gain, and little trust in it
        first = [share(0.6)[::-1], share(0.6)]
    rounds = [a_round(5, seed, first[seed]) for seed in (0, 1)]
    rounds += [a_round(20, seed, share(late), fitted, left_out) for seed in (0, 1)]
    (found,) = verdicts(rounds)
    assert found.more_labels is expected
    assert said in found.sentence
    assert found.gain == pytest.approx((late - 0.6) / 2)  # two doublings
    assert found.record()["gain_per_doubling"] == found.gain


def test_a_curve_below_the_majority_class_is_called_so() -> None:
    (found,) = verdicts([a_round(5, 0, share(0.1)), a_round(20, 0, share(0.29))])
    assert found.more_labels is None
    assert "no better than always predicting the largest class" in found.sentence


def test_the_error_of_the_gain_is_that_of_paired_images() -> None:
    rng = np.random.default_rng(0)
    early, late = rng.random(500) < 0.6, rng.random(500) < 0.7
    (found,) = verdicts([a_round(5, 0, early), a_round(10, 0, late)])
    assert found.error == pytest.approx(float(np.std(late.astype(float) - early, ddof=1) / np.sqrt(500)))
    (mixed,) = verdicts([a_round(5, 0, early), a_round(5, 1, late), a_round("all", None, late)])  # one `all` for two seeds
    assert mixed.gain == pytest.approx((late.mean() - (early.mean() + late.mean()) / 2) / np.log2(20))


def test_a_doubling_is_measured_over_at_least_one() -> None:
    """From 10 to 12 images a class is a quarter of a doubling: noise divided by so little would be all one sees."""
    early, middle, late = share(0.5), share(0.8), share(0.85)
    (found,) = verdicts([a_round(5, 0, early), a_round(10, 0, middle), a_round(12, 0, late)])
    (alone,) = verdicts([a_round(5, 0, early), a_round(12, 0, late)])
    assert (found.gain, found.error) == (alone.gain, alone.error)


def test_one_number_of_shots_is_no_curve() -> None:
    (found,) = verdicts([a_round(5, 0, share(0.5))])
    assert (found.gain, found.more_labels) == (None, None)
    assert "give several" in found.sentence


def test_the_image(tmp_path: Path) -> None:
    rounds = [a_round(n, seed, share(0.5 + n / 50 + seed / 50), data=name) for name in "xy" for n in (1, 5) for seed in (0, 1)]
    draw_curve(rounds, "a title", tmp_path)
    draw_curve(rounds, "a title", tmp_path / "again")
    for name in ("learning_curve.png", "learning_curve.svg"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    drawing = (tmp_path / "learning_curve.svg").read_text()
    assert all(word in drawing for word in ("a title", "labelled images of each class", "accuracy in %", ">x<", ">y<"))


# From the command line -------------------------------------------------------------------------------------------------


def test_names_of_data_sets(tmp_path: Path) -> None:
    assert split_names("builtin:digits, cifar10") == ("builtin:digits", "cifar10")
    assert split_names("s/{train,val}-0.tar,b") == ("s/{train,val}-0.tar", "b")
    odd = tmp_path / "a,b"
    odd.mkdir()
    assert split_names(str(odd)) == (str(odd),)
    for text, message in (("a,,b", "empty name"), ("a,b,a", "a is named twice")):
        with pytest.raises(VitreousError, match=message):
            split_names(text)


def clf(size: int, preprocess: str) -> Classifier:
    return Classifier(random_checkpoint("ViT-Ti/16", depth=1, image_size=size, classes=2, preprocess=preprocess))


def test_the_papers_preprocessing_in_the_checkpoints_values() -> None:
    plain = clf(224, "resize(224,bicubic)|normalise(imagenet)")
    scales = str(plain.preprocess.scales[0])
    assert str(paper_preprocess(plain)) == f"resize(256,bicubic)|central_crop(224)|{scales}"
    assert str(paper_preprocess(clf(384, "central_crop(384)|range(-1,1)"))) == (
        "resize(439,bilinear)|central_crop(384)|range(-1,1)"
    )
    small = clf(32, "resize(32)|range(-1,1)")
    assert str(paper_preprocess(small)) == "resize(37,bilinear)|central_crop(32)|range(-1,1)"
    assert choose_preprocess(small, None) == small.preprocess
    assert choose_preprocess(small, "paper") == paper_preprocess(small)
    assert choose_preprocess(small, "resize(32,box)|range(0,1)") == Preprocess("resize(32,box)|range(0,1)")
    for text, message in (("resize(48)|range(0,1)", "48 x 48 pixels, the model takes 32"), ("random_crop(32)", "is random")):
        with pytest.raises(VitreousError, match=message):
            choose_preprocess(small, text)


def test_default_shots_are_those_that_every_class_has() -> None:
    assert possible_shots([task(train=120)]) == ((1, 5, 10, 25, "all"), ())
    shots, said = possible_shots([task(train=120), task("small", train=39)])
    assert shots == (1, 5, "all")
    assert said == ("not 10, 25 shots: class 'd' of small has 9 training images",)
    assert module.FIXED in L2S


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([], [0, 1], "made: its train split is empty; there is nothing to fit to"),
        ([0, 1], [], "made: its test split is empty; there is nothing to evaluate on"),
        ([0, 1], [-1, -1], "made: its test split has no image with a label to evaluate on"),
        ([0, 0], [0, 1], r"made: its training images are of one class only \(a\)"),
    ],
)
def test_splits_that_are_empty_or_have_no_labels(
    train: list[int], test: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        split: Arrays("made", split, ("a", "b"), np.zeros((len(targets), 32, 32, 3), np.uint8), np.array(targets, np.int64))
        for split, targets in (("train", train), ("test", test))
    }
    monkeypatch.setattr(fewshot_tasks, "open_data", lambda name, bad_shards: Dataset(name, ("a", "b"), parts))
    small = clf(32, "resize(32)|range(-1,1)")
    with pytest.raises(VitreousError, match=message):
        fewshot_tasks.load_task(small, fewshot_tasks.open_task("made"), small.preprocess, workers=0)
