"""Counts against scikit-learn's metrics and a plain loop; the same whatever the batches and processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.evaluation.counts import MOST_CONFUSED, Counts

CLASSES, IMAGES = 12, 300


def examples(several: bool = False) -> tuple[Tensor, list[tuple[int, ...]], Tensor]:
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(size=(IMAGES, CLASSES)), 1)  # rounded: equal logits occur
    labels = [tuple(rng.choice(CLASSES - 1, size=rng.integers(1, 4) if several else 1, replace=False).tolist()) for _ in logits]
    for row, own in zip(logits, labels, strict=True):
        row[own[0]] += 1.5
    return torch.tensor(logits, dtype=torch.float32), labels, torch.tensor(rng.exponential(size=IMAGES), dtype=torch.float32)


def counted(logits: Tensor, labels: list[tuple[int, ...]], losses: Tensor, batch: int = IMAGES) -> Counts:
    counts = Counts(logits.shape[1])
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        counts.update(logits[part], labels[part], losses[part])
    return counts


def test_one_label_each_against_scikit_learn() -> None:
    logits, labels, losses = examples()
    truth, named = np.array(labels)[:, 0], logits.numpy().argmax(axis=1)
    counts = counted(logits, labels, losses)
    assert counts.n == IMAGES
    assert counts.top1 == pytest.approx(metrics.accuracy_score(truth, named), abs=1e-12)
    assert 0.2 < counts.top1 < 0.9
    assert counts.loss == pytest.approx(float(losses.double().mean()), rel=1e-12)
    assert counts.confusion is not None
    assert counts.confusion.dtype == torch.int64
    every = range(CLASSES)  # one class has no image: it must not shift the others
    np.testing.assert_array_equal(counts.confusion.numpy(), metrics.confusion_matrix(truth, named, labels=every))
    expected = metrics.precision_recall_fscore_support(truth, named, labels=every, zero_division=0)
    np.testing.assert_allclose(np.array(counts.per_class()).T, np.array(expected), atol=1e-12)
    assert counts.per_class()[-1].n == 0


def test_top_five_against_scikit_learn() -> None:
    logits, labels, losses = examples()
    apart = logits + torch.rand(logits.shape) * 1e-3  # no equal logits, for which scikit-learn has no rule
    expected = metrics.top_k_accuracy_score(np.array(labels)[:, 0], apart.numpy(), k=5, labels=range(CLASSES))
    assert counted(apart, labels, losses).top5 == pytest.approx(expected, abs=1e-12)
    assert counted(logits[:, :5], [(0,)] * IMAGES, losses).top5 is None
    assert counted(logits[:, :6], [(0,)] * IMAGES, losses).top5 is not None


def test_several_labels_against_a_plain_loop_and_scikit_learn() -> None:
    logits, labels, losses = examples(several=True)
    hits1 = hits5 = 0
    for row, own in zip(logits.tolist(), labels, strict=True):
        order = sorted(range(CLASSES), key=lambda c, row=row: (-row[c], c))
        hits1 += order[0] in own
        hits5 += bool(set(order[:5]) & set(own))
    counts = counted(logits, labels, losses)
    assert (counts.top1, counts.top5) == (hits1 / IMAGES, hits5 / IMAGES)
    wanted, found = np.zeros((IMAGES, CLASSES), int), np.eye(CLASSES, dtype=int)[logits.numpy().argmax(axis=1)]
    for row, own in enumerate(labels):
        wanted[row, list(own)] = 1
    expected = metrics.precision_recall_fscore_support(wanted, found, zero_division=0)
    np.testing.assert_allclose(np.array(counts.per_class()).T, np.array(expected), atol=1e-12)
    assert counts.confusion is not None
    first = np.bincount([own[0] for own in labels], minlength=CLASSES)
    np.testing.assert_array_equal(counts.confusion.sum(dim=1).numpy(), first)


def test_batches_processes_and_order_change_nothing() -> None:
    logits, labels, losses = examples(several=True)
    whole = counted(logits, labels, losses)
    own = [counted(logits[p::3], labels[p::3], losses[p::3], batch=7) for p in range(3)]  # three processes, uneven batches
    reduced = Counts(CLASSES)
    reduced.load(torch.stack([counts.tensor() for counts in own]).sum(dim=0))
    assert (reduced.n, reduced.top1, reduced.top5) == (whole.n, whole.top1, whole.top5)
    assert reduced.per_class() == whole.per_class()
    assert reduced.loss == pytest.approx(whole.loss, rel=1e-12)
    assert torch.equal(reduced.confusion, whole.confusion)  # type: ignore[arg-type]
    kept = whole.tensor()
    whole.update(logits, labels, losses)
    assert kept[0] == IMAGES  # what was handed out is a copy


def test_images_without_labels_are_counted_apart() -> None:
    logits, labels, losses = examples()
    holes = [own if index % 3 else () for index, own in enumerate(labels)]
    counts, kept = counted(logits, holes, losses), [index for index in range(IMAGES) if index % 3]
    expected = counted(logits[kept], [labels[index] for index in kept], losses[kept])
    assert counts.unlabelled == IMAGES // 3
    assert expected.unlabelled == 0
    assert (counts.n, counts.top1, counts.per_class()) == (expected.n, expected.top1, expected.per_class())
    assert counts.loss == pytest.approx(expected.loss, rel=1e-12)
    nothing = counted(logits[:2], [(), ()], losses[:2])
    assert (nothing.n, nothing.unlabelled) == (0, 2)
    with pytest.raises(VitreousError, match="no labelled image"):
        _ = nothing.top1


def test_a_label_given_twice_counts_once() -> None:
    logits, _, losses = examples()
    assert counted(logits, [(3, 3)] * IMAGES, losses).per_class() == counted(logits, [(3,)] * IMAGES, losses).per_class()


def test_equal_logits_go_to_the_first_classes() -> None:
    """What a zero-initialised head gives before its first step."""
    counts = counted(torch.zeros(10, 10), [(label,) for label in range(10)], torch.zeros(10))
    assert (counts.top1, counts.top5) == (0.1, 0.5)
    assert counts.per_class()[0].recall == 1


def test_a_model_that_gives_nan_is_not_called_right() -> None:
    logits = torch.zeros(4, 10)
    logits[0], logits[1, 3] = float("nan"), float("nan")
    logits[2, 0], logits[3, 1] = float("inf"), float("-inf")
    counts = counted(logits, [(0,), (3,), (0,), (0,)], torch.ones(4))
    assert (counts.n, counts.top1, counts.top5) == (4, 0.5, 0.5)
    assert counts.confusion is not None
    assert int(counts.confusion.sum()) == 2


def test_halves_are_taken_and_their_losses_summed_in_full_precision() -> None:
    logits, labels, _ = examples()
    counts = counted(logits.to(torch.bfloat16), labels, torch.full((IMAGES,), 1 / 3, dtype=torch.float16))
    assert counts.loss == pytest.approx(float(np.float16(1 / 3)), rel=1e-12)
    assert counts.top1 > 0.2


def test_many_classes_take_little_memory() -> None:
    """ImageNet-21k: every pair would take 3.8 GB."""
    classes = 21_843
    counts = Counts(classes)
    logits = torch.randn(16, classes)
    counts.update(logits, [(int(row.argmax()), 5) for row in logits], torch.zeros(16))
    assert counts.confusion is None
    assert counts.tensor().numel() < 4 * classes
    assert counts.top1 == 1
    assert sum(row.n for row in counts.per_class()) == 32
    assert Counts(MOST_CONFUSED).confusion is not None
    assert Counts(CLASSES, confusion=False).confusion is None


@pytest.mark.parametrize("labels", [[(), (12,)], [(), (-1,)]])
def test_what_does_not_belong_together_is_refused_and_changes_nothing(labels: list[tuple[int, ...]]) -> None:
    counts = Counts(CLASSES)
    with pytest.raises(VitreousError, match="12 classes"):
        counts.update(torch.zeros(2, CLASSES), labels, torch.zeros(2))
    assert not counts.tensor().any()


def test_a_model_without_classes_is_refused() -> None:
    with pytest.raises(VitreousError, match="0 classes"):
        Counts(0)
