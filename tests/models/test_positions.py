"""Every position embedding of appendix D.4, and how tables are carried to another grid."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.models.build import create
from vitreous.models.positions import RelativePositions, resize_grid, resize_line, resize_relative, sine_cosine_table

from conftest import randomise, relative

TINY: dict[str, Any] = dict(width=24, depth=3, heads=3, mlp=48, patch=4, image_size=(12, 16), classes=5)


@given(*[st.integers(1, 9)] * 4, st.integers(0, 100))
def test_official_resize_is_scipys_zoom(rows: int, columns: int, new_rows: int, new_columns: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(rows, columns, 5)).astype(np.float32)
    expected = scipy.ndimage.zoom(table, (new_rows / rows, new_columns / columns, 1), order=1)
    found = resize_grid(torch.from_numpy(table).reshape(-1, 5), (rows, columns), (new_rows, new_columns), "bilinear-aligned")
    assert expected.shape == (new_rows, new_columns, 5)
    np.testing.assert_allclose(found.numpy().reshape(expected.shape), expected, atol=1e-6)


def test_the_four_ways_in_use_differ() -> None:
    """On a smooth 14 x 14 table brought to 24 x 24 the peers differ from the authors by several per cent."""
    y, x = torch.meshgrid(torch.linspace(0, 3, 14), torch.linspace(0, 3, 14), indexing="ij")
    table = torch.stack([torch.sin(a * x + b * y) for a, b in itertools.product((0.5, 1.0, 1.5), repeat=2)], dim=-1).reshape(
        196, -1
    )
    official = resize_grid(table, (14, 14), (24, 24), "bilinear-aligned")
    for mode in ("bicubic", "bicubic-antialias", "bicubic-aligned"):
        other = resize_grid(table, (14, 14), (24, 24), mode)  # type: ignore[arg-type]
        assert 0.003 < float((other - official).norm() / official.norm()) < 0.1


KINDS = [
    dict(positions="none"),
    *[
        dict(positions=kind, position_placement=place)
        for kind in ("1d", "2d", "sincos")
        for place in ("stem", "every", "shared")
    ],
    dict(positions="relative", position_placement="every"),
    dict(positions="relative", position_placement="shared"),
    dict(positions="rope", position_placement="shared"),
]


@pytest.mark.parametrize("pool", ["token", "gap"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(k.values()))
def test_every_kind_runs_trains_and_sees_order(kind: dict[str, Any], pool: str) -> None:
    model = create("ViT-B/16", **TINY, **kind, pool=pool)
    randomise(model)
    images = torch.randn(2, 3, 12, 16)
    model(images).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "mask" not in name)
    # Moving patches about changes the outcome if and only if the model has positions.
    moved = images.flip(2).unflatten(2, (3, 4)).flip(3).flatten(2, 3)  # whole rows of patches change places
    same = torch.allclose(model(images), model(moved), atol=1e-5)
    assert same == (kind["positions"] == "none")
    assert model(torch.randn(1, 3, 20, 8)).shape == (1, 5)  # another grid


def test_how_many_tables_there_are() -> None:
    def rows(**kind: Any) -> int:
        return len(
            [n for n, _ in create("ViT-B/16", **TINY, **kind).named_parameters() if "table" in n or n.startswith("positions")]
        )

    assert rows(positions="1d") == 1
    assert rows(positions="1d", position_placement="every") == 3
    assert rows(positions="1d", position_placement="shared") == 1
    assert rows(positions="2d") == 2
    assert rows(positions="relative") == 3
    assert rows(positions="relative", position_placement="shared") == 1
    assert rows(positions="sincos") == rows(positions="rope") == rows(positions="none") == 0


def test_two_dimensional_positions_are_x_then_y() -> None:
    model = create("ViT-B/16", **TINY, positions="2d")
    table = model.positions[0]((3, 4))
    for row, column in itertools.product(range(3), range(4)):
        assert torch.equal(
            table[row * 4 + column], torch.cat([model.positions[0].columns[column], model.positions[0].rows[row]])
        )


def test_relative_positions_by_hand() -> None:
    config = create("ViT-B/16", **TINY, positions="relative").config
    relative_positions = RelativePositions(config.grid, config.width // config.heads, config.prefix_tokens)
    torch.nn.init.normal_(relative_positions.table)
    n = config.tokens
    q = torch.randn(2, 3, n, 8)
    found = relative_positions(q)
    for i, j in ((0, 0), (0, 5), (7, 2), (n - 1, 0), (0, n - 1)):
        expected = (q[:, :, i] * relative_positions.table[i - j + n - 1]).sum(-1) / 8**0.5
        assert torch.allclose(found[:, :, i, j], expected, atol=1e-5)


def test_sine_cosine_by_hand() -> None:
    table = sine_cosine_table((3, 5), 16)
    omega = [1 / 10_000 ** (i / 3) for i in range(4)]
    row, column = 2, 4
    expected = [f(p * w) for p, f in ((column, np.sin), (column, np.cos), (row, np.sin), (row, np.cos)) for w in omega]
    np.testing.assert_allclose(table[row * 5 + column].numpy(), expected, atol=1e-6)


def test_positions_in_every_layer_are_added_before_each() -> None:
    model = create("ViT-B/16", **TINY, position_placement="every").eval()
    randomise(model)
    images = torch.randn(1, 3, 12, 16)
    z, grid = model.embed(images)
    for layer, block in enumerate(model.blocks):
        z = block(z if layer == 0 else z + model.positions[layer].table)
    assert relative(model.tokens(images), z) < 1e-6
    assert grid == (3, 4)


@pytest.mark.parametrize("mode", ["bilinear", "bilinear-aligned"])
@pytest.mark.parametrize(("prefix", "old", "new"), [(1, (3, 4), (5, 3)), (2, (3, 3), (2, 5)), (0, (2, 3), (4, 6))])
def test_a_relative_table_is_resized_pair_by_pair(prefix: int, old: Any, new: Any, mode: Any) -> None:
    """The same by brute force: what each pair of tokens of the new grid had in the old one, averaged over equal offsets."""
    tokens = [prefix + grid[0] * grid[1] for grid in (old, new)]
    table = torch.randn(2 * tokens[0] - 1, 2, dtype=torch.float64)
    aligned = mode.endswith("aligned")

    def at(displacement: int, axis: int) -> float:
        a, b = (old[axis] - 1, max(1, new[axis] - 1)) if aligned else (old[axis], new[axis])
        return float(np.clip(displacement * a / b, -old[axis] + 1, old[axis] - 1))

    def patches(query: int, key: int) -> torch.Tensor:
        (r, c), (s, d) = divmod(query, new[1]), divmod(key, new[1])
        y, x, value = at(r - s, 0), at(c - d, 1), torch.zeros(2, dtype=torch.float64)
        for dr, dc in itertools.product(range(-old[0] + 1, old[0]), range(-old[1] + 1, old[1])):
            weight = max(0.0, 1 - abs(y - dr)) * max(0.0, 1 - abs(x - dc))
            value += weight * table[dr * old[1] + dc + tokens[0] - 1]
        return value

    found: dict[int, list[torch.Tensor]] = {}
    for query, key in itertools.product(range(tokens[1]), repeat=2):
        if query >= prefix and key >= prefix:
            value = patches(query - prefix, key - prefix)
        elif query < prefix and key < prefix:
            value = table[query - key + tokens[0] - 1]
        else:
            sign, leading, patch = (-1, query, key) if query < prefix else (1, key, query)
            own = torch.arange(prefix, tokens[0]) - leading
            value = resize_grid(table[sign * own + tokens[0] - 1], old, new, mode)[patch - prefix]
        found.setdefault(query - key, []).append(value)
    expected = torch.stack([torch.stack(found[offset]).mean(0) for offset in range(-tokens[1] + 1, tokens[1])])
    assert torch.allclose(resize_relative(table, prefix, old, new, mode), expected, atol=1e-12)


def test_a_smooth_function_of_the_column_stays_one_on_a_wider_grid() -> None:
    """cos(2 pi dc / W) is the same for (dr, dc) and (dr + 1, dc - W), so that a table can hold it: once around per row."""

    def wave(rows: int, columns: int) -> torch.Tensor:
        return torch.cos(2 * np.pi * torch.arange(-rows * columns + 1, rows * columns, dtype=torch.float64) / columns)[:, None]

    for old, new in (((16, 16), (24, 24)), ((16, 16), (10, 12)), ((12, 20), (24, 30))):
        found = resize_relative(wave(*old), 0, old, new, "bilinear")
        assert (found - wave(*new)).abs().max() < 0.06  # linear between samples, and held beyond the old grid
        assert (resize_line(wave(*old), len(found), "bilinear") - wave(*new)).abs().max() > 1  # along the line it is lost
    table = torch.randn(2 * 13 - 1, 4)
    assert torch.equal(resize_relative(table, 1, (3, 4), (3, 4), "bilinear"), table)
