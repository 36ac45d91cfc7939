"""Rows of values of any length that all contenders store and draw, made from the same seeds.

Rows are packed: the values of all rows of a field lie one behind the other. Not here: steps of one
shape (``data``). NumPy alone is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from data import Array
from numpy.typing import NDArray

Counts = NDArray[np.int64]

FEATURES = 11  # of a node
GRAPHS, REASONING, AGENTS = "graphs", "reasoning", "agents"
LONGEST = 8192  # tokens of an answer
FRESH = 64  # other rows, which are added one by one in a cycle
FIELDS = {  # axis, numbers before the axis, numbers behind it, dtype
    "nodes": ("N", 1, FEATURES, "float32"),
    "edges": ("E", 2, 1, "int64"),
    "weight": ("E", 1, 1, "float32"),
    "ids": ("T", 1, 1, "int32"),
    "logp": ("T", 1, 1, "float32"),
}


@dataclass(frozen=True)
class Rows:
    """Rows of values of any length."""

    kind: str
    counts: dict[str, Counts]  # by axis, of each row
    values: dict[str, Array]  # by field, of all rows

    def __len__(self) -> int:
        return len(next(iter(self.counts.values())))

    def offsets(self, axis: str) -> Counts:
        """Begins of the rows on an axis, and the end of the last one."""
        return np.concatenate([[0], np.cumsum(self.counts[axis])])

    def packed(self, start: int, stop: int) -> dict[str, tuple[Array, Counts]]:
        """Values and offsets of some of the rows, by field."""
        found = {}
        for name, values in self.values.items():
            bounds = self.offsets(FIELDS[name][0])[start : stop + 1]
            items = slice(*bounds[[0, -1]])
            part = values[:, items] if FIELDS[name][1] > 1 else values[items]
            found[name] = part, bounds - bounds[0]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(values.nbytes for values in self.values.values())

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """The rows one by one; the arrays are views."""
        bounds = {axis: self.offsets(axis).tolist() for axis in self.counts}
        for k in range(len(self)):
            yield {
                name: values[:, slice(*bounds[axis][k : k + 2])]
                if outer > 1
                else values[slice(*bounds[axis][k : k + 2])]
                for name, values in self.values.items()
                for axis, outer, *_ in [FIELDS[name]]
            }


def rows_of(kind: str, rows: int, seed: int = 0) -> Rows:
    """So many rows of a kind."""
    rng = np.random.default_rng(seed)
    return graphs(rows, rng) if kind == GRAPHS else tokens(kind, lengths(kind, rows, rng), rng)


def fresh_rows(kind: str) -> list[dict[str, Array]]:
    """Rows to add one by one, each of dense arrays."""
    rows = rows_of(kind, FRESH, seed=1)
    return [{name: np.array(value, order="C") for name, value in row.items()} for row in rows]


def one_answer(length: int) -> dict[str, Array]:
    """A row of so many tokens."""
    return tokens(REASONING, np.array([length]), np.random.default_rng(1)).values


def graphs(rows: int, rng: np.random.Generator) -> Rows:
    """Molecules as in QM9: 18.0 nodes and 37.3 ends of edges on average."""
    nodes = np.clip(np.rint(rng.normal(18.0, 3.0, rows)), 3, 29).astype(np.int64)
    edges = 2 * np.rint(nodes * 1.036 + rng.normal(0.0, 1.0, rows)).astype(np.int64)
    most = np.repeat(nodes, edges)
    ends = (rng.random((2, len(most)), np.float32) * most).astype(np.int64)
    values = {
        "nodes": rng.random((int(nodes.sum()), FEATURES), np.float32),
        "edges": np.minimum(ends, most - 1),
        "weight": rng.random(len(most), np.float32),
    }
    return Rows(GRAPHS, {"N": nodes, "E": edges}, values)


def lengths(kind: str, rows: int, rng: np.random.Generator) -> Counts:
    """Tokens of answers, lognormal up to the longest; or of agents of many turns, about 57,000."""
    if kind == REASONING:
        found = np.clip(rng.lognormal(np.log(1800), 0.9, rows), 16, LONGEST)
    else:
        found = np.clip(rng.normal(57_000, 12_000, rows), 20_000, 100_000)
    return np.asarray(found.astype(np.int64))


def tokens(kind: str, counts: Counts, rng: np.random.Generator) -> Rows:
    """Rows of numbers of tokens and their log-probabilities."""
    total = int(counts.sum())
    values: dict[str, Any] = {
        "ids": rng.integers(0, 150_000, total, np.int32),
        "logp": -rng.random(total, np.float32),
    }
    return Rows(kind, {"T": counts}, values)
