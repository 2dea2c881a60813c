"""The classification evaluator counts as `Counts` does and keeps the images with the highest loss."""

from __future__ import annotations

import numpy as np
import torch

from vitreous.core.distributed import World
from vitreous.data.loading.loader import Batch
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.evaluators import ClassificationEvaluator, ScoredLogits

CLASSES = ("a", "b", "c")


def test_accuracy_loss_and_the_worst_mistakes() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, losses = torch.randn(20, 3, generator=rng), torch.rand(20, generator=rng)
    labels = tuple(((), (0, 2), (i % 3,))[min(i, 2)] for i in range(20))
    pixels = torch.arange(20.0)[:, None, None, None].expand(20, 1, 4, 4)
    world = World(0, 1, torch.device("cpu"))
    evaluator = ClassificationEvaluator(CLASSES, Preprocess("resize(4)|range(0,255)", 1), world, split="test", mistakes=4)
    for rows in (slice(0, 7), slice(7, 20)):
        ids = tuple(str(i) for i in range(20))[rows]
        batch = Batch(pixels[rows], labels[rows], ids, 0)
        evaluator.update(batch, ScoredLogits(logits[rows], losses[rows]))
    found = evaluator.result()

    guesses = logits.argmax(dim=1).tolist()
    right = [guess in own for guess, own in zip(guesses, labels, strict=True)]
    assert (found.n, found.split, found.top5) == (19, "test", None)
    assert found.top1 == sum(right) / 19
    assert np.isclose(found.loss, losses[1:].double().mean())
    assert found.confusion.sum() == 19
    expected = {str(i): (labels[i], guesses[i]) for i in range(1, 20)}  # the first has no label
    assert {image: (own, predicted) for image, own, predicted in found.outcomes} == expected
    assert [outcome.id for outcome in found.outcomes] == sorted(expected)
    wrong = sorted((i for i in range(1, 20) if not right[i]), key=lambda i: -losses[i])[:4]
    assert [mistake.id for mistake in found.mistakes] == [str(i) for i in wrong]
    worst, row = found.mistakes[0], wrong[0]
    assert worst.pixels.shape == (4, 4, 3)
    assert (worst.pixels == row).all()  # the pixel values as they were, not stretched
    assert worst.truth == tuple(CLASSES[label] for label in labels[row])
    assert worst.guesses[0][0] == CLASSES[guesses[row]]
    assert np.isclose(sum(share for _, share in worst.guesses), 1)
