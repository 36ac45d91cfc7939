"""Shards: the rows of one writer in shared memory, the buffer that writes them, and its readers.

A shard is a buffer in a file in shared memory, of the format of ``mmap_prefix``. One process at a
time writes to a shard, and needs no lock for a row. Any number of processes read the shard at the
same time. Not here: the choice of a shard (``_replay``), and batches from several shards
(``_learner``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import (
    FLAG_ABSENT,
    N_STATE_WORDS,
    WORD_EDITS,
    WORD_RESERVED,
    WORD_WRITTEN,
    Beside,
    keep_to_header,
    tell_followers,
)
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.item_places import LEFT, items_in_use
from cpprb_like._fields.layout import Layout
from cpprb_like._files import file_maps
from cpprb_like._files.file_maps import NOTHING_ADDED, Room
from cpprb_like._files.recovery import derive
from cpprb_like._machine.forks import OneProcess
from cpprb_like._machine.generators import generator
from cpprb_like._machine.opening import open_regular
from cpprb_like._rows.edits import Undo, clock, fence
from cpprb_like._rows.row_handles import handles
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import (
    MENDER,
    Closing,
    FileLock,
    Folder,
    is_locked,
    room_for,
)
from cpprb_like.processes._followers import Follower
from cpprb_like.processes._words import mapped
from cpprb_like.samplers import Sampler, Uniform
from cpprb_like.samplers._prioritized import read_priorities

__all__ = ["Actor", "Reader", "ShardFiles"]

ROWS = "rows"  # prefix of the files of a shard
# File with the time of the last row, the number of edits in place, and the numbers of edits of wide
# fields that were begun and that are done.
ADDED = "rows.added"
ADDED_WORDS = 4
TIMES = "rows.times"  # file with the time of each row; only for ``NewestLearner``
WRITER = "writer"  # file whose lock the writing process holds
READ_ONLY = "this is the learner's end of a shared replay: it reads rows, and actors write them"
CLOSED = "the actor was closed: its shard belongs to the next actor that takes it"
FORKED = "the actor belongs to the parent process; take one in this process: replay.actor()"
WORD = 8


class ShardFiles(file_maps.Files):
    """The files of a shard. These are in memory, so they are never flushed.

    The lock of the shard, which a forked child does not inherit, decides which process may write.
    """

    def __init__(self, layout: Layout, prefix: str | Path, mode: file_maps.FileMode) -> None:
        super().__init__(layout, prefix, mode)
        self.one_process = OneProcess(FORKED)

    def _sync(self, path: Path) -> None:
        """Do nothing, as shared memory has no disk."""

    def _tell_torn(self, torn: NDArray[np.int64]) -> None:
        """Do not warn, as kills of processes are usual here."""

    @property
    def changes(self) -> NDArray[np.int64]:
        """Change counter for followers, which read all rows again after a change of it."""
        place = self._places.boot[0] + file_maps.CHANGES_AT
        return self._memory[place : place + 8].view(np.int64)

    @property
    def gone(self) -> NDArray[np.int64]:
        """The row before which rows left early, for followers."""
        if not self.layout.schema.axes:
            return np.zeros(1, np.int64)
        return self._part(self._places.gone).view(np.int64)

    def _lock(self, file: BinaryIO, path: Path) -> None:
        """Do nothing, as the lock of the shard is held already."""

    def _create(self, mode: str) -> Bytes:
        self._sweep()  # the lock of the shard is held
        return super()._create(mode)

    def _make_undo(self) -> Undo:
        lens = self._part(self._places.lens).view(np.int64)
        log = self._part(self._places.log)
        added = self._map_time()
        added[1] += added[1] % 2  # an unfinished edit was undone
        added[3] = added[2]
        self.wide_edits = added[2:]
        return Undo(self.arena, lens, log, added, self._map_times())

    def _map_times(self) -> NDArray[np.int64] | None:
        """The time of each row, by slot; None if the replay has no file for it."""
        path, nbytes = self.path.with_name(TIMES), WORD * self.layout.capacity
        if not path.exists():
            return None
        if path.stat().st_size < nbytes:
            path.write_bytes(bytes(nbytes))
        return mapped(path, np.int64, nbytes)

    def _map_time(self) -> NDArray[np.int64]:
        """The words of the file ``ADDED``; the first two are those of ``Undo``."""
        path = self.path.with_name(ADDED)
        if not path.exists() or path.stat().st_size < ADDED_WORDS * WORD:
            path.write_bytes(bytes(ADDED_WORDS * WORD))  # a missing page would be a SIGBUS
        return mapped(path, np.int64)

    def _recover(self) -> None:
        if not self._is_settled():
            self.changes[:] |= 1  # followers wait; a kill during the repair leaves the counter odd
        super()._recover()
        if self.layout.schema.axes:
            self._hide_gone()

    def _hide_gone(self) -> None:
        """Hide all rows before the one before which rows left, as followers do."""
        state, flags = self.layout.state(self.arena), self.layout.flags(self.arena)
        written = int(state[WORD_WRITTEN])
        rows = np.arange(max(0, written - self.layout.capacity), min(int(self.gone[0]), written))
        slots = rows % self.layout.capacity
        if np.any(flags[slots] & FLAG_ABSENT == 0):
            flags[slots] |= FLAG_ABSENT
            derive(self.layout, self.arena)

    def _is_settled(self) -> bool:
        """Whether the last writer ended between two calls, so that nothing needs a repair."""
        state = self.layout.state(self.arena)
        return (
            self._is_of_this_start
            and not int(self._part(self._places.log)[:WORD].view(np.int64)[0])
            and state[WORD_RESERVED] == state[WORD_WRITTEN]
            and not (state[WORD_EDITS] | self.changes[0]) & 1
        )

    def keep(self, ring: Any) -> None:
        """See ``Files.keep``. Afterwards other processes may follow the shard."""
        super().keep(ring)
        tell_followers(ring, self.changes, self.gone)
        if self.mode != "r+" or self.changes[0] & 1:
            self.changes[:] = (self.changes | 1) + 1

    def _room_for(self, nbytes: int, what: str) -> Room:
        return room_for(nbytes, self.path.parent, what, then=NOTHING_ADDED)

    def flush(self, hold: Callable[..., Any]) -> None:
        """Do nothing, as shared memory has no disk."""

    def flush_at_the_end(self) -> None:
        """As ``flush``."""


class FollowedFiles(ShardFiles):
    """The files of a shard, mapped for reading while another process writes."""

    def _open(self) -> NDArray[np.uint8]:
        with open_regular(self.path, os.O_RDWR) as file:
            self._check(file)
        return mapped(self.path, np.uint8, self._places.nbytes)

    def _recover(self) -> None:
        """Do nothing, as only the writer repairs a shard."""

    def _make_undo(self) -> Any:
        return None


def last_added(shard: Path) -> float | None:
    """Seconds since the last add to a shard; None if no row was added."""
    try:
        then = int(mapped(shard / ADDED, np.int64)[0])
    except (FileNotFoundError, ValueError):  # the file is missing or still empty
        return None
    return max(0.0, (clock() - then) / 1e9) if then else None


class Actor(Closing, ReplayBuffer):
    """The end of a shared replay that adds: ``SharedReplay.actor``.

    A ``ReplayBuffer`` over one shard, with the methods of a buffer: ``add``, ``add_where``,
    ``on_episode_end``, recorders of environments, ``update``, ``clear``, and reads of its own rows.
    Until ``close``, or the end of this object, no other process writes to the shard.

    ``add`` and ``add_where`` also take ``priorities``, one for each row. As in Ape-X (Horgan et
    al., 2018), actors compute the first priorities. Prioritized learners read the priorities with
    the rows. Rows without a priority get the greatest one that the learner knows.

    Attributes
    ----------
    number : int
        Number of the shard, from 0 on.
    """

    number: int
    _takes_priorities = True
    _lock_of_shard: FileLock
    _folder: Folder | None

    def __init__(
        self,
        folder: Path,
        number: int,
        lock: FileLock,
        options: CheckedOptions,
        life: Folder | None = None,
        first: FirstPriorities | None = None,
    ) -> None:
        is_new = not (folder / f"{ROWS}.dat").exists()
        self._begin(options, Uniform(), generator(None), folder / ROWS, "w" if is_new else "r+")
        self.number = number
        self._lock_of_shard = lock
        self._folder = life  # a reference, which keeps the folder open
        self._priorities = first
        fields = enumerate(self.schema.fields)
        # Fields that a save reads from the shard.
        self._wide = {
            one.name
            for number, one in fields
            if one.is_ragged or not self._layout.in_record(number)
        }
        self._end_episodes(0, self.n_envs)

    @staticmethod
    def _files_of(layout: Layout, prefix: str | Path, mode: file_maps.FileMode) -> file_maps.Files:
        with room_for(layout.nbytes, Path(prefix).parent, "the replay", "for each writer"):
            return ShardFiles(layout, prefix, mode)

    def _check_process(self) -> None:
        """Raise ``RuntimeError`` in a forked child, or after ``close``."""
        assert self._files is not None
        self._files.one_process.check()

    def update(self, indexes: ArrayLike, /, **fields: Any) -> None:
        """Replace values of stored rows: see ``ReplayBuffer.update``."""
        if self._wide.isdisjoint(fields):
            super().update(indexes, **fields)
        else:
            self._hold(False, self._update_wide, indexes, fields)

    def _update_wide(self, indexes: ArrayLike, fields: dict[str, Any]) -> None:
        """Update wide fields, which a save reads from the shard: it sees that this was begun."""
        assert isinstance(self._files, ShardFiles)
        wide = self._files.wide_edits
        wide[0] += 1
        fence()
        try:
            super().update(indexes, **fields)
        finally:
            fence()
            wide[1] = wide[0]

    def _read_priorities(self, priorities: ArrayLike) -> Beside:
        """Read the argument ``priorities`` of ``add``, and make room for it in shared memory."""
        self._check_process()
        assert self._priorities is not None
        values = read_priorities(self._in_time_order(priorities))
        self._hold(False, self._priorities.prepare, self.number)  # one thread at a time
        return Beside(len(values), partial(self._publish_priorities, values))

    def _publish_priorities(self, priorities: NDArray[np.float64], first: int, clears: int) -> None:
        """Publish the priorities of rows that were just published."""
        assert self._priorities is not None
        if self.ring.clears == clears:
            newest = priorities[-self.ring.capacity :]
            rows = first + len(priorities) - len(newest) + np.arange(len(newest))
            found = handles(self.ring, rows % self.ring.capacity)
            self._priorities.append(self.number, found, newest)

    def close(self) -> None:
        """Release the shard, whose rows stay. Later writes raise ``RuntimeError``."""
        assert self._files is not None
        try:
            self._files.one_process.close(CLOSED)
            self._have_writers_ask()
            keep_to_header(self.ring, self._layout.state(self._arena).copy())  # of the next writer
        finally:
            self._lock_of_shard.release()
        self._folder = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an actor belongs to its process; hand on the SharedReplay instead")


def is_being_edited(shard: Path, options: CheckedOptions) -> bool:
    """Whether rows of a shard are being edited, or the writer was killed during an edit."""
    files = followed_files(shard, options)
    edits = files.layout.state(files.arena)[WORD_EDITS] | files.changes[0]
    _, _, begun, done = files._map_time().tolist()
    return bool(edits & 1) or begun != done


def followed_files(shard: Path, options: CheckedOptions) -> FollowedFiles:
    """The files of a shard that exists."""
    return FollowedFiles(Layout.of(options), shard / ROWS, "r+")


def stats_of_items(
    layout: Layout, writers: int, shards: Iterable[tuple[Bytes, int]]
) -> dict[str, float]:
    """The numbers that ``stats()`` has of the axes of all shards.

    A shard that exists is its memory, and a row before which all rows left early.
    """
    found: dict[str, float] = {"left_for_room": 0}
    for name, room in layout.schema.rooms.items():
        found |= {f"items of {name}": 0, f"room of {name}": room * writers}
    for arena, first in shards:
        for items in layout.item_rings:
            found["left_for_room"] += int(layout.item_words(arena, items)[LEFT])
            found[f"items of {items.axis}"] += items_in_use(layout, arena, items, first)
    return found


def mend(shard: Path, number: int, options: CheckedOptions) -> bool:
    """Repair a shard whose writer was killed during an edit, as the next actor would.

    False if another process has the shard, or the replay is gone. Cost: the cost of a new actor.
    """
    taken, mender = FileLock(shard / WRITER), FileLock(shard / MENDER)
    if not taken.path.exists() or is_locked(taken.path):
        return False
    try:
        if not (mender.take() and taken.take()):
            return False
        if is_being_edited(shard, options):  # unless another process has repaired it
            Actor(shard, number, taken, options).close()
    finally:
        taken.release()
        mender.release()
    return True


class Reader(ReplayBuffer):
    """The rows of a shard, followed while another process writes them.

    A buffer that cannot be written to; its follower brings new rows.
    """

    def __init__(self, folder: Path, sampler: Sampler, rng: Any, options: CheckedOptions) -> None:
        layout = Layout.of(options, sampler.nbytes_for(options.capacity))
        files = FollowedFiles(layout, folder / ROWS, "r+")
        ring = self._make_ring(
            layout,
            files.arena,
            state=np.zeros(N_STATE_WORDS + layout.n_envs, np.int64),
            flags=np.zeros(layout.capacity, np.uint8),
            frozen=READ_ONLY,
        )
        self._open(layout, files.arena, ring, sampler, rng=rng, _files=None)
        self._have_writers_ask()
        self._added = files._map_time()
        self.follower = Follower(
            ring,
            layout.state(files.arena),
            layout.flags(files.arena),
            files.changes,
            files.gone,
        )

    def edits(self) -> tuple[int, int]:
        """Numbers that change when the writer replaces values of rows."""
        return int(self._added[1]), int(self._added[2])

    @property
    def lost(self) -> int:
        """The number of followed rows that were overwritten since, rows left out included.

        Without the rows that left early before they were followed.
        """
        oldest = max(0, self.ring.written - self.ring.capacity, self.ring.left_before)
        return max(0, self.follower.bound - oldest)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner's rows belong to its process; hand on the SharedReplay instead")
