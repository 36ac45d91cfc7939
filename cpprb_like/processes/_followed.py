"""``FollowedShards``: the shards of a replay, as one learner follows them and draws from them.

Each call follows the new rows. A call waits for a shard during an edit, or repairs the shard if its
process has ended. Not here: the rows of one shard (``_shards``), several rings as one
(``_followers``, ``_draws``), and batches (``_learner``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._machine.forks import BUFFER, OneProcess, tell, watch
from cpprb_like._machine.waiting import EDIT_PATIENCE, PAUSE, wait_until
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import DamagedError, NotEnoughDataError
from cpprb_like.limiters._gates import Gate
from cpprb_like.processes._draws import RowNumbers, StartsTogether, WeightsTogether
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import said_by, unless_gone
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._shards import ROWS, WRITER, Reader, mend
from cpprb_like.samplers import Extra, Uniform
from cpprb_like.samplers._rows import Rows

FORKED = "the learner belongs to the parent process; make one in this process: replay.learner()"
Found = TypeVar("Found")
Drawn = tuple[RowNumbers, Extra]  # rows, and further columns of a batch

EDITING = 1e-3  # seconds of an edit after which its process is checked for life
MOST_DRAWN = 64  # greatest number of rows drawn for each row of a batch


class FollowedShards:
    """The shards of a replay, and the draws from their rows.

    ``options`` are those of the buffer of a shard. ``layout`` is a ring with the fields of a shard.
    """

    def __init__(
        self,
        folder: Path,
        paths: list[Path],
        sampler: Any,
        rng: np.random.Generator,
        options: CheckedOptions,
        layout: Ring,
    ) -> None:
        self.paths = paths
        self.sampler = sampler
        self.rng = rng
        self.options = options
        # Reader of the rows of each shard; None before the shard exists.
        self.readers: list[Reader | None] = [None] * len(paths)
        # rows of all shards, as of one ring
        self.group = Followers(len(paths), layout, options.capacity)
        self.gate: Gate | None = None  # gate of the limiter, at which each sample waits
        # weights of rows, if the sampler has priorities
        self.weights: WeightsTogether | None = None
        self._first = FirstPriorities(folder, len(paths), options.size)
        self._saved: dict[int, Any] = {}
        self.group.is_uniform = not sampler.has_priorities
        if sampler.has_priorities:
            self.group.priorities_read = bytes(8 * len(paths))
            self.group.first_counts = self._first.counts
            self.weights = WeightsTogether(self.group)
            sampler.open_together(self.weights)
        self._stuck: set[int] = set()  # shards with an edit that did not end in time
        self._fresh: set[int] = set()  # new shards whose rows were not followed yet
        self._mended_at = -PAUSE
        self.lock: threading.RLock | OneProcess = threading.RLock()  # lock that each call holds
        watch(self.lock, BUFFER)
        self._in_parent = OneProcess(FORKED)
        tell(self._leave)

    def _leave(self) -> None:
        """Refuse calls in a forked child, which would draw the same rows as its parent."""
        self.lock = self._in_parent

    def check_process(self) -> None:
        """Raise ``RuntimeError`` in a forked child."""
        self._in_parent.check()

    def locked(self, call: Callable[..., Found], *arguments: Any) -> Found:
        """``call(*arguments)`` with the lock held."""
        with self.lock:
            return call(*arguments)

    def reader(self, number: int) -> Reader:
        """The rows of a shard that exists."""
        reader = self.readers[number]
        assert reader is not None
        return reader

    # ------------------------------------------------------------------ following

    def follow(self) -> None:
        """Follow the rows and priorities that were published since the last call.

        Shards that are being edited count as empty until the next call.
        """
        self.group.follow_all(self)

    def settle(self, busy: list[int], counts: bytes | None) -> None:
        """Complete ``follow``: new shards, edited shards, and first priorities up to ``counts``."""
        if None in self.readers and self._open_readers():
            busy = self.group.follow()
        self._stuck = self._wait_for(set(busy)) if busy else set()
        for number in self._fresh - self._stuck:
            self._resume(number)
        self._fresh &= self._stuck
        self.group.is_settled = not (self._stuck or self._fresh or None in self.readers)
        self._leave_out_old()
        if counts is not None and counts != self.group.priorities_read:
            self._read_first(counts)

    def _leave_out_old(self) -> None:
        """Hook of subclasses: leave out rows that are too old."""

    def _read_first(self, counts: bytes) -> None:
        """Read the first priorities of rows, up to these counts of each shard, and set them."""
        assert self.group.priorities_read is not None
        read = np.frombuffer(self.group.priorities_read, np.int64).copy()
        stops = np.frombuffer(counts, np.int64)
        for number in np.flatnonzero(read != stops).tolist():
            if self.readers[number] is None or number in self._stuck or number in self._fresh:
                continue  # the rows of this shard are not known yet
            found, priorities = self._first.read(number, int(read[number]), int(stops[number]))
            read[number] = stops[number]
            indexes = self.group.name(number, found)
            wrong = self.group.without_row(indexes)  # of rows that were never followed
            known = np.delete(np.arange(len(indexes)), wrong)
            self.sampler.update_priorities(indexes[known], priorities[known])
        self.group.priorities_read = read.tobytes()

    def _wait_for(self, busy: set[int]) -> set[int]:
        """Wait for shards that are being edited, and return the shards that still are.

        The shard of a dead process is repaired. The edit of a stopped process is waited for in one
        call only.
        """
        began = time.monotonic()

        def is_settled() -> bool:
            nonlocal busy
            if time.monotonic() - began > EDITING:
                self._mend(busy)
            # An edit that begins after this call of ``follow`` concerns the next call.
            busy = busy.intersection(self.group.follow())
            return busy <= self._stuck

        wait_until(is_settled, EDIT_PATIENCE)
        if busy:
            self._mend(busy)
            busy = busy.intersection(self.group.follow())
        return busy

    def _mend(self, busy: set[int]) -> None:
        """Repair the shards whose writer died during an edit."""
        if time.monotonic() < self._mended_at + PAUSE:
            return
        for number in busy:
            if self.reader(number).follower.is_busy:
                mend(self.paths[number], number, self.options)
        self._mended_at = time.monotonic()

    def explained(self, error: NotEnoughDataError) -> NotEnoughDataError:
        """The error, which also names the shards whose rows cannot be drawn now."""
        if not self._stuck:
            return error
        writers = ", ".join(
            f"writer {number} (process {said_by(self.paths[number] / WRITER).get('pid')})"
            for number in sorted(self._stuck)
        )
        return NotEnoughDataError(
            f"{error}; the rows of {writers} cannot be drawn, as it is in the middle of an edit: "
            "was the process stopped?"
        )

    def _open_readers(self) -> bool:
        """Open the shards that exist now; returns whether any is new."""
        before = len(self._fresh)
        for number, path in enumerate(self.paths):
            if self.readers[number] is None and (path / f"{ROWS}.dat").exists():
                with unless_gone(path.parent):
                    reader = Reader(path, Uniform(), self.rng, self.options)
                if self.weights is not None:
                    self.weights.put(number, self.sampler.weights_of(reader.ring))
                self.group.put(number, reader.follower)
                self._fresh.add(number)
                self.readers[number] = reader  # set last, so that an interrupted call is repeated
        return len(self._fresh) > before

    # ------------------------------------------------------------------ saving

    def save(self) -> dict[int, Any]:
        """The priorities of the rows of each shard, by its number: the argument of ``restore``."""
        return {} if self.weights is None else self.weights.save_each()

    def restore(self, saved: Mapping[int, Any]) -> None:
        """Use saved priorities for rows; called before the first shard is opened."""
        self._saved = dict(saved)

    def _resume(self, number: int) -> None:
        """Set the saved priorities of a shard whose rows were just followed for the first time."""
        if number in self._saved and self.weights is not None:
            try:
                self.weights.members[number].restore(self._saved[number], later=True)
            except (AttributeError, LookupError, TypeError) as error:
                raise DamagedError(f"priorities of shard {number}: {error!r}") from error
            del self._saved[number]  # deleted last, so that an interrupted call is repeated

    # ------------------------------------------------------------------ rows that are overwritten

    def choose(self, starts: Rows | None, n: int, options: SampleOptions) -> Drawn:
        """Draw n rows or starts, none older than ``Followers.limits``."""
        # Where rules leave rows out, they leave out the older ones too: see ``RuledTogether``.
        leaves_out = starts is not None and not isinstance(starts, StartsTogether)
        if self.group.limits is not None and not leaves_out:
            rows, extra = self._choose_newer(starts, n, options)
        else:
            rows, extra = self._choose_any(starts, n, options)
        self.group.drawn = rows
        if options.indexes and "indexes" not in extra:
            extra = {**extra, "indexes": self.group.handles(rows)}
        return rows, extra

    def _choose_any(self, starts: Rows | None, n: int, options: SampleOptions) -> Drawn:
        """Draw n rows or starts by the sampler."""
        found: Drawn
        if starts is not None:
            found = self.sampler.draw_starts(starts, n, self.rng, **options.of_sampler)
        elif self.weights is None:
            found = self.group.draw_uniform(n, self.rng, options.replace), {}
        else:
            found = self.sampler.draw(self.group, n, self.rng, **options.of_sampler)
        return found

    def _choose_newer(self, starts: Rows | None, n: int, options: SampleOptions) -> Drawn:
        """Draw more than n rows, and leave out rows older than ``Followers.limits``.

        These rows are not hidden in the rings: they can be drawn again when the actors pause.
        """
        assert self.group.limits is not None
        total = len(self.group)
        most = MOST_DRAWN * n if options.replace else total
        old = sum(
            limit - self.reader(number).follower.first
            for number, limit in self.group.limits.items()
        )
        count = min(most, max(n, 2 * n * total // max(1, total - old)))
        noted = self.sampler.draw_state()
        while True:
            rows, extra = self._choose_any(starts, count, options)
            beyond = np.flatnonzero(self.are_beyond(rows))
            if len(beyond) >= n:
                break
            if count >= most:
                raise NotEnoughDataError(f"cannot sample {n} rows: others are written over")
            vars(self.sampler).update(noted)
            count = min(2 * count, most)
        if len(beyond) > n:
            beyond = self.rng.choice(beyond, n, replace=False)
        return rows[beyond], {name: values[beyond] for name, values in extra.items()}

    def widen(self, margins: dict[int, int]) -> None:
        """Widen the margin of each shard whose followed rows were overwritten."""
        for number, reader in enumerate(self.readers):
            if reader is not None and reader.lost:
                margin = 2 * margins.get(number, 0) + reader.lost
                margins[number] = min(margin, reader.ring.capacity)

    def are_overtaken(self) -> bool:
        """Whether followed rows were overwritten, and there are new ones in their place."""
        readers = [reader for reader in self.readers if reader is not None]
        return any(reader.lost and reader.follower.is_behind for reader in readers)

    def limits_of(self, margins: Mapping[int, int]) -> dict[int, int]:
        """The oldest row of each shard to draw: ``margin`` rows after the overwritten rows.

        At least one row in eight remains.
        """
        limits = {}
        for number, margin in margins.items():
            bound, written = self.reader(number).follower.bound, self.reader(number).ring.written
            limits[number] = bound + min(margin, max(written - bound, 0) * 7 // 8)
        return limits

    def leave_out_lost(self) -> None:
        """Leave out the followed rows that were overwritten."""
        for reader in self.readers:
            if reader is not None and reader.follower.bound > reader.follower.first:
                reader.follower.leave_out(reader.follower.bound)

    def are_beyond(self, rows: RowNumbers) -> NDArray[np.bool_]:
        """A flag for each row that is not older than the limit of its shard."""
        found = np.full(len(rows), True)
        limits = self.group.limits or {}
        for number, places, slots in self.group.split(rows):
            if number in limits:
                found[places] = self.reader(number).ring.row_ids(slots) >= limits[number]
        return found
