"""The slow, obvious twin of the replay buffer: rows are Python dicts in a Python list.

It takes rows that are already split and converted (one dict of arrays for each step), so that
nothing in it resembles the code that it checks. What the compiled buffer makes of arrays, lists
and scalars is compared with it by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Values = dict[str, Array]

TERMINATED_NAMES = ("terminated", "done")
TRUNCATED_NAMES = ("truncated",)


@dataclass
class Row:
    """One step: a copy of its values, and what is known about it."""

    values: Values
    absent: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def end(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class ReferenceBuffer:
    """A ring of ``capacity`` rows; row ``i`` belongs to stream ``i % n_envs``."""

    capacity: int
    names: list[str]
    n_envs: int = 1
    terminated_names: tuple[str, ...] = TERMINATED_NAMES
    truncated_names: tuple[str, ...] = TRUNCATED_NAMES
    history: list[Row] = field(default_factory=list)

    # ---- writing -------------------------------------------------------------------------

    def add(self, rows: list[Values], present: list[bool] | None = None) -> int:
        """Append ``rows`` and return the slot of the first one."""
        first = self.next_index
        for i, values in enumerate(rows):
            absent = present is not None and not present[i]
            row = Row({name: values[name].copy() for name in self.names}, absent)
            if not absent:
                row.terminated = any(self._set(values, name) for name in self.terminated_names)
                row.truncated = any(self._set(values, name) for name in self.truncated_names)
            self.history.append(row)
        return first

    @staticmethod
    def _set(values: Values, name: str) -> bool:
        return name in values and values[name].size == 1 and bool(values[name].reshape(())[()])

    def on_episode_end(self, env: int | None = None) -> None:
        """Truncate what is open in stream ``env``, or in every stream."""
        for stream in range(self.n_envs) if env is None else [env]:
            steps = [row for row in self.history[stream :: self.n_envs] if not row.absent]
            if steps and not steps[-1].end:
                steps[-1].truncated = True

    def rewind(self, first: int) -> None:
        """The rows from a row id on are absent, and all episodes are cut."""
        for row in self.history[first:]:
            row.absent = True
        self.on_episode_end()

    def clear(self) -> None:
        self.history = []

    # ---- reading -------------------------------------------------------------------------

    @property
    def written(self) -> int:
        return len(self.history)

    @property
    def next_index(self) -> int:
        return self.written % self.capacity

    @property
    def stored(self) -> int:
        """Slots in use, absent rows included."""
        return min(self.written, self.capacity)

    def slots(self) -> dict[int, Row]:
        """The living rows by slot, in slot order; absent rows included."""
        living = range(self.written - self.stored, self.written)
        by_slot = {row_id % self.capacity: self.history[row_id] for row_id in living}
        return dict(sorted(by_slot.items()))

    def steps(self) -> dict[int, Row]:
        """The living rows that hold a step, by slot, in slot order."""
        return {slot: row for slot, row in self.slots().items() if not row.absent}

    def episode_len(self, env: int = 0) -> int:
        """Steps of stream ``env`` since its last end."""
        length = 0
        for row in self.history[env :: self.n_envs]:
            if row.end:
                length = 0
            elif not row.absent:
                length += 1
        return length

    def column(self, name: str, slots: list[int]) -> list[Array]:
        """The values of one field at ``slots``."""
        by_slot = self.slots()
        return [by_slot[slot].values[name] for slot in slots]

    def window(
        self, slot: int, before: int, after: int, starts: str | None = None
    ) -> tuple[list[int], list[int]]:
        """The slots of the rows before and behind one in its episode, both from the near one on."""
        living = range(self.written - self.stored, self.written)
        (row,) = (k for k in living if k % self.capacity == slot)
        stream = [k for k in living if k % self.n_envs == row % self.n_envs]
        steps = [k for k in stream if k == row or not self.history[k].absent]

        def parted(one: int, other: int) -> bool:
            """Whether an episode ends between two rows."""
            if starts is None:
                return self.history[one].end
            return bool(self.history[other].values[starts])

        place = steps.index(row)
        earlier, later = [], []
        for k in range(place, max(place - before, 0), -1):
            if parted(steps[k - 1], steps[k]):
                break
            earlier.append(steps[k - 1] % self.capacity)
        for k in range(place, min(place + after, len(steps) - 1)):
            if parted(steps[k], steps[k + 1]):
                break
            later.append(steps[k + 1] % self.capacity)
        return earlier, later


@dataclass
class ReferenceByteRing:
    """A ring of units: a list with the number of the entry in each unit, or None.

    ``extent`` is the number of units that were used so far.
    """

    units: int
    extent: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)  # place and length, oldest first

    def take(self, n: int) -> int | None:
        """Place of a new entry, which is taken; None while too much of the ring lives."""
        place = self._choose(n)
        if place is not None:
            self.entries.append((place, n))
            self.extent = max(self.extent, place + n)
        return place

    def leave(self) -> int:
        """Remove the oldest entry, and return its length."""
        return self.entries.pop(0)[1]

    def _choose(self, n: int) -> int | None:
        gaps = self._gaps()
        if self.entries:  # behind the newest entry
            place = sum(self.entries[-1])
            if any(start == place and stop - start >= n for start, stop in gaps):
                return place
        for start, stop in gaps:  # the lowest gap of an eighth
            if stop - start >= n and 8 * (stop - start) >= self.extent:
                return start
        end = max((place + length for place, length in self.entries), default=0)
        if end + n <= self.units:  # behind the last entry
            return end
        longest = max(gaps, key=lambda gap: gap[1] - gap[0], default=(0, 0))
        return longest[0] if longest[1] - longest[0] >= n else None

    def _gaps(self) -> list[tuple[int, int]]:
        """Start and stop of each run of free units below the extent, lowest first."""
        taken = {place + k for place, length in self.entries for k in range(length)}
        free = [unit not in taken for unit in range(self.extent)] + [False]
        starts = [k for k, here in enumerate(free) if here and not (k and free[k - 1])]
        return [(start, free.index(False, start)) for start in starts]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Start and stop of each run of entries that lie one behind the other, oldest first."""
        found: list[tuple[int, int]] = []
        for place, length in self.entries:
            if found and found[-1][1] == place:
                found[-1] = found[-1][0], place + length
            else:
                found.append((place, place + length))
        return found
