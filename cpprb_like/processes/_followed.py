"""``FollowedShards``: the shards of a replay, as one learner follows them.

New rows are taken in; shards in an edit are waited for, or set right if their process has ended.
Not here: the rows of one shard (``_shards``), and batches (``_learner``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.row_options import RowOptions
from cpprb_like._machine.forks import BUFFER, OneProcess, tell, watch
from cpprb_like._machine.waiting import EDIT_PATIENCE, PAUSE, wait_until
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.limiters._gates import Gate
from cpprb_like.processes._draws import Drawn, Draws, RowNumbers, StartsTogether
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import said_by
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._shards import ROWS, WRITER, Reader, mend
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._uniform import Uniform

__all__ = ["FollowedShards"]

FORKED = "the learner belongs to the parent process; make one in this process: replay.learner()"
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
    readers : list of (Reader or None)
        The rows of each shard; None as long as it does not exist.
    group : Followers
        The same, as the rows of one ring.
    draws : Draws
    gate : Gate or None
        That of a limiter, at which each sample waits. An epoch does not, and does not count.
    lock : context manager
        Held during each call.
    heard : bytes or None
        Of each shard, how many priorities that rows came with were read; None without priorities.
    follows_at_once : bool
        Whether ``Followers.follow`` and ``look_at`` do all that ``follow`` does: no shard is
        missing, fresh or stuck, and rows have no priorities.
    limits : dict
        Of shards that have just lost rows: the oldest row that ``choose`` may give.
    drawn : ndarray or None
        The rows that ``choose`` gave last.
    """

    def __init__(
        self,
        folder: Path,
        paths: list[Path],
        sampler: Sampler,
        rng: np.random.Generator,
        options: RowOptions,
        layout: Ring,
    ) -> None:
        self.folder = folder
        self.paths = paths
        self.rng = rng
        self.options = options
        self.readers: list[Reader | None] = [None] * len(paths)
        self.group = Followers(len(paths), layout, options.layout().capacity)
        self.draws = Draws(sampler, self.group)
        self.gate: Gate | None = None
        self.heard: bytes | None = None
        self._first = FirstPriorities(folder, len(paths), options.size)
        if sampler.has_priorities:
            self.heard = bytes(len(self._first.counts()))
        self._stuck: set[int] = set()  # shards in an edit that did not end in time
        self._fresh: set[int] = set()  # new shards, whose rows were not followed yet
        self.follows_at_once = False
        self.limits: dict[int, int] = {}
        self.drawn: RowNumbers | None = None
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

    def reader(self, number: int) -> Reader:
        """The rows of a shard that exists."""
        reader = self.readers[number]
        assert reader is not None
        return reader

    # ------------------------------------------------------------------ following

    def follow(self) -> None:
        """Take in the rows that were published since the last call.

        Shards that are being edited count as empty until the next one.
        """
        counts = self._first.counts()  # before the rows: each entry is of a row that is published
        if None in self.readers:
            self._open_readers()
        busy = self.group.follow()
        if busy or self._stuck or self._fresh:
            self.look_at(busy)
        if self.heard is not None and counts != self.heard:
            self._hear_first(counts)

    def _hear_first(self, counts: bytes) -> None:
        """Set the priorities that rows came with, of so many entries of each shard."""
        assert self.heard is not None
        heard, stops = np.frombuffer(self.heard, np.int64).copy(), np.frombuffer(counts, np.int64)
        for number in np.flatnonzero(heard != stops).tolist():
            if self.readers[number] is None or number in self._stuck or number in self._fresh:
                continue  # its rows are not known yet
            found, priorities = self._first.read(number, int(heard[number]), int(stops[number]))
            heard[number] = stops[number]
            indexes = self.group.name(number, found)
            wrong = self.draws.wrong(indexes, priorities)  # rows that were cleared before a look
            known = np.delete(np.arange(len(indexes)), wrong)
            self.draws.update(indexes[known], priorities[known])
        self.heard = heard.tobytes()

    def look_at(self, edited: list[int]) -> None:
        """Wait a while for shards that are being edited, and resume those that are new."""
        busy = self._wait_for(set(edited)) if edited else set()
        self._stuck = busy
        for number in self._fresh - busy:
            self.draws.resume(number)
        self._fresh &= busy
        self.follows_at_once = self.heard is None and not (
            self._stuck or self._fresh or None in self.readers
        )

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

    def _open_readers(self) -> None:
        """Follow the shards that have come."""
        for number, path in enumerate(self.paths):
            if self.readers[number] is None and (path / f"{ROWS}.dat").exists():
                reader = Reader(path, Uniform(), self.rng, self.options)
                self.draws.opened(number, reader.ring)
                self.group.put(number, reader.follower)
                self._fresh.add(number)
                self.readers[number] = reader  # last: after an interrupt it is opened again

    # ------------------------------------------------------------------ rows that are written over

    def choose(self, starts: StartsTogether | None, n: int, options: SampleOptions) -> Drawn:
        """Draw n rows, or starts, none of them older than ``limits``."""
        if self.limits:
            rows, extra = self._choose_newer(starts, n, options)
        else:
            rows, extra = self.draws.choose(starts, n, self.rng, options)
        self.drawn = rows
        if options.indexes and "indexes" not in extra:
            extra = {**extra, "indexes": self.group.handles(rows)}
        return rows, extra

    def _choose_newer(self, starts: StartsTogether | None, n: int, options: SampleOptions) -> Drawn:
        """As ``choose``: more rows are drawn, and those that are older are left out.

        They are not hidden, as they can be drawn again when the actors pause.
        """
        total = len(self.group)
        most = MOST_DRAWN * n if options.replace else total
        old = sum(
            limit - self.reader(number).follower.first for number, limit in self.limits.items()
        )
        count = min(most, max(n, 2 * n * total // max(1, total - old)))
        noted = self.draws.sampler.draw_state()
        while True:
            rows, extra = self.draws.choose(starts, count, self.rng, options)
            beyond = np.flatnonzero(self.are_beyond(self.limits, rows))
            if len(beyond) >= n:
                break
            if count >= most:
                raise NotEnoughDataError(f"cannot sample {n} rows: others are written over")
            vars(self.draws.sampler).update(noted)
            count = min(2 * count, most)
        if len(beyond) > n:
            beyond = self.rng.choice(beyond, n, replace=False)
        return rows[beyond], {name: values[beyond] for name, values in extra.items()}

    def oldest_of(self, margins: Mapping[int, int]) -> dict[int, int]:
        """The oldest row of each of these shards that is so far from those written over now."""
        limits = {}
        for number, margin in margins.items():
            reader = self.reader(number)
            reader.leave_out()
            limits[number] = reader.oldest_beyond(margin)
        return limits

    def are_beyond(self, limits: Mapping[int, int], rows: RowNumbers) -> NDArray[np.bool_]:
        """Which rows are not older than the limits of their shards."""
        found = np.full(len(rows), True)
        for number, places, slots in self.group.split(rows):
            if number in limits:
                found[places] = self.reader(number).ring.row_ids(slots) >= limits[number]
        return found
