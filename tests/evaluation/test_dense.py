"""Masks in closed form: labels of patches by loops, IoU against scikit-learn, and fits that must find what was put there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

from vitreous.evaluation.dense import (
    IGNORED,
    choose_by_images,
    colour_features,
    count_confusion,
    fit_dense,
    iou,
    label_patches,
    label_pixels,
    mean_iou,
    predict_mask,
)
from vitreous.evaluation.dense_figure import MaskExample, colour_mask, plot_masks
from vitreous.evaluation.fewshot import FIXED
from vitreous.evaluation.ridge import Ridge


def test_values_become_classes_and_all_others_take_no_part() -> None:
    values = np.array([[1, 2, 3], [255, 2, 0]], np.uint8)
    assert label_pixels(values, np.array([1, 2])).tolist() == [[0, 1, IGNORED], [IGNORED, 1, IGNORED]]


def test_a_patch_is_of_the_class_of_most_of_its_pixels() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(-1, 3, (12, 20))
    found = label_patches(pixels, (3, 4), 3)
    for row, column in np.ndindex(3, 4):
        part = pixels[4 * row : 4 * row + 4, 5 * column : 5 * column + 5].ravel()
        counted = part[part != IGNORED]
        counts = np.bincount(counted, minlength=3)
        if len(counted) < 10:
            assert found[row, column] == IGNORED
        else:
            assert counts[found[row, column]] == counts.max()
    assert label_patches(np.full((8, 8), IGNORED), (2, 2), 2).tolist() == [[IGNORED] * 2] * 2


def test_patches_of_fractions_of_pixels_count_by_area() -> None:
    """Five pixels to two patches: the middle one belongs to both, by half."""
    pixels = np.array([[0, 0, 1, 1, 1]])
    assert label_patches(pixels, (1, 2), 2).tolist() == [[0, 1]]  # 2 : 0.5 and 0 : 2.5
    assert label_patches(np.array([[0, 1, 1, 1, 0]]), (1, 2), 2).tolist() == [[1, 1]]  # 1 : 1.5 in both


@pytest.mark.parametrize("classes", [2, 5])
def test_iou_is_that_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(-1, classes, (30, 40)), rng.integers(0, classes, (30, 40))
    confusion = count_confusion(truth, predicted, classes)
    there = truth != IGNORED
    expected = jaccard_score(truth[there], predicted[there], average=None, labels=range(classes))
    assert iou(confusion) == pytest.approx(expected)
    assert mean_iou(confusion) == pytest.approx(expected.mean())
    assert confusion.sum() == there.sum()


def test_a_class_that_is_nowhere_does_not_count() -> None:
    confusion = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    assert iou(confusion)[:2] == pytest.approx([3 / 4, 4 / 5])
    assert np.isnan(iou(confusion)[2])
    assert mean_iou(confusion) == pytest.approx((3 / 4 + 4 / 5) / 2)


def test_scores_are_interpolated_to_the_size_of_the_mask() -> None:
    """Bilinear between the centres of patches: Pillow does the same for enlarging."""
    scores = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    found = predict_mask(scores, (37, 41))
    large = [np.asarray(Image.fromarray(scores[..., k]).resize((41, 37), Image.Resampling.BILINEAR)) for k in range(2)]
    margin = np.abs(large[1] - large[0])
    assert found.shape == (37, 41)
    assert (found == (large[1] > large[0]))[margin > 1e-5].all()


def make(images: int, seed: int = 0, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 4, 4, 12) whose first number tells the class; each image has a colour of its own in the others."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (images, 4, 4))
    features = rng.normal(size=(images, 1, 1, 12)) + noise * rng.normal(size=(images, 4, 4, 12))
    features[..., 0] = 2 * labels - 1 + noise * rng.normal(size=labels.shape)
    return features.astype(np.float32), labels


def test_a_fit_finds_what_tells_the_classes_apart() -> None:
    features, labels = make(8)
    labels[0, 0] = IGNORED
    fit = fit_dense(features, labels, 2)
    new, truth = make(4, seed=1)
    named = np.stack([fit.scores(own).argmax(axis=-1) for own in new])
    assert (named == truth).mean() > 0.95
    there = labels != IGNORED
    plain = Ridge(torch.from_numpy(features[there]), [(int(label),) for label in labels[there]], 2)
    expected = plain.predict(torch.from_numpy(new[0].reshape(-1, 12)), fit.l2).numpy().reshape(4, 4, 2)
    assert fit.scores(new[0]) == pytest.approx(expected, abs=1e-5)
    assert fit_dense(features, labels, 2, l2=8.0).l2 == 8.0


def test_l2_is_chosen_by_leaving_whole_images_out() -> None:
    """By hand: of every image in turn, its patches by a fit to all other images."""
    features, labels = make(4, noise=1.5)
    flat, own, images = features.reshape(-1, 12), labels.reshape(-1), np.repeat(np.arange(4), 16)
    chosen = choose_by_images(flat, own, images, 2)

    def left_out(l2: float) -> float:
        confusion = np.zeros((2, 2), np.int64)
        for image in range(4):
            rest = images != image
            ridge = Ridge(torch.from_numpy(flat[rest]), [(int(label),) for label in own[rest]], 2)
            confusion += count_confusion(own[~rest], ridge.classify(torch.from_numpy(flat[~rest]), l2).numpy(), 2)
        return mean_iou(confusion)

    found = {2.0**power: left_out(2.0**power) for power in range(-10, 20)}
    assert found[chosen] == max(found.values())
    assert chosen == max(l2 for l2, value in found.items() if value == max(found.values()))
    few = images < 2
    assert choose_by_images(flat[few], own[few], images[few], 2) == FIXED  # too few to choose by


def test_colours_and_places_without_a_model() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    found = colour_features(pixels, (2, 3))
    assert found.shape == (2, 3, 20)
    mean = pixels[4:8, 0:4].reshape(-1, 3).mean(axis=0) / 255
    assert found[1, 0, :5] == pytest.approx([*mean, 0.75, 1 / 6], abs=1e-6)
    assert found[1, 0, 5] == pytest.approx(mean[0] ** 2, abs=1e-6)
    assert len(np.unique(found[0, 0].round(5))) == 20  # no product twice


def test_what_is_ignored_keeps_its_pixels() -> None:
    picture = np.full((2, 2, 3), 100, np.uint8)
    mask = np.array([[0, 1], [IGNORED, 0]])
    found = colour_mask(picture, mask, 2)
    assert (found[1, 0] == 100).all()
    assert (found[0, 0] == found[1, 1]).all()
    assert (found[0, 0] != found[0, 1]).any()
    figure = plot_masks([MaskExample("a.jpg", picture, mask, np.abs(mask))] * 3, 2)
    assert len(figure.axes) == 9
