"""Groups of rows by a key, row by row: a twin of ``Groups``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Group:
    """Rows of a key, by their handles."""

    key: Any
    rows: list[int] = field(default_factory=list)
    left: int = 0  # rows that have left


class SlowGroups:
    """The groups of all rows that were seen."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.open: dict[Any, Group] = {}  # groups that are not complete
        self.of: dict[int, Group] = {}

    def see(self, rows: dict[int, Any]) -> None:
        """Look at the keys of all rows, by handle; new ones in the order in which they came."""
        for row, group in list(self.of.items()):
            if row not in rows or rows[row] != group.key:
                del self.of[row]
                group.left += 1
                if self.open.get(group.key) is group and group.left == len(group.rows):
                    del self.open[group.key]
        for row, key in rows.items():
            if row not in self.of:
                group = self.open.setdefault(key, Group(key))
                group.rows.append(row)
                self.of[row] = group
                if len(group.rows) == self.k:
                    del self.open[key]

    def whole(self) -> list[list[int]]:
        """The groups that can be drawn, in the order of their last rows."""
        groups = {id(one): one for one in self.of.values()}.values()
        return sorted(
            (one.rows for one in groups if len(one.rows) == self.k and not one.left),
            key=lambda rows: rows[-1],
        )
