"""A buffer's rows by value, as they are pickled and copied.

Rows in use are views of the buffer's memory, and records go as they lie there, so that pickling
does not copy them first. Not here: the attributes of the buffer (``buffers``) and the memory
(``storage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like.schema import Layout

__all__ = ["load", "save"]


def save(layout: Layout, arena: NDArray[np.uint8], ring: Ring) -> dict[str, Any]:
    """All rows, and what the ring knows of them."""
    stored = ring.stored
    return {
        "layout": layout,
        "state": layout.state(arena).copy(),
        "records": layout.records(arena)[:stored],
        "columns": {number: rows[:stored] for number, rows in _beside_records(layout, arena, ring)},
        "blocks": {name: layout.block(arena, name) for name, _, _ in layout.blocks},
        "chains": [chain.save() for chain in ring.chains],
    }


def load(saved: dict[str, Any], arena: NDArray[np.uint8], ring: Ring) -> None:
    """Fill a fresh ring over fresh memory with what was saved."""
    layout: Layout = saved["layout"]
    stored = len(saved["records"])
    layout.state(arena)[:] = saved["state"]
    layout.records(arena)[:stored] = saved["records"]
    for number, rows in _beside_records(layout, arena, ring):
        rows[:stored] = saved["columns"][number]
    for name, block in saved["blocks"].items():
        layout.block(arena, name)[:] = block
    for chain, chained in zip(ring.chains, saved["chains"], strict=True):
        chain.load(chained)


def _beside_records(
    layout: Layout, arena: NDArray[np.uint8], ring: Ring
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Fields that have rows of their own: their numbers, and the rows."""
    for number, column in enumerate(ring.columns):
        if column.objects is not None:
            yield number, column.objects
        elif column in ring.stored_columns and not layout.in_record(number):
            yield number, layout.rows(arena, number)
