"""Joined pair by pair, in any order: the groups are those that scipy finds in the graph."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitreous.doctor.union_find import UnionFind


@pytest.mark.parametrize("pairs", [0, 10, 40, 200])
def test_groups_are_the_components_of_the_graph(pairs: int) -> None:
    first, second = np.random.default_rng(pairs).integers(0, 60, (2, pairs))
    groups = UnionFind()
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        assert groups.join(a, b) == groups.find(a) == groups.find(b)
    graph = coo_array((np.ones(pairs), (first, second)), (60, 60))
    _, expected = connected_components(graph, directed=False)
    leaders = [groups.find(item) for item in range(60)]
    assert len(set(leaders)) == len(set(expected))
    assert len({*zip(leaders, expected.tolist(), strict=True)}) == len(set(leaders))
