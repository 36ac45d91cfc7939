"""A buffer's rows by value, as they are pickled and copied.

Rows in use are views of the buffer's memory, so that pickling does not copy them first. Not here:
the attributes of the buffer (``buffers``) and the memory (``storage``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like.schema import Layout

__all__ = ["load", "save"]


def save(layout: Layout, arena: NDArray[np.uint8], ring: Ring) -> dict[str, Any]:
    """All rows, and what the ring knows of them."""
    stored = ring.stored
    columns = {
        column.name: layout.rows(arena, number)[:stored]
        if column.objects is None
        else column.objects[:stored]
        for number, column in enumerate(ring.columns)
        if column in ring.stored_columns
    }
    return {
        "layout": layout,
        "state": layout.state(arena).copy(),
        "flags": layout.flags(arena)[:stored].copy(),
        "columns": columns,
        "blocks": {name: layout.block(arena, name) for name, _, _ in layout.blocks},
        "chains": [chain.save() for chain in ring.chains],
    }


def load(saved: dict[str, Any], arena: NDArray[np.uint8], ring: Ring) -> None:
    """Fill a fresh ring over fresh memory with what was saved."""
    layout: Layout = saved["layout"]
    stored = len(saved["flags"])
    layout.state(arena)[:] = saved["state"]
    layout.flags(arena)[:stored] = saved["flags"]
    for number, column in enumerate(ring.columns):
        if column.name in saved["columns"]:
            rows = layout.rows(arena, number) if column.objects is None else column.objects
            rows[:stored] = saved["columns"][column.name]
    for name, block in saved["blocks"].items():
        layout.block(arena, name)[:] = block
    for chain, chained in zip(ring.chains, saved["chains"], strict=True):
        chain.load(chained)
