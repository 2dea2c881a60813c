"""Align two images by small crops and scalings, and measure how well they agree.

Two near duplicates differ by a small crop and a change of scale along each axis, a gain and an offset of brightness. All
six are fitted at once by a few Gauss-Newton steps. Axis-aligned warps are separable: rows and columns are resampled by one
small matrix each, so that thousands of pairs are aligned together by matrix products.

Legend: P pairs, S pixels along a side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SOFT = 0.7  # pixels: the blur under which both images are compared, so that resampling and compression do not show
BROAD = 3.0  # pixels: what varies more slowly than this is left out of the comparison of detail
FAINT = 1.0  # of the mean strength of detail: what is fainter counts less, or the grain of empty parts would decide


@dataclass(frozen=True)
class Windows:
    """For P pairs: the second image's point u (0 to 1) lies at 1/2 + shift + scale * (u - 1/2) of the first."""

    shift: Floats  # (P, 2): y, x
    scale: Floats  # (P, 2)


@dataclass(frozen=True)
class Agreement:
    windows: Windows
    overall: Floats  # (P,): correlation where the two overlap
    detail: Floats  # (P,): the same of fine structure, every part of the image counting alike
    overlap: Floats  # (P,): share of the second image that the first one covers


def align(first: Floats, second: Floats, start: Windows, steps: int = 4) -> Agreement:
    """Fit images (P, S, S) to each other from a window that is right within a few hundredths."""
    side = first.shape[-1]
    shift, scale = start.shift.astype(np.float32), start.scale.astype(np.float32)
    plain, _ = _resampling(np.zeros(1, np.float32), np.ones(1, np.float32), side)
    target = np.asarray(plain @ second @ plain.swapaxes(-1, -2), np.float32)
    centred = (np.arange(side, dtype=np.float32) + 0.5) / side - 0.5
    for _ in range(steps):
        rows, rows_slope = _resampling(shift[:, 0], scale[:, 0], side)
        columns, columns_slope = _resampling(shift[:, 1], scale[:, 1], side)
        across = first @ columns.swapaxes(-1, -2)
        moved = rows @ across
        along_y = rows_slope @ across
        along_x = rows @ (first @ columns_slope.swapaxes(-1, -2))
        weight = _overlap(shift, scale, centred)
        slopes = (along_y, along_y * centred[:, None], along_x, along_x * centred, moved, np.ones_like(moved))
        system = np.stack([s.reshape(len(s), -1) for s in slopes], axis=1)
        weighted = system * weight.reshape(len(weight), 1, -1)
        normal = weighted @ system.swapaxes(-1, -2)
        right = weighted @ target.reshape(len(target), -1, 1)
        # Flat parts give no hold to the fit: a little of the diagonal keeps the solution where it is.
        diagonal = np.einsum("pii->pi", normal)
        diagonal += 1e-3 * diagonal + 1e-6
        solved = np.linalg.solve(normal.astype(np.float64), right.astype(np.float64))[:, :, 0].astype(np.float32)
        gain = np.where(np.abs(solved[:, 4]) < 0.05, 0.05, solved[:, 4])[:, None]
        move = np.clip(solved[:, :4] / gain, -0.04, 0.04)
        shift = np.clip(shift + move[:, 0::2], -0.12, 0.12)
        scale = np.clip(scale + move[:, 1::2], 0.8, 1.25)
    rows, _ = _resampling(shift[:, 0], scale[:, 0], side)
    columns, _ = _resampling(shift[:, 1], scale[:, 1], side)
    moved = np.asarray(rows @ first @ columns.swapaxes(-1, -2), np.float32)
    weight = _overlap(shift, scale, centred)
    overall = _correlation(moved, target, weight)
    detail = _correlation(_detail(moved), _detail(target), weight)
    return Agreement(Windows(shift, scale), overall, detail, weight.mean(axis=(1, 2)))


def _resampling(shift: Floats, scale: Floats, side: int) -> tuple[Floats, Floats]:
    """(P, S, S) matrices that sample a line at the window's pixels through a small bell, and their slope by position."""
    pixels = np.arange(side, dtype=np.float32) + 0.5
    places = side * (0.5 + shift[:, None]) + scale[:, None] * (pixels - side / 2)
    away = pixels - places[:, :, None]
    bell = np.exp(away**2 * np.float32(-0.5 / SOFT**2))
    bell /= bell.sum(axis=2, keepdims=True) + 1e-12
    slope = bell * (away - (bell * away).sum(axis=2, keepdims=True)) * np.float32(side / SOFT**2)
    return bell, slope


def _overlap(shift: Floats, scale: Floats, centred: Floats) -> Floats:
    """(P, S, S): 1 where the first image covers the pixel, 0 outside."""
    places = np.abs(shift[:, :, None] + scale[:, :, None] * centred)
    inside = (places <= 0.5 - 0.5 / len(centred)).astype(np.float32)
    return np.asarray(inside[:, 0, :, None] * inside[:, 1, None, :])


def _detail(images: Floats) -> Floats:
    """Fine structure at an even strength: a silhouette, which all shirts share, must not outweigh what is on the shirt."""
    side = images.shape[-1]
    pixels = np.arange(side, dtype=np.float32)
    bell = np.exp((pixels - pixels[:, None]) ** 2 * np.float32(-0.5 / BROAD**2))
    bell /= bell.sum(axis=1, keepdims=True)
    fine = images - bell @ images @ bell.T
    strength = bell @ fine**2 @ bell.T
    return np.asarray(fine / np.sqrt(strength + FAINT**2 * strength.mean(axis=(1, 2), keepdims=True) + 1e-6))


def _correlation(a: Floats, b: Floats, weight: Floats) -> Floats:
    total = weight.sum(axis=(1, 2), keepdims=True) + 1e-6
    a = (a - (a * weight).sum(axis=(1, 2), keepdims=True) / total) * weight
    b = (b - (b * weight).sum(axis=(1, 2), keepdims=True) / total) * weight
    product, aa, bb = (np.einsum("pij,pij->p", x, y) for x, y in ((a, b), (a, a), (b, b)))
    return np.asarray(product / np.sqrt(aa * bb + 1e-6))
