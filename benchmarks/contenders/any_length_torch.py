"""A list of tensors, as programs without a buffer keep values of any length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from contender import Contender
from data import Array, taking_turns
from items import FIELDS, GRAPHS, Rows, fresh_rows, one_answer, rows_of
from measure import Work, statement
from torch.nn.utils.rnn import pad_sequence

from .common import item_memory_case

Row = dict[str, Any]

theirs = Contender(
    "list of torch tensors",
    "A list of dicts of tensors, and random.choices; torch.cat packs them, and "
    "torch.nn.utils.rnn.pad_sequence pads them.",
)


class Recent:
    """The newest rows, in a list, as the middle of a deque is slow to reach."""

    def __init__(self, rows: Sequence[object]) -> None:
        self.rows = list(rows)
        self.oldest = 0

    def add(self, row: object) -> None:
        """In place of the oldest row."""
        self.rows[self.oldest] = row
        self.oldest = (self.oldest + 1) % len(self.rows)

    def sample(self, n: int) -> list[Any]:
        """Random rows."""
        return random.choices(self.rows, k=n)


def tensors(row: dict[str, Array]) -> Row:
    """Copies of the values of a row."""
    return {name: torch.tensor(value) for name, value in row.items()}


def filled(rows: Rows) -> Recent:
    """A list of these rows."""
    return Recent([tensors(row) for row in rows])


def held(kind: str, rows: int) -> Recent:
    """A list of rows of a kind."""
    return filled(rows_of(kind, rows))


def counts_of(rows: list[Row]) -> dict[str, Any]:
    """Numbers of items of each row by axis."""
    fields = {FIELDS[name][0]: name for name in rows[0]}  # the last field of each axis
    return {
        axis: torch.tensor([row[name].shape[-1 if FIELDS[name][1] > 1 else 0] for row in rows])
        for axis, name in fields.items()
    }


def packed(rows: list[Row]) -> Row:
    """A packed batch: values and offsets; ends of edges grow by the offsets of nodes."""
    counts = counts_of(rows)
    batch = {
        name: torch.cat([row[name] for row in rows], 1 if FIELDS[name][1] > 1 else 0)
        for name in rows[0]
    }
    for axis, of_axis in counts.items():
        batch[f"{axis}_offsets"] = torch.cat([of_axis.new_zeros(1), of_axis.cumsum(0)])
    if "edges" in batch:
        batch["edges"] += batch["N_offsets"][:-1].repeat_interleave(counts["E"])
    return batch


def padded(rows: list[Row]) -> Row:
    """A batch that is padded to its longest row, with masks."""
    batch = {}
    for name in rows[0]:
        if FIELDS[name][1] > 1:  # the axis comes last, and it pads the first one
            turned = pad_sequence([row[name].T for row in rows], batch_first=True)
            batch[name] = turned.transpose(1, 2).contiguous()
        else:
            batch[name] = pad_sequence([row[name] for row in rows], batch_first=True)
    for axis, counts in counts_of(rows).items():
        batch[f"{axis}_mask"] = torch.arange(int(counts.max())) < counts[:, None]
    return batch


def adding_graphs(rb: Any, convert: Any = tensors) -> Work:
    """``add`` of the tensors of a graph, others in turn."""
    fresh = taking_turns(fresh_rows(GRAPHS))
    return statement("rb.add(convert(fresh()))", rb=rb, convert=convert, fresh=fresh)


def adding_answer(rb: Any, length: int) -> Work:
    """``add`` of the tensors of an answer."""
    return statement("rb.add(tensors(row))", rb=rb, tensors=tensors, row=one_answer(length))


def packing(rb: Any, n: int) -> Work:
    """A packed batch of random rows."""
    return statement(f"batch = packed(rb.sample({n}))", rb=rb, packed=packed)


def padding(rb: Any, n: int) -> Work:
    """A padded batch of random rows."""
    return statement(f"batch = padded(rb.sample({n}))", rb=rb, padded=padded)


theirs.works_on(
    held,
    item_add_graph=adding_graphs,
    item_add_answer=adding_answer,
    item_packed=packing,
    item_padded=padding,
)
item_memory_case(theirs, filled)
