"""``FollowedShards``: the shards of a replay, as one learner follows them and draws from them.

New rows are taken in. Shards in an edit are waited for, or repaired if their process has ended. Not
here: the rows of one shard (``_shards``), several rings as one (``_followers``, ``_draws``), and
batches (``_learner``).
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
from cpprb_like._fields.row_options import RowOptions
from cpprb_like._machine.forks import BUFFER, OneProcess, tell, watch
from cpprb_like._machine.waiting import EDIT_PATIENCE, PAUSE, wait_until
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import DamagedError, NotEnoughDataError
from cpprb_like.limiters._gates import Gate
from cpprb_like.processes._draws import RowNumbers, StartsTogether, WeightsTogether
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import said_by
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._shards import ROWS, WRITER, Reader, mend
from cpprb_like.samplers._base import Extra
from cpprb_like.samplers._prioritized import ByPriority
from cpprb_like.samplers._uniform import Uniform

__all__ = ["FollowedShards"]

FORKED = "the learner belongs to the parent process; make one in this process: replay.learner()"
Found = TypeVar("Found")
Drawn = tuple[RowNumbers, Extra]  # and further columns of a batch

EDITING = 1e-3  # seconds that an edit may take before its process is looked after
MOST_DRAWN = 64  # times the rows of a batch, in a try that leaves out some


class FollowedShards:
    """The shards of a replay, and the draws from their rows.

    Parameters
    ----------
    folder : Path
        Of the replay.
    paths : list of Path
        The folder of each shard.
    sampler : Sampler
        Which rows are drawn.
    rng : numpy.random.Generator
        The generator of the draws.
    options : RowOptions
        Options of the buffer of a shard.
    layout : Ring
        A ring with the fields of a shard.

    Attributes
    ----------
    sampler, rng
        As given.
    readers : list of (Reader or None)
        The rows of each shard; None as long as it does not exist.
    group : Followers
        The same, as the rows of one ring.
    weights : WeightsTogether or None
        The weights of rows, if the sampler has priorities.
    gate : Gate or None
        That of a limiter, at which each sample waits.
    lock : context manager
        Held during each call.
    """

    def __init__(
        self,
        folder: Path,
        paths: list[Path],
        sampler: Any,
        rng: np.random.Generator,
        options: RowOptions,
        layout: Ring,
    ) -> None:
        self.paths = paths
        self.sampler = sampler
        self.rng = rng
        self.options = options
        self.readers: list[Reader | None] = [None] * len(paths)
        self.group = Followers(len(paths), layout, options.layout().capacity)
        self.gate: Gate | None = None
        self.weights: WeightsTogether | None = None
        self._first = FirstPriorities(folder, len(paths), options.size)
        self._saved: dict[int, Any] = {}
        self.group.is_uniform = not sampler.has_priorities
        if isinstance(sampler, ByPriority):
            self.group.heard = bytes(8 * len(paths))
            self.group.first_counts = self._first.counts
            self.weights = WeightsTogether(self.group, sampler.BY_ROWS)
            sampler.open_together(self.weights)
        self._stuck: set[int] = set()  # shards in an edit that did not end in time
        self._fresh: set[int] = set()  # new shards, whose rows were not followed yet
        self._mended_at = -PAUSE
        self.lock: threading.RLock | OneProcess = threading.RLock()
        watch(self.lock, BUFFER)
        self._in_parent = OneProcess(FORKED)
        tell(self._leave)

    def _leave(self) -> None:
        """Refuse calls in a forked child, which would draw what its parent draws."""
        self.lock = self._in_parent

    def check_process(self) -> None:
        """Raise ``RuntimeError`` in a forked child."""
        self._in_parent.check()

    def locked(self, call: Callable[..., Found], *arguments: Any) -> Found:
        """What a call returns that is made by one thread at a time."""
        with self.lock:
            return call(*arguments)

    def reader(self, number: int) -> Reader:
        """The rows of a shard that exists."""
        reader = self.readers[number]
        assert reader is not None
        return reader

    # ------------------------------------------------------------------ following

    def follow(self) -> None:
        """Take in the rows, and the priorities, that were published since the last call.

        Shards that are being edited count as empty until the next one.
        """
        self.group.follow_all(self)

    def settle(self, busy: list[int], counts: bytes | None) -> None:
        """Complete ``follow``: new shards, edited ones, and first priorities up to ``counts``."""
        if None in self.readers and self._open_readers():
            busy = self.group.follow()
        self._stuck = self._wait_for(set(busy)) if busy else set()
        for number in self._fresh - self._stuck:
            self._resume(number)
        self._fresh &= self._stuck
        self.group.is_settled = not (self._stuck or self._fresh or None in self.readers)
        self._leave_out_old()
        if counts is not None and counts != self.group.heard:
            self._read_first(counts)

    def _leave_out_old(self) -> None:
        """Leave out rows that are too old, in subclasses."""

    def _read_first(self, counts: bytes) -> None:
        """Set the priorities that rows came with, of so many entries of each shard."""
        assert self.group.heard is not None
        heard, stops = (
            np.frombuffer(self.group.heard, np.int64).copy(),
            np.frombuffer(counts, np.int64),
        )
        for number in np.flatnonzero(heard != stops).tolist():
            if self.readers[number] is None or number in self._stuck or number in self._fresh:
                continue  # its rows are not known yet
            found, priorities = self._first.read(number, int(heard[number]), int(stops[number]))
            heard[number] = stops[number]
            indexes = self.group.name(number, found)
            wrong = self.group.without_row(indexes)  # rows that were cleared before a look
            known = np.delete(np.arange(len(indexes)), wrong)
            self.sampler.update_priorities(indexes[known], priorities[known])
        self.group.heard = heard.tobytes()

    def _wait_for(self, busy: set[int]) -> set[int]:
        """Wait for shards that are being edited, and return those that still are.

        What a process that has ended left half-done is set right here. One that was stopped is
        waited for once, until its edit has ended.
        """
        began = time.monotonic()

        def is_settled() -> bool:
            nonlocal busy
            if time.monotonic() - began > EDITING:
                self._mend(busy)
            # As they were followed: an edit that begins a moment later is one of the next call.
            busy = busy.intersection(self.group.follow())
            return busy <= self._stuck

        wait_until(is_settled, EDIT_PATIENCE)
        if busy:
            self._mend(busy)
            busy = busy.intersection(self.group.follow())
        return busy

    def _mend(self, busy: set[int]) -> None:
        """Set right the shards whose writer has ended in an edit, before an actor takes them."""
        if time.monotonic() < self._mended_at + PAUSE:
            return
        for number in busy:
            if self.reader(number).follower.is_busy:
                mend(self.paths[number], number, self.options)
        self._mended_at = time.monotonic()

    def explained(self, error: NotEnoughDataError) -> NotEnoughDataError:
        """The error, with the shards whose rows cannot be drawn for a while."""
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
        """Follow the shards that have come; whether there are some."""
        before = len(self._fresh)
        for number, path in enumerate(self.paths):
            if self.readers[number] is None and (path / f"{ROWS}.dat").exists():
                reader = Reader(path, Uniform(), self.rng, self.options)
                if self.weights is not None:
                    self.weights.put(number, self.sampler.weights_of(reader.ring))
                self.group.put(number, reader.follower)
                self._fresh.add(number)
                self.readers[number] = reader  # last: after an interrupt it is opened again
        return len(self._fresh) > before

    # ------------------------------------------------------------------ saving

    def save(self) -> dict[int, Any]:
        """The priorities of the rows of each shard, by number: the argument of ``go_on``."""
        return {} if self.weights is None else self.weights.save_each()

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """Go on with priorities that were saved; called before the first shard is opened."""
        self._saved = dict(saved)

    def _resume(self, number: int) -> None:
        """Take the saved priorities of a shard whose rows were followed for the first time."""
        if number in self._saved and self.weights is not None:
            try:
                self.weights.members[number].restore(self._saved[number], later=True)
            except (AttributeError, LookupError, TypeError) as error:
                raise DamagedError(f"priorities of shard {number}: {error!r}") from error
            del self._saved[number]  # last: after an interrupt the next call resumes once more

    # ------------------------------------------------------------------ rows that are written over

    def choose(self, starts: StartsTogether | None, n: int, options: SampleOptions) -> Drawn:
        """Draw n rows, or starts, none of them older than ``Followers.limits``."""
        if self.group.limits is not None:
            rows, extra = self._choose_newer(starts, n, options)
        else:
            rows, extra = self._choose_any(starts, n, options)
        self.group.drawn = rows
        if options.indexes and "indexes" not in extra:
            extra = {**extra, "indexes": self.group.handles(rows)}
        return rows, extra

    def _choose_any(self, starts: StartsTogether | None, n: int, options: SampleOptions) -> Drawn:
        """Draw n rows, or starts, as the sampler says."""
        found: Drawn
        if starts is not None:
            found = self.sampler.draw_starts(starts, n, self.rng, **options.of_sampler)
        elif self.weights is None:
            found = self.group.draw_uniform(n, self.rng, options.replace), {}
        else:
            found = self.sampler.draw(self.group, n, self.rng, **options.of_sampler)
        return found

    def _choose_newer(self, starts: StartsTogether | None, n: int, options: SampleOptions) -> Drawn:
        """As ``choose``: more rows are drawn, and those that are older are left out.

        They are not hidden, as they can be drawn again when the actors pause.
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
        """Widen the margin of each shard whose rows were written over since they were followed."""
        for number, reader in enumerate(self.readers):
            if reader is not None and reader.lost:
                margins[number] = reader.margin_after(margins.get(number, 0))

    def limits_of(self, margins: Mapping[int, int]) -> dict[int, int]:
        """The oldest row of each of these shards that is so far from those written over now."""
        return {
            number: self.reader(number).oldest_beyond(margin) for number, margin in margins.items()
        }

    def leave_out_lost(self) -> None:
        """Leave out the rows that are written over now: they are gone."""
        for reader in self.readers:
            if reader is not None and reader.follower.bound > reader.ring.first:
                reader.follower.leave_out(reader.follower.bound)

    def are_beyond(self, rows: RowNumbers) -> NDArray[np.bool_]:
        """Which rows are not older than the limits of their shards."""
        found = np.full(len(rows), True)
        limits = self.group.limits or {}
        for number, places, slots in self.group.split(rows):
            if number in limits:
                found[places] = self.reader(number).ring.row_ids(slots) >= limits[number]
        return found
