"""``RowsToReport``: the rows of a buffer for a report, as they were added, oldest first."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Batch
from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TERMINATED
from cpprb_like.samplers._base import weights_of


class RowsToReport:
    """The rows of a buffer to which no thread writes meanwhile, oldest first, also absent ones."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, ring = buffer, buffer.ring
        # also the distance in rows between two steps of an environment
        self.n_envs: int = ring.n_envs
        self.slots = (np.arange(ring.first, ring.written) % ring.capacity).astype(np.intp)
        flags = ring.flags_at(self.slots)
        # Whether each row holds a step, ends an episode, and ends it by termination.
        self.present = flags & FLAG_ABSENT == 0
        self.ends = self.present & (flags & FLAG_END != 0)
        self.terminated = self.present & (flags & FLAG_TERMINATED == FLAG_TERMINATED)

    def __len__(self) -> int:
        return len(self.slots)

    def structure(self) -> dict[str, Any]:
        """Fields, bytes and options: see ``checkpoint.structure``."""
        from cpprb_like.checkpoint._describe import structure  # noqa: PLC0415 (on demand)

        buffer = self.buffer
        return structure(buffer._layout, buffer.ring.written, type(buffer.sampler).__name__)

    def read(self, rows: slice, names: tuple[str, ...]) -> Batch:
        """Some fields of some rows, each as it was added."""
        from cpprb_like.views._rows import read_fields  # noqa: PLC0415 (on demand)

        # A slice with a step is not contiguous, which reading stacks requires.
        return read_fields(self.buffer.ring, np.ascontiguousarray(self.slots[rows]), names)

    def lengths(self, rows: slice, axis: str) -> NDArray[np.int64]:
        """The numbers of items of some rows along a named axis."""
        from cpprb_like._core import entries_of  # noqa: PLC0415 (on demand)
        from cpprb_like._rows.item_copies import counts_of  # noqa: PLC0415 (on demand)

        ring = self.buffer.ring
        (memory,) = [items for items in ring.items if items.axis == axis]
        entries = entries_of(ring, memory.entry)[self.slots[rows]]
        entries[~self.present[rows]] = 0
        return counts_of(ring, axis, entries)

    def weights(self) -> NDArray[np.float64] | None:
        """The weight of each row that holds a step; None without weights."""
        return weights_of(self.buffer.sampler, self.slots[self.present])

    def not_drawn(self, view: Any = None) -> dict[str, int]:
        """Counts of rows that are never drawn, by reason. A row counts for its first reason."""
        ring = self.buffer.ring
        drawable = np.zeros(ring.capacity, np.bool_)
        drawable[ring.present_slots()] = True
        needed = self.present & ~drawable[self.slots]
        newest = np.arange(len(self)) >= len(self) - ring.lookahead * ring.n_envs
        slots = self.slots[self.present & ~needed]
        leaders = slots if view is None else view._now.leaders(slots)
        weights = weights_of(self.buffer.sampler, leaders)
        if weights is not None:
            slots, leaders = slots[weights > 0], leaders[weights > 0]
        zero = len(self) - int((~self.present).sum()) - int(needed.sum()) - len(slots)
        outside, left_out, rules = 0, 0, ""
        if view is not None and len(slots):
            outside = len(slots)
            with suppress(Exception):  # of a rule, which ``left_by_rules`` tells
                is_start = view._now.complete.tell(slots) == 1
                left_out = int((is_start & (view._now.starts.tell(leaders) != 1)).sum())
                outside -= int(is_start.sum())
            if view._now.rules is not None:
                rules = " and ".join(name for name, *_ in view._now.rules.parts)
        found = {
            "no step, or of a deleted episode": int((~self.present).sum()),
            "waiting for the rest of an n-step return": int((needed & newest).sum()),
            "needed by the rows after": int((needed & ~newest).sum()),
            "priority 0": zero,
            "no start for the layers of the view": outside,
            f"left out by {rules}": left_out,
        }
        return {reason: n for reason, n in found.items() if n}

    def left_by_rules(self, view: Any) -> tuple[int, int, str] | None:
        """How many rows the layers of a view allow, its rules leave, and each rule by itself.

        A rule that raises leaves none: then the error is told.
        """
        rules = None if view is None else view._now.rules
        if rules is None:
            return None
        slots = self.slots[self.present]
        if len(slots):
            slots = slots[view._now.complete.tell(slots) == 1]
        try:  # of a group one row stands for all
            left = int((view._now.starts.tell(slots) == 1).sum()) * rules.group_size
        except Exception as error:  # noqa: BLE001 (of the code of a user)
            raised = f"none can be drawn, as a rule raises {type(error).__name__}: {error}"
            return len(slots), 0, raised
        return len(slots), left, rules.tell_left(slots, left)

    def draws(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts of each row among handles or slots of drawn rows."""
        from cpprb_like._rows.row_handles import find_rows  # noqa: PLC0415 (on demand)

        ring = self.buffer.ring
        slots, _ = find_rows(ring, indexes)
        times = np.bincount(slots[slots >= 0], minlength=ring.capacity)
        found: NDArray[np.int64] = times[self.slots].astype(np.int64)
        return found
