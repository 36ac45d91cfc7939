"""``Learner``: batches from the shards of a shared replay, as from one buffer.

Not here: the rows of a shard (``_shards``), how draws are divided among shards (``_draws``), and
who writes rows (``_replay``).
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._fields.schema import read_columns
from cpprb_like._machine.drawn_ahead import States, live_state, state_of_generator
from cpprb_like._machine.forks import BUFFER, OneProcess, tell, watch
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.waiting import wait_until
from cpprb_like._rows.column import Column
from cpprb_like.buffers._replay import ReplayBuffer, check_columns
from cpprb_like.buffers._source import Batch, ColumnSpec, if_prioritized
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._attempt import attempt
from cpprb_like.processes._draws import RowNumbers, copied, draws_of
from cpprb_like.processes._first_priorities import FirstPriorities
from cpprb_like.processes._folder import FileLock, Folder, said_by
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._learner_view import LearnerView
from cpprb_like.processes._saving import SavedLearner
from cpprb_like.processes._sharded import Names, Sharded
from cpprb_like.processes._shards import ROWS, WRITER, Reader, mend
from cpprb_like.processes._update_counts import UpdateCounts
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._epoch import Epoch
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.schedules import Schedule
from cpprb_like.views._layer import Layer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Learner"]

FORKED = "the learner belongs to the parent process; make one in this process: replay.learner()"
EDITING = 1e-3  # seconds that an edit may take before its process is looked after ...
PATIENCE = 1.0  # ... and that it is waited for: 20 ms a million rows, but a stopped process goes on
MEND_PAUSE = 0.01  # seconds at least between two looks at whether the process is there that edits


class Learner(Sharded):
    """The end of a shared replay that draws: ``SharedReplay.learner``.

    A ``Source`` of the rows of all actors: what is drawn has the distribution of one buffer that
    holds them all, and the same columns. It has a sampler, priorities and a generator of its own,
    so several learners do not disturb each other, nor the actors.

    Attributes
    ----------
    number : int
        Of the learner, from 0 on.
    sampler : Sampler
        Which rows are drawn.
    rng : numpy.random.Generator
        The generator in use.

    Notes
    -----
    *Uniform*: each row of all shards has the same probability.

    *Prioritized*: rows have the probabilities, importance-sampling weights and strata that one
    buffer with the rows of all shards gives them; new rows get the greatest priority that this
    learner knows. ``indexes`` are always handles, as with ``check_for_update``.

    *RankBased*: a shard is drawn by the number of its rows, and in it a row by its rank among the
    rows of that shard. Importance-sampling weights correct for the probabilities of both.

    Other samplers raise ``TypeError``: the rows of several processes have no common order of age.

    The same seed, and the same rows that came between the same calls, give the same batches.

    Any number of threads may draw and update. A learner belongs to its process, and is not
    pickled: hand on the ``SharedReplay``. In a forked child its methods raise ``RuntimeError``.

    Examples
    --------
    >>> from cpprb_like.processes import SharedReplay
    >>> from cpprb_like.samplers import Prioritized
    >>> replay = SharedReplay(1000, {"x": {"shape": ()}}, writers=2)
    >>> with replay.actor() as one, replay.actor() as other:
    ...     _ = one.add(x=[0, 1]), other.add(x=[10, 11, 12])
    >>> learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
    >>> batch = learner.sample(5)
    >>> sorted(batch["x"].tolist()), batch["weights"].tolist()
    ([0.0, 1.0, 10.0, 11.0, 12.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    >>> learner.update_priorities(batch["indexes"], batch["x"])
    >>> learner.get_max_priority()
    12.0
    """

    def __init__(
        self,
        folder: Folder,
        shards: list[Path],
        number: int,
        lock: FileLock,
        sampler: Sampler,
        seed: Seed,
        options: Mapping[str, Any],
    ) -> None:
        check_columns(sampler, options["env_dict"])
        self._folder = folder
        self._membership = lock
        self.number = number
        self.rng = generator(seed)
        self.sampler = sampler
        self._options = options
        self._model = self._model_of(options["n_envs"])
        self._shards = shards
        self._readers: list[Reader | None] = [None] * len(shards)
        self._group = Followers(len(shards))
        self._draws = draws_of(sampler, self._group)
        self._choose = self._draws.of_all_rows()
        self._changing = self._draws if self._draws.changes else None
        self._first = FirstPriorities(folder.path, options["size"])
        self._first_heard = bytes(len(self._first.counts())) if sampler.has_priorities else None
        self._counts = UpdateCounts(folder.path, number)
        self._counts.tell(0, 0)
        self._stuck: set[int] = set()  # shards in an edit that did not end in time
        self._mended_at = -MEND_PAUSE
        self._fresh: set[int] = set()  # shards that have come, and have not been followed yet
        self._lock: threading.RLock | OneProcess = threading.RLock()
        watch(self._lock, BUFFER)
        self._in_parent = OneProcess(FORKED)
        tell(self._leave)
        # All shards have the same layout, so without n-step returns a batch is read in one pass.
        self._columns = self._model.ring.columns if self._model._nstep is None else None
        self._at_once: tuple[Column, ...] | None = None  # the same while no shard is waited for

    def _leave(self) -> None:
        """In a forked child it would draw what its parent draws: nobody can use it there."""
        self._lock = self._in_parent

    def _model_of(self, size: int) -> ReplayBuffer:
        """A buffer as each shard is, without rows."""
        return ReplayBuffer(**dict(self._options, size=size), sampler=Uniform())

    @property
    def _learner(self) -> Learner:
        return self

    # ------------------------------------------------------------------ shards

    def _reader(self, number: int) -> Reader:
        """The rows of a shard that is there."""
        reader = self._readers[number]
        assert reader is not None
        return reader

    def _follow(self) -> None:
        """Take in the rows that were published since the last call.

        Shards that are being edited count as empty until the next one.
        """
        counts = self._first.counts()  # before the rows: each entry is of a row that is published
        if None in self._readers:
            self._open_readers()
        busy = self._group.follow()
        if busy or self._stuck or self._fresh:
            self._look_at(busy)
        if self._first_heard is not None and counts != self._first_heard:
            self._hear_first(counts)

    def _hear_first(self, counts: bytes) -> None:
        """Set the priorities that rows came with, of so many entries of each shard."""
        assert self._first_heard is not None
        heard, stops = (
            np.frombuffer(self._first_heard, np.int64).copy(),
            np.frombuffer(counts, np.int64),
        )
        for number in np.flatnonzero(heard != stops).tolist():
            if self._readers[number] is None or number in self._stuck or number in self._fresh:
                continue  # its rows are not known yet
            found, priorities = self._first.read(number, int(heard[number]), int(stops[number]))
            heard[number] = stops[number]
            indexes = found << self._group.bits | number
            wrong = self._draws.wrong(indexes, priorities)  # rows that were cleared before a look
            known = np.delete(np.arange(len(indexes)), wrong)
            self._draws.update(indexes[known], priorities[known])
        self._first_heard = heard.tobytes()

    def _look_at(self, edited: list[int]) -> None:
        """Wait a while for shards that are being edited, and resume those that are new."""
        busy = self._wait_for(set(edited)) if edited else set()
        self._stuck = busy
        for number in self._fresh - busy:
            self._draws.resume(number)
        self._fresh &= busy
        is_settled = not (self._stuck or self._fresh or None in self._readers)
        self._at_once = self._columns if is_settled else None

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
            busy = busy.intersection(self._group.follow())
            return busy <= self._stuck

        wait_until(is_settled, PATIENCE)
        if busy:
            self._mend(busy)
            busy = busy.intersection(self._group.follow())
        return busy

    def _mend(self, busy: set[int]) -> None:
        """Set right the shards whose writer has ended in an edit, before an actor takes them."""
        if time.monotonic() < self._mended_at + MEND_PAUSE:
            return
        for number in busy:
            if self._reader(number).follower.is_busy:
                mend(self._shards[number], number, self._options)
        self._mended_at = time.monotonic()

    def _explained(self, error: NotEnoughDataError) -> NotEnoughDataError:
        """The error, with what is known of rows that cannot be drawn for a while."""
        if not self._stuck:
            return error
        writers = ", ".join(
            f"writer {number} (process {said_by(self._shards[number] / WRITER).get('pid')})"
            for number in sorted(self._stuck)
        )
        return NotEnoughDataError(
            f"{error}; the rows of {writers} cannot be drawn, as it is in the middle of an edit: "
            "was the process stopped?"
        )

    def _open_readers(self) -> None:
        """Follow the shards that have come."""
        for number, shard in enumerate(self._shards):
            if self._readers[number] is None and (shard / f"{ROWS}.dat").exists():
                reader = Reader(shard, Uniform(), self.rng, self._options)
                self._draws.opened(number, reader.ring)
                self._group.put(number, reader.follower)
                self._fresh.add(number)
                self._readers[number] = reader  # last: after an interrupt it is opened again

    # ------------------------------------------------------------------ reading

    def _draw_rows(
        self, replace: bool, beta: float | Schedule | None, n: int
    ) -> tuple[RowNumbers, Extra]:
        return self._choose(self.rng, replace, beta, n)

    def _allow(
        self,
        n: int,
        draw: Callable[..., Batch],
        *arguments: Any,
    ) -> Batch:
        """Draw a batch of n items of a view when it may be drawn."""
        batch = draw(*arguments)
        self._counts.drew(n)
        return batch

    def view(self, *layers: Layer) -> LearnerView:
        """The rows of all shards, read in another way: see ``ReplayBuffer.view``.

        Parameters
        ----------
        *layers : NStep, Sequences, FrameStacks or Hindsight
            As there. What belongs together lies in one stream of one shard: a sequence begins and
            ends within it.

        Returns
        -------
        LearnerView
            It draws from this learner's shards, with its sampler and its generator.

        Raises
        ------
        TypeError, ValueError
            A layer is none, comes twice, or does not fit the fields.

        Notes
        -----
        Cost of a batch: that of one of each shard that it has rows of.

        Examples
        --------
        >>> from cpprb_like.processes import SharedReplay
        >>> from cpprb_like.views import Sequences
        >>> fields = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
        >>> replay = SharedReplay(100, fields, writers=2)
        >>> with replay.actor() as actor:
        ...     actor.add(x=range(10), done=[False] * 9 + [True])
        0
        >>> view = replay.learner(seed=0).view(Sequences(4, stride=5))
        >>> sorted({tuple(row) for row in view.sample(20)["x"].tolist()})
        [(0.0, 1.0, 2.0, 3.0), (5.0, 6.0, 7.0, 8.0)]
        """
        return LearnerView(self, layers)

    def _draw(
        self,
        replace: bool,
        beta: float | Schedule | None,
        n: int,
        names: Names,
        arrays: Batch | None,
        indexes: bool,
    ) -> Batch:
        columns = self._at_once
        if self._first_heard is not None and self._first.counts() != self._first_heard:
            with self._lock:
                self._follow()
        if columns is not None:
            if names is not None:
                columns = read_columns(names, columns) or columns
            given = None if arrays is None else list(arrays.values())
            with self._lock:
                batch = attempt(
                    self._group, self._look_at, self._choose, self.rng, replace, beta, n, columns,
                    given, indexes, self._changing,
                )  # fmt: skip
            if batch is not None:
                self._counts.drew(n)
                return batch
        batch = super()._draw(replace, beta, n, names, arrays, indexes)
        self._counts.drew(n)
        return batch

    def _take(
        self, rows: RowNumbers, names: Names, arrays: Batch | None, located: bool
    ) -> tuple[int, Batch]:
        if self._columns is None or len(rows) == 0:
            return super()._take(rows, names, arrays, located)
        columns = self._columns if names is None else read_columns(names, self._columns)
        assert columns is not None
        given = None if arrays is None else list(arrays.values())
        return self._group.read(rows, columns, given)

    def _read_part(
        self,
        number: int,  # noqa: ARG002 (for views)
        reader: Reader,
        slots: Slots,
        names: Names,
        located: bool,  # noqa: ARG002
    ) -> Batch | None:
        return reader.read_at(slots, names)

    def _epoch_of(
        self,
        number: int,  # noqa: ARG002
        reader: Reader,
        rng: np.random.Generator | None,
    ) -> tuple[int, Callable[[int], Slots]]:
        return len(reader.ring), Epoch(reader.ring, rng).take

    def _there(self, number: int, slots: Slots) -> NDArray[np.bool_]:
        return ~self._reader(number).ring.absent_at(slots)

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, Names]:
        if fields is None:
            return self._model._check_batch_size(batch_size), None
        return self._model._read_batch_size(batch_size, fields)

    def _draw_states(self) -> States:
        yield self.rng, live_state(self.rng)
        yield from self._draws.states()

    def _save(self) -> SavedLearner:
        """What it has of its own, as it is now, and before batches that were drawn ahead."""
        with self._lock:
            self._follow()
            rng = copy.deepcopy(self.rng)
            rng.bit_generator.state = state_of_generator(self.rng)
            heard = np.frombuffer(self._first_heard or b"", np.int64).tolist()
            return SavedLearner(rng, copied(self.sampler), self._draws.save(), heard)

    # ------------------------------------------------------------------ state

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority that new rows get: the greatest that this learner knows, 1.0 at first.

        Only learners with priorities have this method.
        """
        with self._lock:
            self._follow()
            return self._draws.get_max_priority()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._model.fields

    def _field_specs(self, names: Names) -> dict[str, ColumnSpec]:
        return self._model._field_specs(names)

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._model._further_specs(), **self.sampler.columns}

    def close(self) -> None:
        """Leave the replay: the learner's place is free. It is not used afterwards."""
        self._membership.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Learner(number={self.number}, sampler={self.sampler!r}, stored={len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the SharedReplay instead")
