"""Recovery of a buffer in a file after a kill of its process, or a crash of the machine.

Rows that were being overwritten become absent, unfinished edits are undone, a rewind is finished,
and counts in the header are derived from the rows again. After a crash the header is that of the
last flush. A recovery can be interrupted and repeated. Not here: the files (``file_maps``), which
rows a crash may have torn (``dirty_chunks``), the overflow of chained fields (``chained``), and
checks of memory that no killed process left (``buffers._checking``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import (
    FLAG_ABSENT,
    FLAG_END,
    FLAG_TRUNCATED,
    WORD_ABSENT_ROWS,
    WORD_EDITS,
    WORD_EPISODES,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
)
from cpprb_like._fields.item_places import LEFT
from cpprb_like._fields.layout import Layout
from cpprb_like._files.dirty_chunks import Flush
from cpprb_like._files.json_codec import MOST
from cpprb_like._rows.edits import REWINDING

__all__ = ["derive", "end_before", "hide", "open_steps", "recover", "restore"]

WORD = 8
FEW = 1 << 13  # newest rows of a stream, which nearly always have the last end


def recover(
    layout: Layout,
    arena: Bytes,
    lens_before: NDArray[np.int64],
    log: Bytes,
) -> NDArray[np.int64]:
    """Undo unfinished work, and return the ids of the rows that are left out.

    Raises ``ValueError`` for a damaged header or log.
    """
    in_force = int(log[:WORD].view(np.int64)[0])
    if in_force == REWINDING:
        _finish_rewind(layout, arena, log)
    elif in_force:
        _undo(arena, log)
    state = layout.state(arena)
    for items in layout.item_rings:  # ``clear`` may have removed the rows, and not their number
        words = layout.item_words(arena, items)
        words[LEFT] = min(words[LEFT], state[WORD_WRITTEN])
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
    if reserved != written:  # otherwise followers may wait for any key that is there
        _forget_values(layout, arena, reserved - layout.capacity)
        state[-layout.n_envs :] = lens_before
        _leave_out(layout, arena, torn)
    elif edits % 2 == 0 and not layout.schema.axes:  # rows that leave early are no edit
        return torn
    derive(layout, arena)
    state[WORD_RESERVED] = written
    state[WORD_EDITS] += edits % 2
    return torn


def restore(layout: Layout, arena: Bytes, flush: Flush) -> NDArray[np.int64]:
    """Restore the header of a flush after a crash; the rows that it may have torn become absent.

    Returns the ids of these rows. An end of an episode that was set after the flush may stay. So
    may the laps of items: they lie in one sector of the disk, and all other rows lived at any time
    since.
    """
    lost = flush.changed()
    words = layout.state(arena)
    words[:] = flush.state
    words[WORD_RESERVED] = words[WORD_WRITTEN]
    words[WORD_EDITS] += words[WORD_EDITS] % 2
    _leave_out(layout, arena, lost)
    end_before(layout, arena, lost)
    derive(layout, arena)
    is_empty = flush.kept_from == words[WORD_WRITTEN]  # the disk may have any keys then
    for aside, extent in zip(layout.asides, flush.extents.tolist(), strict=True):
        layout.words(arena, aside)[0] = 0 if is_empty else extent  # keys behind it are of any time
    _forget_values(layout, arena, flush.kept_from)
    place, tag = 0, int(words[WORD_HANDLE_BASE] + words[WORD_WRITTEN])
    for tags, values in layout.newest(arena):
        tags[:] = tag, -1
        values[0] = flush.latest[place : place + values.shape[1]]
        place += values.shape[1]
    return lost


def _forget_values(layout: Layout, arena: Bytes, oldest: int) -> None:
    """Forget the values that are kept aside for rows before the oldest one, and for lost rows."""
    state = layout.state(arena)
    for aside in layout.asides:
        keys, before = layout.keys(arena, aside), aside.reach - layout.capacity
        rows = keys - state[WORD_HANDLE_BASE]
        keys[(rows < max(0, oldest - before)) | (rows >= state[WORD_WRITTEN] - aside.lag)] = -1


def _leave_out(layout: Layout, arena: Bytes, rows: NDArray[np.int64]) -> None:
    """Hide rows, and clear the marks of next values in the overflow for them and the newest rows.

    The row that followed a newest row may have set its mark, and is lost.
    """
    capacity, written = layout.capacity, int(layout.state(arena)[WORD_WRITTEN])
    hide(layout, arena, rows)
    newest = np.arange(max(0, written - layout.n_envs), written)
    for name, _ in layout.schema.chained_next:
        marks = layout.block(arena, f"marks of {name}")
        marks[rows % capacity] = marks[newest % capacity] = 0
    for stack in layout.schema.stacks:
        layout.block(arena, f"runs of {stack.name}")[rows % capacity] = stack.depth - 1


def _undo(arena: Bytes, log: Bytes) -> None:
    """Restore the bytes in the undo log."""
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


def _finish_rewind(layout: Layout, arena: Bytes, log: Bytes) -> None:
    """Do what ``_rows.changes.c_rewind`` was doing. Counts have to be derived afterwards."""
    row, episodes = log[WORD : 3 * WORD].view(np.int64).tolist()
    state = layout.state(arena)
    written = int(state[WORD_WRITTEN])
    if not max(0, written - layout.capacity) <= row <= written:
        raise ValueError("the undo log was damaged")
    hide(layout, arena, np.arange(row, written), FLAG_TRUNCATED)
    flags, oldest = layout.flags(arena), max(0, written - layout.capacity)
    for stream in range(layout.n_envs):
        slots = np.arange(oldest + (stream - oldest) % layout.n_envs, row, layout.n_envs)
        slots %= layout.capacity
        newest = slots[flags[slots] & FLAG_ABSENT == 0][-1:]
        flags[newest[flags[newest] & FLAG_END == 0]] |= FLAG_TRUNCATED
    state[WORD_EPISODES] = episodes
    state[-layout.n_envs :] = 0
    log[:WORD] = 0


def hide(layout: Layout, arena: Bytes, rows: NDArray[np.int64], ends: int = 0) -> None:
    """Mark rows as absent, with these flags of ends. Counts have to be derived afterwards."""
    layout.flags(arena)[rows % layout.capacity] = FLAG_ABSENT | ends


def end_before(layout: Layout, arena: Bytes, rows: NDArray[np.int64]) -> None:
    """Truncate each episode before its first lost row. Counts have to be derived afterwards.

    ``rows`` are the ids of absent rows that were lost. Their ends were lost too, so an episode
    that continued after a gap could join two episodes.
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
        before = np.maximum.accumulate(steps)[is_lost[slots]]  # the step before each lost row
        before = before[before >= 0]
        flags[slots[before[here[before] & FLAG_END == 0]]] |= FLAG_TRUNCATED


