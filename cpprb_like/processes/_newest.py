"""Selection of the newest rows of all actors together, by the times of their rows.

Each actor records the time of each row. A learner leaves out the oldest rows of all, as if they had
been deleted; their actor is not involved. Not here: which rows are drawn (``_learner``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Batch, Slots
from cpprb_like._core import FLAG_ABSENT
from cpprb_like._rows.row_handles import find_rows, ordered_at, ordered_slots, without_row
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._learner import Learner, Names
from cpprb_like.processes._shards import TIMES, WORD, Reader
from cpprb_like.processes._words import mapped
from cpprb_like.views._rows import read_fields

FILE = "cleared"  # two words for each shard: its first row after a clear; whether it was ever taken


class NewestShards(FollowedShards):
    """Shards without cleared rows and without rows that are too old."""

    def __init__(self, folder: Path, paths: list[Path], *options: Any) -> None:
        super().__init__(folder, paths, *options)
        self.size: int | None = None  # greatest number of rows of all shards; None: no limit
        self.priorities: str | None = None  # field with the first priorities of rows
        self._read_until = [0] * len(paths)
        self.cleared, self._taken = mapped(folder / FILE, np.int64).reshape(2, -1)
        self.seen, self._known = self.cleared.tobytes(), b""
        self._starts = [0] * len(paths)
        self._times: dict[int, NDArray[np.int64]] = {}

    def settle(self, busy: list[int], counts: bytes | None) -> None:
        """See ``FollowedShards.settle``. Each call may have to leave out rows."""
        super().settle(busy, counts)
        self.group.is_settled = False
        if self.priorities is not None:
            for number, reader in enumerate(self.readers):
                if reader is not None and reader.ring.written > self._read_until[number]:
                    self._read_field(number, reader, self.priorities)

    def _leave_out_old(self) -> None:
        for number, cleared in enumerate(self.cleared.tolist()):
            if self.readers[number] is not None:
                self._leave_out(number, max(cleared, self._starts[number]))
        while self.size is not None and (excess := len(self.group) - self.size) > 0:
            counts = self._oldest(excess).tolist()
            for number, count in enumerate(counts):
                if count:
                    self._leave_out(number, self.reader(number).follower.first + count)

    def _open_readers(self) -> bool:
        taken = self._taken.tobytes()
        if taken == self._known:  # to test the file of a shard takes 5 us
            return False
        found = super()._open_readers()
        self._known = taken
        return found

    def _leave_out(self, number: int, row: int) -> None:
        """Leave out the rows of a shard before this row, permanently."""
        self._starts[number] = row
        reader = self.reader(number)
        if row > reader.follower.first:
            reader.follower.leave_out(row)

    def times_of(self, number: int, slots: Slots) -> NDArray[np.int64]:
        """The times at which the rows in these slots of a shard were added, in nanoseconds."""
        if number not in self._times:
            self._times[number] = mapped(self.paths[number] / TIMES, np.int64)
        return self._times[number][slots]

    def _oldest(self, n: int) -> NDArray[np.intp]:
        """The number of rows of each shard among the n oldest rows, absent rows included."""
        owners, times = [], []
        for number, ring in self.group.usable_rings:
            follower = self.reader(number).follower
            rows = np.arange(follower.first, min(follower.first + n, ring.stop))
            if not len(rows):  # the actor may have been killed before the file of times existed
                continue
            found = self.times_of(number, rows % ring.capacity)
            found[rows < follower.bound] = 0  # their slots have times of newer rows
            owners.append(np.full(len(rows), number))
            times.append(found)
        oldest = np.argsort(np.concatenate(times), kind="stable")[:n]
        return np.bincount(np.concatenate(owners)[oldest], minlength=len(self.paths))

    def _read_field(self, number: int, reader: Reader, field: str) -> None:
        """Read the first priorities of new rows, incomplete n-step rows included."""
        ring, follower, moment = reader.ring, reader.follower, reader.ring.now()
        first = max(self._read_until[number], follower.bound, follower.first)
        rows = np.arange(first, ring.written)
        slots = rows % ring.capacity
        found = read_fields(ring, slots, {field})[field]
        there = rows >= follower.bound  # other rows are overwritten, and are not drawn
        has_one = there & ~np.isnan(found) & (ring.flags_at(slots) & FLAG_ABSENT == 0)
        if not ring.holds(moment, slots[:0]):
            return  # the shard is being edited; the draw and this read are repeated
        if has_one.any():
            given = self.group.handles(self.group.name(number, slots[has_one]))
            self.sampler.update_priorities(given, found[has_one])
        self._read_until[number] = ring.written  # set last, so that an interrupted read is repeated


class NewestLearner(Learner):
    """A learner that reads the newest rows of all actors together, since the last ``clear_all``.

    The clock of the machine decides the age of a row, so the newest rows do not depend on the times
    of calls. A field may hold first priorities: see ``keep``.
    """

    _shards: NewestShards
    FOLLOWED = NewestShards

    @staticmethod
    def make(folder: Path, shards: Sequence[Path]) -> None:
        """Create the words of clears, and the files for times of rows, before the first actor."""
        for shard in shards:
            (shard / TIMES).touch()
        (folder / FILE).write_bytes(bytes(2 * WORD * len(shards)))

    @staticmethod
    def tell_taken(folder: Path, number: int) -> None:
        """Tell all learners that an actor has taken a shard."""
        mapped(folder / FILE, np.int64).reshape(2, -1)[1, number] = 1

    def keep(self, size: int | None, priorities: str | None) -> None:
        """Read only the newest ``size`` rows, or all rows if ``size`` is None.

        The field ``priorities`` has the first priority of each row, or NaN. So a row of a killed
        actor has its priority, which a separate log would not guarantee.
        """
        self._shards.size, self._shards.priorities = size, priorities

    @property
    def is_cleared(self) -> bool:
        """Whether ``clear_all`` was called in any process since this learner was made.

        Then the learner is replaced, as its greatest priority may be of rows that are gone.
        """
        return self._shards.cleared.tobytes() != self._shards.seen

    def clear_all(self) -> None:
        """Make all learners leave out all present rows."""
        shards = self._shards
        with shards.lock:
            shards.follow()
            for number, reader in enumerate(shards.readers):
                if reader is not None:
                    shards.cleared[number] = max(shards.cleared[number], reader.ring.written)

    def next_index(self) -> int:
        """The number of rows since the last clear that can or could be drawn."""
        shards = self._shards
        with shards.lock:
            shards.follow()
            return sum(
                max(0, reader.ring.stop - cleared)
                for reader, cleared in zip(shards.readers, shards.cleared.tolist(), strict=True)
                if reader is not None
            )

    def all_rows(self, shuffle: bool, fields: Names) -> Batch:
        """All rows, shard by shard and oldest first, or shuffled."""
        shards, group = self._shards, self._shards.group

        def choose() -> NDArray[np.intp]:
            found = [group.name(number, ordered_slots(ring)) for number, ring in group.usable_rings]
            rows = np.concatenate([np.empty(0, np.intp), *found])
            rows = rows[shards.are_beyond(rows)]
            return shards.rng.permutation(rows) if shuffle else rows

        return self._read_chosen(choose, fields)

    def rows_at(self, indexes: ArrayLike, fields: Names) -> Batch:
        """The rows with these ``indexes`` of batches, or at these places among all rows.

        Raises ``IndexError`` for rows that do not exist, or not any more.
        """
        given = np.atleast_1d(np.asarray(indexes))
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise TypeError(f"idx: expected integers, got {indexes!r}")
        shards, group = self._shards, self._shards.group

        def choose() -> NDArray[np.intp]:
            rings = [(number, ring) for number, ring in group.usable_rings if len(ring)]
            stops = np.cumsum([0, *(len(ring) for _, ring in rings)])
            rows = np.full(len(given), -1, np.intp)
            for place, (number, ring) in enumerate(rings):
                own = np.flatnonzero((given >= stops[place]) & (given < stops[place + 1]))
                slots = ordered_at(ring, given[own].astype(np.intp) - stops[place])
                rows[own] = group.name(number, slots)
            named = np.flatnonzero(given >= stops[-1])
            for number, places, handles in group.split(given[named].astype(np.int64)):
                if number < len(shards.readers) and shards.readers[number] is not None:
                    ring = shards.reader(number).ring
                    known = np.delete(places, without_row(ring, handles, True))
                    handles = np.delete(handles, without_row(ring, handles, True))
                    slots, there = find_rows(ring, handles)
                    can_draw = ~ring.absent_at(slots)
                    found = group.name(number, slots[can_draw])
                    rows[named[known[there[can_draw]]]] = found
            lost = np.flatnonzero(rows < 0)
            if len(lost):
                raise IndexError(
                    f"idx[{lost[0]}]: expected 0 to {stops[-1] - 1}, or an index of a batch whose "
                    f"row is still there, got {given[lost[0]]}"
                )
            return rows

        return self._read_chosen(choose, fields)
