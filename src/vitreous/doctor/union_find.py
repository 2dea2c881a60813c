"""Disjoint sets (union-find) over hashable items."""

from __future__ import annotations


class UnionFind:
    """Items are numbers; each is alone until it is joined to another."""

    def __init__(self) -> None:
        self._leader: dict[int, int] = {}

    def find(self, item: int) -> int:
        """The one that stands for the item's whole group."""
        while self._leader.setdefault(item, item) != item:
            self._leader[item] = self._leader[self._leader[item]]  # shortens the way for the next who asks
            item = self._leader[item]
        return item

    def join(self, first: int, second: int) -> int:
        """Make one group of the two; the first one's leader leads it."""
        leader = self.find(first)
        self._leader[self.find(second)] = leader
        return leader
