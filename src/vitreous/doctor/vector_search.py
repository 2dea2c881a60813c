"""Approximate nearest-neighbour search among unit vectors with random hash trees.

A table is a tree. At each node the vectors are turned by a random rotation and sent to the child of the axis they lie nearest
to (a cross-polytope hash: vectors a small angle apart mostly go the same way). A node is split only while it holds more than
CROWD vectors, so the depth follows the data: dense regions go deeper, and a look-up costs about as much in a million vectors
as in a thousand. What one tree misses another finds.

Legend: N vectors in the forest, Q looked up, D numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

CROWD = 24
AXES = 8  # of each hash: 16 children a node
DEPTH = 12  # vectors that are still together after so many splits are all but equal
_NOWHERE = -1


@dataclass(frozen=True)
class _Level:
    turn: Floats  # (D, AXES)
    child: Indices  # (nodes to be split, 2 * AXES): number of a node in the next level, or _NOWHERE
    split: Indices  # (nodes of this level): row in `child`, or _NOWHERE for a leaf
    leaf: Indices  # (nodes of this level): number of the leaf, or _NOWHERE


@dataclass(frozen=True)
class Tree:
    levels: tuple[_Level, ...]
    members: Indices  # (N,): leaf by leaf, in ascending order within a leaf
    starts: Indices  # (leaves + 1,): where each leaf begins in `members`
    sought: Indices  # (N,): leaf * N + member, for look-ups of members beyond a given one


def build_tree(vectors: Floats, seed: int) -> Tree:
    """The tree over vectors (N, D); another seed gives another tree."""
    random = np.random.default_rng(seed)
    count = len(vectors)
    node = np.zeros(count, np.int64)  # of each vector that is not yet in a leaf
    alive = np.arange(count)
    leaf_of = np.empty(count, np.int64)
    leaves, nodes = 0, 1
    levels = []
    for depth in range(DEPTH + 1):
        sizes = np.bincount(node, minlength=nodes)
        crowded = (sizes > CROWD) & (depth < DEPTH)
        split = np.where(crowded, np.cumsum(crowded) - 1, _NOWHERE)
        leaf = np.where(crowded, _NOWHERE, leaves + np.cumsum(~crowded) - 1)
        leaves += int((~crowded).sum())
        done = ~crowded[node]
        leaf_of[alive[done]] = leaf[node[done]]
        alive, node = alive[~done], node[~done]
        turn = _rotation(random, vectors.shape[1])
        ways = split[node] * (2 * AXES) + _choose_child(vectors[alive], turn)
        taken, node = np.unique(ways, return_inverse=True)
        child = np.full(int(crowded.sum()) * 2 * AXES, _NOWHERE, np.int64)
        child[taken] = np.arange(len(taken))
        nodes = len(taken)
        levels.append(_Level(turn, child.reshape(-1, 2 * AXES), split, leaf))
        if not len(alive):
            break
    members = np.argsort(leaf_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(leaf_of, minlength=leaves))])
    return Tree(tuple(levels), members, starts, leaf_of[members] * count + members)


def lookup(tree: Tree, vectors: Floats) -> Indices:
    """The leaf in which each of vectors (Q, D) would lie; -1 where there is none."""
    found = np.full(len(vectors), _NOWHERE, np.int64)
    alive, node = np.arange(len(vectors)), np.zeros(len(vectors), np.int64)
    for level in tree.levels:
        found[alive] = level.leaf[node]
        inner = level.split[node] != _NOWHERE
        alive, node = alive[inner], node[inner]
        if not len(alive):
            break
        node = level.child[level.split[node], _choose_child(vectors[alive], level.turn)]
        alive, node = alive[node != _NOWHERE], node[node != _NOWHERE]
    return found


def _rotation(random: np.random.Generator, size: int) -> Floats:
    orthogonal, _ = np.linalg.qr(random.standard_normal((size, size)))
    return np.asarray(orthogonal[:, :AXES], np.float32)


def _choose_child(vectors: Floats, turn: Floats) -> Indices:
    turned = vectors @ turn
    axis = np.abs(turned).argmax(axis=1)
    return np.asarray(2 * axis + (turned[np.arange(len(turned)), axis] < 0), np.int64)
