"""Ridge against scikit-learn, and leave-one-out against refits that leave one out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import linear_model

from vitreous.core.errors import VitreousError
from vitreous.evaluation import ridge
from vitreous.evaluation.ridge import L2S, Ridge

SHAPES = [(30, 50), (51, 50), (52, 50), (120, 20)]  # fewer examples than features; as many; more
Floats = NDArray[np.float64]


def data(n: int, width: int, classes: int = 5, seed: int = 0) -> tuple[Floats, list[tuple[int, ...]]]:
    """Float32 values in float64: classes apart from each other, and features of very different sizes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    features = rng.normal(size=(classes, width))[labels] + 2 * rng.normal(size=(n, width))
    features = features * np.exp(rng.normal(size=width)) + 3 * rng.normal(size=width)
    return features.astype(np.float32).astype(np.float64), [(int(label),) for label in labels]


def augmented(train: Floats, features: Floats) -> Floats:
    """The paper's X, written out once more."""
    standardised = (features - train.mean(axis=0)) / (train.std(axis=0) + 1e-5)
    return np.hstack([standardised, np.full((len(features), 1), 100.0)])


def targets(labels: list[tuple[int, ...]], classes: int) -> Floats:
    y = np.full((len(labels), classes), -1.0)
    for row, own in enumerate(labels):
        y[row, list(own)] = 1
    return y


def fitted(features: Floats, labels: list[tuple[int, ...]], classes: int = 5) -> Ridge:
    return Ridge(torch.tensor(features, dtype=torch.float32), labels, classes)


def refitted(features: Floats, labels: list[tuple[int, ...]], l2: float, classes: int = 5) -> Floats:
    """Each example's scores by scikit-learn's fit to all others; the standardisation stays that of all."""
    x, y = augmented(features, features), targets(labels, classes)
    rows = []
    for left in range(len(x)):
        kept = np.arange(len(x)) != left
        model = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(x[kept], y[kept])
        rows.append(model.predict(x[left : left + 1])[0])
    return np.array(rows)


@pytest.mark.parametrize(("n", "width"), SHAPES)
def test_weights_and_scores_for_every_l2_are_those_of_scikit_learn(n: int, width: int) -> None:
    features, labels = data(n, width)
    new, _ = data(40, width, seed=1)
    found = fitted(features, labels)
    for l2 in L2S:
        model = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
        model.fit(augmented(features, features), targets(labels, 5))
        np.testing.assert_allclose(found.weights(l2).numpy(), model.coef_.T, rtol=0, atol=1e-6 * abs(model.coef_).max())
        scores = model.predict(augmented(features, new))
        np.testing.assert_allclose(found.predict(torch.tensor(new), l2).numpy(), scores, rtol=0, atol=1e-6 * abs(scores).max())
        np.testing.assert_array_equal(found.classify(torch.tensor(new), l2).numpy(), scores.argmax(axis=1))


@pytest.mark.parametrize(("n", "width"), SHAPES)
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**10, 2.0**19])
def test_leaving_one_out_is_what_refits_give(n: int, width: int, l2: float) -> None:
    features, labels = data(n, width)
    found, expected = fitted(features, labels), refitted(features, labels, l2)
    np.testing.assert_allclose(found.left_out(l2).numpy(), expected, rtol=0, atol=1e-6 * abs(expected).max())
    (accuracy,) = found.leave_one_out([l2])
    truth = np.array(labels)[:, 0]
    assert accuracy == pytest.approx(float((expected.argmax(axis=1) == truth).mean()), abs=1e-12)


def test_the_chosen_l2_is_the_best_of_the_refits() -> None:
    features, labels = data(40, 30)
    truth = np.array(labels)[:, 0]
    powers = [2.0**power for power in range(-10, 20, 4)]
    right = {l2: int((refitted(features, labels, l2).argmax(axis=1) == truth).sum()) for l2 in powers}
    assert len(set(right.values())) > 1
    assert fitted(features, labels).choose(powers) == max(l2 for l2 in powers if right[l2] == max(right.values()))


def test_the_l2_of_the_authors() -> None:
    assert L2S[0] == 2**-10
    assert L2S[-1] == 2**19
    assert len(L2S) == 30


@pytest.mark.parametrize(("n", "width"), [(30, 50), (120, 20)])
def test_several_labels_of_an_image(n: int, width: int) -> None:
    features, labels = data(n, width)
    labels = [(*own, (own[0] + 1) % 5, own[0]) if row % 3 else own for row, own in enumerate(labels)]  # one of them twice
    found, l2 = fitted(features, labels), 64.0
    model = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
    model.fit(augmented(features, features), targets(labels, 5))
    np.testing.assert_allclose(found.weights(l2).numpy(), model.coef_.T, rtol=0, atol=1e-6)
    named = refitted(features, labels, l2).argmax(axis=1)
    share = np.mean([name in own for name, own in zip(named, labels, strict=True)])
    assert found.leave_one_out([l2])[0] == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(("n", "width"), [(30, 50), (120, 20)])
