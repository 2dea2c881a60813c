"""Which images to label next: the greedy choice against a slow one, margins against scikit-learn, and few or no labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge as SklearnRidge

from vitreous.core.errors import VitreousError
from vitreous.evaluation import choose
from vitreous.evaluation.choose import choose_images, cover, predict_pool
from vitreous.evaluation.closed_form_head import fit_head
from vitreous.inference.features import Features


def features(values: np.ndarray, labels: list[int], classes: int) -> Features:
    names = tuple(f"class {number}" for number in range(classes))
    own, ids = tuple((label,) for label in labels), tuple(map(str, range(len(values))))
    return Features(values.astype(np.float32), own, ids, np.arange(len(values)), names)


def clusters(sizes: list[int], seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = 4 * rng.standard_normal((len(sizes), width))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return (centres[labels] + 0.3 * rng.standard_normal((len(labels), width))).astype(np.float32), labels


def slow_cover(pool: np.ndarray, known: np.ndarray, count: int, weights: np.ndarray) -> list[int]:
    """Every gain anew before every choice, in float64."""
    mean = pool.astype(np.float64).mean(axis=0)
    unit = [row / np.linalg.norm(row) for row in pool - mean]
    covered = [max([-1.0, *(float(x @ (k - mean)) / np.linalg.norm(k - mean) for k in known)]) for x in unit]
    chosen: list[int] = []
    for _ in range(count):
        gains = [
            -1.0
            if row in chosen
            else sum(w * max(0.0, float(x @ one) - c) for x, c, w in zip(unit, covered, weights, strict=True))
            for row, one in enumerate(unit)
        ]
        chosen.append(int(np.argmax(gains)))
        covered = [max(c, float(x @ unit[chosen[-1]])) for x, c in zip(unit, covered, strict=True)]
    return chosen


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_lazy_choice_is_the_greedy_one(labels: int, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_AGAIN", 3)
    rng = np.random.default_rng(1)
    pool, known = rng.standard_normal((60, 5)).astype(np.float32), rng.standard_normal((labels, 5)).astype(np.float32)
    weights = rng.random(60).astype(np.float32) if weighted else np.ones(60, np.float32)
    assert cover(pool, known, 12, weights, rng).tolist() == slow_cover(pool, known, 12, weights)


def test_diversity_finds_every_cluster_at_once_and_passes_over_those_that_are_known() -> None:
    pool, labels = clusters([30, 30, 30, 30, 30])
    rows, _ = choose_images(pool, None, 5, "diversity")
    assert sorted(labels[rows]) == [0, 1, 2, 3, 4]
    known = features(pool[[0, 30]], [0, 1], 5)
    rows, _ = choose_images(pool, known, 3, "diversity")
    assert sorted(labels[rows]) == [2, 3, 4]


def test_combined_chooses_where_the_head_is_not_sure() -> None:
    """Two classes are well known; a third cluster lies between them, and a fourth, as large, beside the first."""
    rng = np.random.default_rng(0)
    centres = np.array([[4, 0, 0], [-4, 0, 0], [0, 3, 0], [4, 0, 3]], np.float32)
    labels = np.repeat(np.arange(4), 40)
    pool = (centres[labels] + 0.2 * rng.standard_normal((160, 3))).astype(np.float32)
    sides = np.repeat([0, 1], 20)
    known = features(centres[sides] + 0.2 * rng.standard_normal((40, 3)), sides.tolist(), 2)
    rows, predictions = choose_images(pool, known, 1, "combined")
    assert predictions is not None
    assert labels[rows[0]] == 2
    assert predictions.margins[labels == 2].mean() < predictions.margins[labels == 3].mean()


def test_margins_are_those_of_a_ridge_by_scikit_learn() -> None:
    pool, labels = clusters([40, 40, 40], seed=3)
    pool += 3 * np.random.default_rng(0).standard_normal(pool.shape).astype(np.float32)  # hard to tell
    known, rest = features(pool[::3], labels[::3].tolist(), 3), pool[1::3]
    head = fit_head(known)
    mean, std = known.values.astype(np.float64).mean(axis=0), known.values.astype(np.float64).std(axis=0) + 1e-5
    x, y = (known.values - mean) / std, np.where(np.eye(3)[labels[::3]] > 0, 1.0, -1.0)
    fitted = SklearnRidge(alpha=head.l2).fit(x, y)  # the bias of ours costs next to nothing, scikit-learn's nothing
    scores = fitted.predict((rest - mean) / std) / head.temperature
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = np.sort(shares / shares.sum(axis=1, keepdims=True), axis=1)
    found = predict_pool(rest, known)
    np.testing.assert_allclose(found.margins, shares[:, -1] - shares[:, -2], atol=2e-3)
    rows, _ = choose_images(rest, known, 5, "uncertainty")
    assert set(rows.tolist()) == set(np.argsort(shares[:, -1] - shares[:, -2])[:5].tolist())


def test_a_class_without_an_image_is_never_the_guess() -> None:
    pool, _ = clusters([20, 20, 20])
    known = features(pool[[0, 1, 20, 21]], [0, 0, 1, 1], 3)
    _, predictions = choose_images(pool, known, 4)
    assert predictions is not None
    assert set(predictions.classes[:, 0].tolist()) == {0, 1}


def test_several_labels_take_the_class_nearest_to_even_odds() -> None:
    pool, _ = clusters([20, 20, 20])
    known = Features(
        pool[[0, 1, 20, 21, 40]], ((0,), (0, 2), (1,), (1, 2), (2,)), tuple("abcde"), np.arange(5), ("a", "b", "c")
    )
    _, predictions = choose_images(pool, known, 4)
    assert predictions is not None
    assert ((predictions.margins >= 0) & (predictions.margins <= 1)).all()


def test_little_to_go_by() -> None:
    pool, _ = clusters([5, 5])
    one = features(pool[:1], [0], 2)
    with pytest.raises(VitreousError, match="label images of two or more"):
        choose_images(pool, one, 2, "uncertainty")
    assert choose_images(pool, one, 2, "combined")[0].tolist() == choose_images(pool, one, 2, "diversity")[0].tolist()
    single = features(pool[[0, 5]], [0, 1], 2)  # one image of each class: nothing can be left out
    assert choose_images(pool, single, 10, "combined")[1] is not None
    with pytest.raises(VitreousError, match="smaller number"):
        choose_images(pool, single, 11)


@pytest.mark.parametrize("strategy", ["combined", "uncertainty", "diversity", "random"])
def test_every_image_once_and_a_seed_repeats_it(strategy: choose.Strategy) -> None:
    pool, _ = clusters([6, 6])
    pool = np.concatenate([pool, pool])  # copies too
    known = features(pool[[0, 6]], [0, 1], 2)
    rows, _ = choose_images(pool, known, len(pool), strategy, seed=5)
    assert sorted(rows.tolist()) == list(range(len(pool)))
    assert choose_images(pool, known, len(pool), strategy, seed=5)[0].tolist() == rows.tolist()


def test_of_very_many_images_a_part_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "REPRESENTED", 100)
    pool, labels = clusters([200, 200, 200, 200])
    rows, _ = choose_images(pool, None, 4, "diversity")
    assert sorted(labels[rows]) == [0, 1, 2, 3]
