"""``explain``: place of a row, the rows that a draw of it reads, and whether it can be drawn.

Not here: measures over all rows (``report``), and counts of draws (``_draw_counts``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._core import FLAG_ABSENT
from cpprb_like._rows.row_handles import handles, public_slots, public_stored, slots_of
from cpprb_like.buffers._reading import Opened
from cpprb_like.samplers._base import priorities_of, weights_of

FAR = 10_000  # most rows of an episode that are looked at on each side
TERMINATED, TRUNCATED, ENDED = 2, 4, 1  # flags of ``Ring.windows``


class Explanation(dict[str, Any]):
    """Result of ``explain``: a dict that prints one line for each entry."""

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = []
        for name, value in self.items():
            shown = f"{value:.6g}" if isinstance(value, float) else value
            shown = "; ".join(value) if isinstance(value, list) else shown
            lines.append(f"{name.replace('_', ' ').ljust(width)}  {shown}")
        return "\n".join(lines)


def explain(now: Opened, index: object) -> Explanation:
    """See ``View.explain``; ``now`` has the layers of the source over the rows."""
    number = as_int("index", index)
    found: Explanation = now.buffer.consistently(lambda: _attempt(now, number, index))
    return found


def _attempt(now: Opened, number: int, index: object) -> tuple[NDArray[np.intp], Explanation]:
    ring = now.ring
    if -min(ring.written, ring.capacity) <= number < 0:  # by age
        number += ring.handle_base + ring.span + ring.written
    is_handle = number >= ring.span
    row = number - ring.span - ring.handle_base
    if not is_handle and 0 <= number < public_stored(ring):
        slots = slots_of(ring, np.array([number], np.intp))
        if slots[0] < 0:
            return slots[:0], _gone(number, "its slot was given to a row that is not complete yet")
        row = int(ring.row_ids(slots)[0])
    elif not is_handle or row >= ring.written:
        raise IndexError(
            f"index: expected a slot from 0 to {public_stored(ring) - 1}, or an index of a batch, "
            f"got {index!r}"
        )
    if row < ring.written - ring.stored:
        why = "a later row was written over it" if row >= 0 else "the buffer was cleared"
        return np.empty(0, np.intp), _gone(number, why)
    slots = np.array([row % ring.capacity], np.intp)
    # Only rows that hold a step get a handle. By its age also a row without a step is found.
    return slots, _explain(now, slots, held_step=is_handle and number == index)


def _gone(number: int, why: str) -> Explanation:
    """Explanation of a row that is no longer there."""
    return Explanation(index=number, can_be_drawn=False, reasons=[f"the row is gone: {why}"])


def _explain(now: Opened, slots: NDArray[np.intp], *, held_step: bool) -> Explanation:
    ring, sampler = now.ring, now.sampler
    row = int(ring.row_ids(slots)[0])
    is_absent = bool(ring.flags_at(slots)[0] & FLAG_ABSENT)
    found = Explanation(
        row=row,
        slot=int(public_slots(ring, slots)[0]),
        index=int(handles(ring, slots)[0]),
        environment=row % ring.n_envs,
        age=ring.written - 1 - row,
    )
    reasons = []
    if is_absent:
        reasons.append(
            "it was deleted with its episode, or rewind() forgot it"
            if held_step
            else "it is absent: its environment had no step then, or it was deleted or forgotten"
        )
    else:
        far = min(FAR, (ring.capacity - 1) // ring.n_envs)  # rows of a stream beside this one
        around, counts, ends = ring.windows(slots, far, far)
        before, after = counts[0].tolist()
        ids = ring.row_ids(around[0, far - before : far + after + 1])
        found["episode"] = _rows(ids) + (", and more" if max(before, after) == FAR else "")
        found["step_of_episode"] = before
        found["end"] = _end(int(ends[0]), int(after))
        found["reads"] = _reads(now, ids, before)
        reasons += _why_not(now, slots, before, after, ended=bool(ends[0] & ENDED))
    leader = now.leaders(slots)
    weights, priorities = weights_of(sampler, leader), priorities_of(sampler, slots)
    ruled: Any = None if now.rules is None else now.starts
    rules = now.rules  # without shares and groups a row has a probability of its own
    is_shared = rules is not None and (rules.share is not None or rules.group is not None)
    if ruled is not None:
        found["mass"] = float(ruled.masses(leader)[0])
    if priorities is not None:
        found["priority"] = float(priorities[0])
    if weights is not None:
        among = now.starts.slots()
        every = weights_of(sampler, among)
        chance = float(weights[0]) * found.get("mass", 1.0)
        if ruled is not None and every is not None:
            every = every * ruled.masses(among)
        total = 0.0 if every is None else float(every.sum())
        found["weight"] = float(weights[0])
        if not is_shared:
            found["probability"] = 0.0 if reasons or not total else chance / total
        if weights[0] == 0 and not reasons:
            whose = "its priority" if leader[0] == slots[0] else "the priority of its group"
            reasons.append(f"{whose} is 0")
    elif sampler._is_uniform and len(ring) and not is_absent and not is_shared:
        among = now.starts.slots()
        total = float(len(among) if ruled is None else ruled.masses(among).sum())
        found["probability"] = 0.0 if reasons or not total else found.get("mass", 1.0) / total
    found["can_be_drawn"] = not reasons
    found["reasons"] = reasons or ["all rows that are read of it are there"]
    return found


def _rows(ids: NDArray[np.int64]) -> str:
    first, last = int(ids[0]), int(ids[-1])
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _end(flags: int, after: int) -> str:
    """Text about the end of the episode, as far as its rows are in the buffer."""
    if not flags & ENDED:
        return f"open: {after} rows follow so far"
    how = " and ".join(
        name for bit, name in ((TERMINATED, "terminated"), (TRUNCATED, "truncated")) if flags & bit
    )
    return f"{how or 'ended'} {after} rows later" if after else f"{how or 'ended'} by this row"


def _reads(now: Opened, ids: NDArray[np.int64], place: int) -> list[str]:
    """The rows that a draw reads, by purpose."""
    ring = now.ring
    found = [f"its own values: row {ids[place]}"]
    for name, source in now.buffer.schema.chained_next:
        following = ids[place] + ring.n_envs
        beside = "a value stored beside the rows"
        if following < ring.written:
            beside = f"{source} of row {following}, or {beside} where it differs"
        found.append(f"{name}: {beside}")
    if now.nstep is not None and now.most > 1:
        window = ids[place : place + now.most]
        found.append(f"{now.most}-step returns: {_rows(window)}")
    if now.items is not None:
        item = ids[place : place + now.items.rows]
        found.append(f"sequence of {now.items.rows}: {_rows(item)}, then padding if it is shorter")
    for part in now.parts:
        before, after = part.around
        if before or after:
            window = ids[max(0, place - before) : place + after + 1]
            found.append(f"{part.name}: {_rows(window)}")
        if part.changes:
            found.append(f"{part.name}: changes {', '.join(sorted(part.changes))} in each draw")
    return found


def _why_not(
    now: Opened, slots: NDArray[np.intp], before: int, after: int, *, ended: bool
) -> list[str]:
    """The reasons why a present row cannot be drawn.

    ``before`` and ``after`` are the numbers of rows of its episode before it and behind it.
    """
    ring, row = now.ring, int(now.ring.row_ids(slots)[0])
    if row < ring.first:
        return [f"it is left out: the buffer draws from its newest {ring.size} rows"]
    if ring.absent_at(slots)[0]:
        n = ring.lookahead
        return [f"its {n + 1}-step window is incomplete: {after} of {n} rows follow so far"]
    if now.starts.tell(slots)[0] == 1:
        return []
    if now.complete.tell(slots)[0] == 1:
        assert now.rules is not None  # nothing else leaves out a complete row
        return now.rules.left_out_by(int(slots[0]))
    items = now.items
    wanted = max(now.most - 1, now.after) + (0 if items is None else items.rows - 1)
    if items is not None and before and row // ring.n_envs % items.stride:
        return [f"sequences start at each {items.stride}th row of an environment"]
    if items is not None and items.across:
        return [f"the view needs {wanted} rows of its environment behind it"]
    if not ended and after < wanted:
        return [f"the view needs {wanted} rows behind it; {after} follow so far"]
    if items is not None and after + 1 < items.least:
        return [f"sequences have at least {items.least} rows; {after + 1} are left from here"]
    return [f"the view needs {now.before} rows before it; {before} are left of its episode"]