def test_blocks_change_nothing(n: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = data(n, width)
    whole = fitted(features, labels)
    monkeypatch.setattr(ridge, "_ENTRIES", 7 * max(width + 1, n))
    parts = fitted(features, labels)
    new = torch.tensor(data(40, width, seed=1)[0])
    for l2 in (2.0**-10, 2.0**10):
        torch.testing.assert_close(parts.weights(l2), whole.weights(l2), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(parts.predict(new, l2), whole.predict(new, l2), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(parts.left_out(l2), whole.left_out(l2), rtol=1e-7, atol=1e-7)
    assert parts.leave_one_out([1.0]) == whole.leave_one_out([1.0])
    assert parts.predict(new[:0], 1.0).shape == (0, 5)


@pytest.mark.parametrize(("n", "width"), [(30, 50), (120, 20)])
def test_constant_and_repeated_columns_and_rows(n: int, width: int) -> None:
    """The Gram matrix has no inverse then; a large constant must not turn rounding into a feature."""
    features, labels = data(n, width)
    features[:, 0] = np.float32(12345.678)
    features[:, 1] = features[:, 2]
    features[1], labels[1] = features[0], labels[0]
    found = fitted(features, labels)
    assert float(found.standardised(torch.tensor(features))[:, 0].abs().max()) < 1e-6
    for l2 in (2.0**-10, 1.0, 2.0**19):
        model = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
        model.fit(augmented(features, features), targets(labels, 5))
        np.testing.assert_allclose(found.weights(l2).numpy(), model.coef_.T, rtol=0, atol=1e-6)
        expected = refitted(features, labels, l2)
        np.testing.assert_allclose(found.left_out(l2).numpy(), expected, rtol=0, atol=1e-6 * abs(expected).max())


@pytest.mark.parametrize(("n", "width", "spread"), [(30, 50, 1), (120, 20, 1), (120, 20, 0), (300, 40, 0), (300, 40, 3)])
def test_weights_for_all_l2_at_once(n: int, width: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether few products span them all (features alike in size, spread 0) or each has its own; and where memory is short."""
    features, labels = data(n, width)
    mixing = np.linalg.qr(np.random.default_rng(1).normal(size=(width, width)))[0] * np.logspace(0, -spread, width)
    features = (features @ mixing).astype(np.float32).astype(np.float64)
    found = fitted(features, labels)
    x, y = augmented(features, features), targets(labels, 5)
    for memory in (1 << 25, 0):
        monkeypatch.setattr(ridge, "_BASIS", memory)
        every = list(found.weights_for(L2S))
        assert len(every) == len(L2S)
        for l2, weights in zip(L2S, every, strict=True):
            assert weights.shape == (width + 1, 5)
            model = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(x, y)
            np.testing.assert_allclose(weights.numpy(), model.coef_.T, rtol=0, atol=1e-6 * max(1, abs(model.coef_).max()))


def test_few_products_span_all_l2_where_features_are_alike() -> None:
    features, labels = data(400, 40)
    found = fitted(np.random.default_rng(1).normal(size=features.shape), labels)
    factors, combinations = found._spanning(L2S)
    assert len(factors) <= len(L2S) // 2
    for place, l2 in enumerate(L2S):
        weights = (found._left * (combinations[place] @ factors)) @ found._right
        assert float((weights - found.weights(l2)).norm() / found.weights(l2).norm()) < 2e-8


def test_classes_for_all_l2_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = data(60, 20)
    new = torch.tensor(data(33, 20, seed=1)[0])
    found = fitted(features, labels)
    expected = torch.stack([found.classify(new, l2) for l2 in L2S])
    assert len({tuple(row) for row in expected.tolist()}) > 3
    assert torch.equal(found.classify_for(new), expected)
    monkeypatch.setattr(ridge, "_ENTRIES", 100)
    assert torch.equal(found.classify_for(new), expected)
    assert found.classify_for(new[:0], [1.0]).shape == (1, 0)
    with pytest.raises(VitreousError, match="must be above 0"):
        found.classify_for(new, [1.0, 0.0])


def test_one_class_only() -> None:
    features, labels = data(20, 8, classes=1)
    assert fitted(features, labels, classes=1).leave_one_out() == (1.0,) * 30
    found = fitted(features, [(3,)] * 20)  # one of five
    assert found.choose() == L2S[-1]
    assert set(found.classify(torch.tensor(features), 1.0).tolist()) == {3}


def test_one_example() -> None:
    """Left out, it leaves nothing to learn from: scores of zero. Fitted, the bias alone is there to learn."""
    features, _ = data(1, 8)
    found = fitted(features, [(2,)])
    assert float(found.left_out(1.0).abs().max()) < 1e-12
    assert found.choose() in L2S
    assert int(found.classify(torch.tensor(features), 1.0)) == 2
    scores = found.predict(torch.tensor(features), 1.0)
    torch.testing.assert_close(scores, torch.tensor([[-1, -1, 1, -1, -1]]).double() * 10_000 / 10_001)


def test_halves_are_read_as_they_are() -> None:
    features, labels = data(30, 8)
    half = torch.tensor(features, dtype=torch.bfloat16)
    torch.testing.assert_close(Ridge(half, labels, 5).weights(1.0), Ridge(half.double(), labels, 5).weights(1.0))


@pytest.mark.parametrize(("n", "width"), [(8, 30), (30, 8)])
def test_the_features_of_the_caller_are_left_as_they_were(n: int, width: int) -> None:
    features, labels = data(n, width)
    given = torch.tensor(features, requires_grad=True)
    found = Ridge(given, labels, 5)
    assert not found.predict(given, 1.0).requires_grad
    found.left_out(1.0)
    assert np.array_equal(given.detach().numpy(), features)


def test_the_threads_of_the_caller_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        fitted(*data(30, 8))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(features=torch.zeros(0, 4), labels=[]), "needs labelled images"),
        (dict(features=torch.tensor([[0.0, float("nan")], [1.0, 2.0]])), "1 of 2 images have features that are not finite"),
        (dict(labels=[(0,), ()]), "1 of 2 have no label"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments = dict(features=torch.randn(2, 4), labels=[(0,), (1,)], classes=5) | change
    with pytest.raises(VitreousError, match=message):
        Ridge(**arguments)  # type: ignore[arg-type]


def test_refusals_of_a_fit() -> None:
    found = fitted(*data(30, 8))
    for l2 in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(VitreousError, match="must be above 0"):
            found.weights(l2)
