"""Recovery of a buffer in a file after its process was killed: undoes half-done work.

Rows that were being written over others are left out, as absent rows; what was being edited is
undone; and what the header says of the rows is derived from them. All of this can be interrupted
itself, and done again. Not here: the files (``file_maps``), the overflow of chained fields
(``chained``), and whether memory that no killed process left is sound
(``buffers._checking``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import (
    FLAG_ABSENT,
    FLAG_END,
    FLAG_TRUNCATED,
    WORD_ABSENT_ROWS,
    WORD_EDITS,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
)
from cpprb_like._fields.schema import Layout

__all__ = ["MOST", "Queue", "derive", "end_before", "hide", "open_steps", "recover"]

MOST = 1 << 61  # of what is counted: sums of several such numbers have room in 64 bits
CHUNK = 4096  # rows that are looked at at once
WORD = 8


@dataclass(frozen=True)
class Queue:
    """Side file of a chained field, with values that the rows of the ring do not store."""

    keys: NDArray[np.int64]  # of each place: rows before the last clear + row id; -1 for no value
    reach: int  # rows before the newest whose values are stored
    lag: int  # but none of so many of the newest


def recover(
    layout: Layout,
    arena: Bytes,
    lens_before: NDArray[np.int64],
    log: Bytes,
    queues: Sequence[Queue] = (),
) -> NDArray[np.int64]:
    """Set right what was left half-done, and return the ids of the rows that were left out.

    Raises ``ValueError`` for a header that no process can have left.
    """
    if int(log[:WORD].view(np.int64)[0]):
        _undo(arena, log)
    state = layout.state(arena)
    written, reserved = int(state[WORD_WRITTEN]), int(state[WORD_RESERVED])
    edits = int(state[WORD_EDITS])
    if not (
        0 <= edits < MOST
        and 0 <= written <= reserved <= min(MOST, written + layout.capacity)
        and written % layout.n_envs == 0
    ):
        raise ValueError(
            f"the header was damaged: {written} rows written, {reserved} begun, {edits} edits"
        )
    torn = np.arange(max(0, written - layout.capacity), max(0, reserved - layout.capacity))
    for queue in queues:
        rows = queue.keys - state[WORD_HANDLE_BASE]
        is_kept = (rows >= max(0, reserved - queue.reach)) & (rows < written - queue.lag)
        queue.keys[~is_kept] = -1
    if reserved != written:
        state[-layout.n_envs :] = lens_before
        hide(layout, arena, torn)
        newest = np.arange(max(0, written - layout.n_envs), written)
        for name, _ in layout.schema.next_of:
            marks = layout.block(arena, f"marks of {name}")
            marks[torn % layout.capacity] = marks[newest % layout.capacity] = 0
        for stack in layout.schema.stacks:
            layout.block(arena, f"runs of {stack.name}")[torn % layout.capacity] = stack.depth - 1
    elif edits % 2 == 0:
        return torn
    derive(layout, arena)
    state[WORD_RESERVED] = written
    state[WORD_EDITS] += edits % 2
    return torn


def _undo(arena: Bytes, log: Bytes) -> None:
    """Restore the bytes that the log has."""
    used = int(log[:WORD].view(np.int64)[0])
    entries, place = log[WORD:], 0
    found: list[tuple[int, Bytes]] = []
    while place < used <= len(entries):
        offset, nbytes = entries[place : place + 2 * WORD].view(np.int64).tolist()
        place += 2 * WORD
        if not (0 <= nbytes <= used - place and 0 <= offset <= len(arena) - nbytes):
            raise ValueError("the undo log was damaged")
        found.append((offset, entries[place : place + nbytes]))
        place += -(-nbytes // WORD) * WORD
    if place != used:
        raise ValueError("the undo log was damaged")
    for offset, values in reversed(found):
        arena[offset : offset + len(values)] = values
    log[:WORD] = 0


def hide(layout: Layout, arena: Bytes, rows: NDArray[np.int64]) -> None:
    """Make rows absent; ``derive`` has to follow."""
    layout.flags(arena)[rows % layout.capacity] = FLAG_ABSENT


def end_before(layout: Layout, arena: Bytes, rows: NDArray[np.int64]) -> None:
    """End each episode before its first row that was lost; ``derive`` has to follow.

    ``rows`` are the ids of absent rows that lost their values. Their ends are lost with them, so an
    episode that went on over such a gap would join the steps of two episodes.
    """
    flags, n_envs = layout.flags(arena), layout.n_envs
    written = int(layout.state(arena)[WORD_WRITTEN])
    oldest = max(0, written - layout.capacity)
    is_lost = np.zeros(layout.capacity, np.bool_)
    is_lost[rows % layout.capacity] = True
    for stream in range(n_envs if len(rows) else 0):
        slots = np.arange(oldest + (stream - oldest) % n_envs, written, n_envs) % layout.capacity
        here = flags[slots]
        steps = np.where(here & FLAG_ABSENT == 0, np.arange(len(slots)), -1)
        before = np.maximum.accumulate(steps)[is_lost[slots]]  # the newest step before each
        before = before[before >= 0]
        flags[slots[before[here[before] & FLAG_END == 0]]] |= FLAG_TRUNCATED


def derive(layout: Layout, arena: Bytes) -> None:
    """Count absent rows and open episodes, from the flags as far as these tell."""
    state, flags = layout.state(arena), layout.flags(arena)
    written = int(state[WORD_WRITTEN])
    stored = flags[: min(written, layout.capacity)]
    state[WORD_ABSENT_ROWS] = np.count_nonzero(stored & FLAG_ABSENT)
    for stream in range(layout.n_envs):
        known, most = open_steps(layout, arena, stream)
        place = len(state) - layout.n_envs + stream
        state[place] = min(max(int(state[place]), known), most)


def open_steps(layout: Layout, arena: Bytes, stream: int) -> tuple[int, int]:
    """The steps of the open episode of a stream, by the flags: at least, and at most.

    These differ if it began before the oldest row, or before rows that were left out.
    """
    flags, state = layout.flags(arena), layout.state(arena)
    n_envs, capacity, written = layout.n_envs, layout.capacity, int(state[WORD_WRITTEN])
    oldest = max(0, written - capacity)
    row, known, passed, is_over = written - n_envs + stream, 0, 0, False
    while row >= oldest and not is_over:
        stop = max(oldest - 1, row - CHUNK * n_envs)
        here: Any = flags[np.arange(row, stop, -n_envs) % capacity]
        ends = np.flatnonzero(here & FLAG_END)
        is_over = ends.size > 0
        steps = here[: ends[0] if is_over else None] & FLAG_ABSENT == 0
        known += int(np.count_nonzero(steps))
        passed += len(steps)
        row -= len(here) * n_envs
    if is_over:
        return known, known
    return known, passed if oldest == 0 else written // n_envs