def derive(layout: Layout, arena: Bytes) -> None:
    """Count absent rows and the steps of open episodes, from the flags and the saved counts."""
    state, flags = layout.state(arena), layout.flags(arena)
    written = int(state[WORD_WRITTEN])
    stored = flags[: min(written, layout.capacity)]
    state[WORD_ABSENT_ROWS] = np.count_nonzero(stored & FLAG_ABSENT)
    for stream in range(layout.n_envs):
        known, most = open_steps(layout, arena, stream)
        place = len(state) - layout.n_envs + stream
        state[place] = min(max(int(state[place]), known), most)


def open_steps(layout: Layout, arena: Bytes, stream: int) -> tuple[int, int]:
    """Bounds of the number of steps of a stream's open episode, from the flags.

    The bounds differ if the episode may have begun before the oldest row, or if its first steps
    may have left early.
    """
    n_envs, capacity = layout.n_envs, layout.capacity
    written = int(layout.state(arena)[WORD_WRITTEN])
    oldest = max(0, written - capacity)
    for first in (max(oldest, written - FEW * n_envs), oldest):
        newest_first = np.arange(written - n_envs + stream, first - 1, -n_envs) % capacity
        flags = layout.flags(arena)[newest_first]
        ends = np.flatnonzero(flags & FLAG_END)
        if len(ends):
            break
    has_left = layout.schema.axes and len(ends) and flags[ends[0]] & FLAG_ABSENT
    flags = flags[: ends[0]] if len(ends) else flags
    steps = np.flatnonzero(flags & FLAG_ABSENT == 0)
    known = len(steps)
    if has_left:  # the first steps of the open episode may have left too, for the items of others
        return known, known + len(flags) - int(steps.max(initial=-1)) - 1
    if len(ends):
        return known, known
    return known, len(flags) if oldest == 0 else written // n_envs
