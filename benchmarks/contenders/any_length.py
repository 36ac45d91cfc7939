"""This package and its floors: values of any length, such as graphs and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from data import taking_turns
from floors.items import ItemFloor
from items import FEATURES, GRAPHS, Rows, fresh_rows, one_answer, rows_of
from measure import Work, compiled, statement

from cpprb_like import ReplayBuffer
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Packed

from .common import item_memory_case
from .uniform import floor, ours

Held = tuple[ReplayBuffer, dict[str, int]]  # a full buffer, and the longest row of each axis

CHUNK = 1000  # rows of an add that fills a buffer
SPARE = 1.02  # room beside the items of the rows, so that no row leaves early


class Empty:
    """A method that takes the fields of a graph and does nothing."""

    def add(self, *, nodes: object, edges: object, weight: object) -> None:
        """Nothing."""


def env_dict(kind: str) -> dict[str, FieldSpec]:
    """The fields of such rows."""
    if kind == GRAPHS:
        return {
            "nodes": {"shape": ("N", FEATURES)},
            "edges": {"shape": (2, "E"), "dtype": np.int64, "counts": "N"},
            "weight": {"shape": ("E",)},
        }
    return {"ids": {"shape": ("T",), "dtype": np.int32}, "logp": {"shape": ("T",)}}


def filled(rows: Rows) -> ReplayBuffer:
    """A full buffer of these rows."""
    room = {axis: int(SPARE * counts.sum()) + 1 for axis, counts in rows.counts.items()}
    rb = ReplayBuffer(len(rows), env_dict(rows.kind), room=room, seed=0)
    for start in range(0, len(rows), CHUNK):
        rb.add(**rows.packed(start, min(start + CHUNK, len(rows))))
    return rb


def held(kind: str, rows: int) -> Held:
    """A full buffer of rows of a kind, and their longest ones."""
    given = rows_of(kind, rows)
    return filled(given), {axis: int(counts.max()) for axis, counts in given.counts.items()}


def adding_graphs_to(rb: Any) -> Work:
    """``add`` of a graph, others in turn."""
    rows = fresh_rows(GRAPHS)
    names = ", ".join(rows[0])
    fields = ", ".join(f"{name}={name}" for name in rows[0])
    fresh = taking_turns(*([row[name] for row in rows] for name in rows[0]))
    return statement(f"{names} = fresh()\nrb.add({fields})", rb=rb, fresh=fresh)


def adding_graphs_floor(held: Held) -> Work:
    """A Python method without a body, and memcpy of the same bytes."""
    call, copy = adding_graphs_to(Empty()), compiled(ItemFloor(held[0]).write(fresh_rows(GRAPHS)))
    return lambda calls: call(calls) + copy(calls)


def adding_answer(held: Held, length: int) -> Work:
    """``add`` of an answer of so many tokens."""
    return statement("rb.add(ids=ids, logp=logp)", rb=held[0], **one_answer(length))


def adding_answer_floor(held: Held, length: int) -> Work:
    """Memcpy of the same bytes."""
    return compiled(ItemFloor(held[0]).write([one_answer(length)]))


def packing(held: Held, n: int) -> Work:
    """``sample`` of a view with packed rows."""
    return statement(f"batch = view.sample({n})", view=held[0].view(Packed()))


def padding(held: Held, n: int) -> Work:
    """``sample``, which pads."""
    return statement(f"batch = rb.sample({n})", rb=held[0])


ours.works_on(
    held,
    item_add_graph=lambda held: adding_graphs_to(held[0]),
    item_add_answer=adding_answer,
    item_packed=packing,
    item_padded=padding,
)
floor.works_on(
    held,
    item_add_graph=adding_graphs_floor,
    item_add_answer=adding_answer_floor,
    item_packed=lambda held, n: compiled(ItemFloor(held[0]).pack(n, held[1])),
    item_padded=lambda held, n: compiled(ItemFloor(held[0]).pad(n, held[1])),
)
item_memory_case(ours, filled)
