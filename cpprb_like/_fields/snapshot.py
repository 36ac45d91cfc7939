"""Snapshots: the rows of a buffer by value, for pickling and copying.

Records are saved as arrays of bytes: as views, which pickling does not copy first, or as copies if
other threads may write. Not here: the attributes of the buffer (``buffers._replay``) and the memory
(``arenas``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._core import WORD_HANDLE_BASE, WORD_WRITTEN, Ring
from cpprb_like._fields.item_places import LEFT, Laps, all_places_of, laps_of, living_rows
from cpprb_like._fields.layout import Layout
from cpprb_like._rows.chained import load as load_chain
from cpprb_like._rows.column import load_objects
from cpprb_like._rows.item_ring import make_usable, memory_of

__all__ = ["check_layout", "load", "save"]


def save(layout: Layout, arena: NDArray[np.uint8], ring: Ring, *, copies: bool) -> dict[str, Any]:
    """All rows and the state of the ring, as views of its memory or as ``copies``."""

    def taken(values: NDArray[Any]) -> NDArray[Any]:
        return values.copy() if copies else values

    stored = ring.stored
    saved = {
        "layout": layout,
        "state": layout.state(arena).copy(),
        "records": taken(layout.records(arena)[:stored]),
        "columns": {
            number: taken(rows[:stored]) for number, rows in _beside_records(layout, arena, ring)
        },
        "blocks": {name: taken(layout.block(arena, name)) for name in layout.row_blocks},
        "chains": [chain.save() for chain in ring.chains],
    }
    if layout.schema.axes:
        saved["items"] = [
            (words, [[taken(part) for part in parts] for parts in columns])
            for words, columns in _items(layout, arena, ring)
        ]
    return saved


def check_layout(layout: object) -> Layout:
    """Return the layout; ``ValueError`` unless its numbers follow from its fields and capacity."""
    if not isinstance(layout, Layout):
        raise ValueError(f"layout: expected one, got {type(layout).__name__}")
    layout.options.check()
    sampler_nbytes = as_int("sampler_nbytes", layout.sampler_nbytes, 0)
    if layout != Layout.of(layout.options, sampler_nbytes):
        raise ValueError("layout: its numbers contradict each other")
    return layout


def load(saved: dict[str, Any], arena: NDArray[np.uint8], ring: Ring) -> None:
    """Restore saved rows in a fresh ring; the caller calls ``rebuild(ring)`` afterwards.

    Raises ``ValueError`` if the parts do not fit. ``check_memory`` compares header and rows
    afterwards.
    """
    layout: Layout = saved["layout"]
    state = layout.state(arena)
    _fill("state", state, saved["state"])
    stored = min(int(state[WORD_WRITTEN]), layout.capacity)
    if stored < 0:
        raise ValueError(f"rows written: expected a number, got {stored}")
    _fill("records", layout.records(arena)[:stored], saved["records"])
    for number, rows in _beside_records(layout, arena, ring):
        values, column = saved["columns"][number], ring.columns[number]
        _check(f"column {number}", rows[:stored], values)
        if column.objects is None:
            rows[:stored] = values
        else:
            load_objects(column, values)
    for name in layout.row_blocks:
        _fill(name, layout.block(arena, name), saved["blocks"][name])
    of_ring = int(state[WORD_HANDLE_BASE]), int(state[WORD_WRITTEN])
    for chain, chained in zip(ring.chains, saved["chains"], strict=True):
        load_chain(chain, *of_ring, chained)
    if layout.schema.axes:
        _load_items(saved["items"], layout, arena, ring)


def _items(
    layout: Layout, arena: NDArray[np.uint8], ring: Ring
) -> Iterator[tuple[NDArray[np.int64], list[list[NDArray[np.uint8]]]]]:
    """For each axis the laps and the rows that left, and the items of each column.

    The items of a column are those from the oldest of a living row on, in the order of places.
    They are at most as many as the room, and those of rows that are gone may be among them.
    """
    rows = living_rows(layout, arena)
    for items, memory in zip(layout.item_rings, ring.items, strict=False):  # next axes are last
        words = layout.item_words(arena, items)
        laps = laps_of(words)
        spans = laps.spans(all_places_of(layout, arena, items, rows, laps)[1].first(laps.head))
        columns = [memory_of(memory, number) for number in range(len(memory.columns))]
        parts = [[column[start:stop] for start, stop in spans] for column in columns]
        yield np.array([*laps, words[LEFT]]), parts


def _load_items(saved: list[Any], layout: Layout, arena: NDArray[np.uint8], ring: Ring) -> None:
    """Restore what ``_items`` saved, after the entries of the rows."""
    rows = living_rows(layout, arena)
    rings = ring.items[: len(layout.item_rings)]  # those of next values have no memory of their own
    for items, memory, (given, columns) in zip(layout.item_rings, rings, saved, strict=True):
        _check(f"laps of axis {items.axis!r}", np.empty(4, np.int64), given)
        laps = Laps(*given[:3].tolist())
        if not laps.are_sound(items):
            raise ValueError(f"laps of axis {items.axis!r}: expected ascending ones, got {given}")
        words = layout.item_words(arena, items)
        words[:] = 0, *given[:3], 0, 0, 0, given[3]
        first = all_places_of(layout, arena, items, rows, laps)[1].first(laps.head)
        if not max(0, laps.head - items.room, laps.previous) <= first <= laps.head:
            raise ValueError(f"items of axis {items.axis!r}: expected those of the rows")
        spans = laps.spans(first)
        for (name, nbytes, _), parts in zip(items.columns, columns, strict=True):
            for (start, stop), part in zip(spans, parts, strict=True):
                expected = np.broadcast_to(np.uint8(0), (stop - start, nbytes))  # takes no memory
                _check(f"items of {name!r}", expected, part)
        make_usable(memory, max(stop for _, stop in spans))
        for number, parts in enumerate(columns):
            for (start, stop), part in zip(spans, parts, strict=True):
                memory_of(memory, number)[start:stop] = part


def _fill(what: str, to: NDArray[Any], values: NDArray[Any]) -> None:
    _check(what, to, values)
    to[...] = values


def _check(what: str, to: NDArray[Any], values: NDArray[Any]) -> None:
    if type(values) is not np.ndarray or values.dtype != to.dtype or values.shape != to.shape:
        got = f"{getattr(values, 'dtype', type(values))} of shape {np.shape(values)}"
        raise ValueError(f"{what}: expected {to.dtype} of shape {to.shape}, got {got}")


def _beside_records(
    layout: Layout, arena: NDArray[np.uint8], ring: Ring
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Fields outside of the record: number of the field, and its rows."""
    for number, column in enumerate(ring.columns):
        if column.objects is not None:
            yield number, column.objects
        elif column in ring.stored_columns and not layout.in_record(number):
            yield number, layout.rows(arena, number)
