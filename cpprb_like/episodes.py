"""Whole episodes of a buffer: their list, their rows, and how to be rid of one.

Where episodes begin and end is read from the flags of the rows when somebody asks. Not here:
parts of episodes to learn from (``sequences``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TERMINATED, FLAG_TRUNCATED, Ring
from cpprb_like._episodes import choose
from cpprb_like._take import new_array
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.schedules import whole
from cpprb_like.views import read_rows

__all__ = ["Episode", "EpisodeIndex", "Episodes", "Spread", "Statistics"]

Batch = dict[str, NDArray[Any]]
Slots = NDArray[np.intp]
Found = TypeVar("Found")
Batches = list[Batch]  # ``list`` is a method below
NO_SLOTS = np.empty(0, np.intp)


@dataclass(frozen=True)
class Episode:
    """What ``Episodes.list`` says of an episode.

    Attributes
    ----------
    env : int
        The environment that it is of.
    slot : int
        Of its first row in the buffer.
    length : int
        Its rows in the buffer.
    terminated, truncated : bool
        How it ended; neither if it has not ended.
    complete : bool
        It has ended, and is known to be in the buffer from its beginning. The oldest episode of an
        environment is not if a row before it was overwritten, for that may have been one of it.
    return_ : float or None
        The sum of its rewards over the rows in the buffer, if a field was named.
    """

    env: int
    slot: int
    length: int
    terminated: bool
    truncated: bool
    complete: bool
    return_: float | None = None


Records = list[Episode]


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (of these numbers, not an estimate), least and greatest."""

    mean: float
    std: float
    least: float
    greatest: float

    @staticmethod
    def of(numbers: NDArray[np.float64]) -> Spread:
        """Of at least one number."""
        return Spread(
            float(numbers.mean()), float(numbers.std()), float(numbers.min()), float(numbers.max())
        )


@dataclass(frozen=True)
class Statistics:
    """What ``Episodes.statistics`` says of the complete episodes.

    Attributes
    ----------
    episodes : int
        How many there are.
    length : Spread
        Of their lengths.
    return_ : Spread or None
        Of their returns, if a field was named.
    """

    episodes: int
    length: Spread
    return_: Spread | None


@dataclass(frozen=True)
class Table:
    """The episodes in a ring at one moment: arrays of the same length, oldest first row first."""

    firsts: NDArray[np.int64]  # row ids
    lasts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    flags: NDArray[np.uint8]  # of the last row
    complete: NDArray[np.bool_]
    revision: int


class EpisodeIndex:
    """Where the episodes of a ring are; looked up again when rows have changed.

    Parameters
    ----------
    ring : Ring
        The rows.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._seen: tuple[tuple[int, ...], Table] | None = None

    def _state(self) -> tuple[int, ...]:
        """Numbers that are others when episodes have changed."""
        ring = self.ring
        lengths = (ring.episode_len(stream) for stream in range(ring.n_envs))
        return (ring.revision, ring.written, ring.absent, *lengths)

    def table(self) -> Table | None:
        """The episodes; None if rows were added in the meantime."""
        state, seen = self._state(), self._seen
        if seen is not None and seen[0] == state:
            return seen[1]
        flags = self.ring.flags()
        if self._state() != state:
            return None
        table = _scan(flags, state[1], state[0], self.ring)
        self._seen = (state, table)
        return table

    def slots(self, table: Table, number: int, oldest: int = 0) -> Slots:
        """The slots of the rows of an episode, by age; those from row id ``oldest`` on."""
        ring = self.ring
        first = int(table.firsts[number])
        lost = -(-max(oldest - first, 0) // ring.n_envs)
        ids = np.arange(first + lost * ring.n_envs, table.lasts[number] + 1, ring.n_envs)
        slots: Slots = (ids % ring.capacity).astype(np.intp)
        present: Slots = slots[(ring.flags_at(slots) & FLAG_ABSENT) == 0]
        return present


def _scan(flags: NDArray[np.uint8], written: int, revision: int, ring: Ring) -> Table:
    """The episodes of rows with these flags, given by slot."""
    oldest = written - len(flags)
    flags = np.roll(flags, -(oldest % ring.capacity))  # by age
    parts = []
    for offset in range(min(ring.n_envs, len(flags))):
        stream = flags[offset :: ring.n_envs]
        ended = (stream & FLAG_END) != 0
        numbers = np.cumsum(ended) - ended  # of the episode that a row belongs to
        rows = np.flatnonzero((stream & FLAG_ABSENT) == 0)
        borders = np.flatnonzero(np.diff(numbers[rows], prepend=-1))
        if len(rows) == 0:
            continue
        lasts = rows[np.append(borders[1:], len(rows)) - 1]
        from_the_beginning = (numbers[rows[borders]] > 0) | (oldest + offset < ring.n_envs)
        parts.append(
            (
                oldest + offset + rows[borders] * ring.n_envs,
                oldest + offset + lasts * ring.n_envs,
                np.diff(np.append(borders, len(rows))),
                stream[lasts],
                from_the_beginning & ended[lasts],
            )
        )
    if not parts:
        nothing = np.empty(0, np.int64)
        bits, bools = np.empty(0, np.uint8), np.empty(0, np.bool_)
        return Table(nothing, nothing, nothing, bits, bools, revision)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0])
    firsts, lasts, lengths, ends, complete = [column[order] for column in columns]
    return Table(firsts, lasts, lengths, ends, complete, revision)


class Buffer(Protocol):
    """What ``Episodes`` needs of a buffer."""

    rng: np.random.Generator

    @property
    def ring(self) -> Ring:
        """The rows."""
        ...

    @property
    def sampler(self) -> Any:
        """The sampler."""
        ...

    def _consistently(self, attempt: Callable[[], tuple[Slots, Found] | None]) -> Found: ...

    def _while_writers_wait(self, attempt: Callable[[], Found | None]) -> Found: ...


class Episodes:
    """The episodes whose rows are in a buffer: ``rb.episodes``.

    Episodes have numbers from 0, in the order in which their oldest row in the buffer was added. A
    number is good until rows are added or an episode is deleted: then the oldest episodes may be
    gone, and those after them move down. Negative numbers count from the end.

    An episode ends where an end field says so, and at ``on_episode_end``. One that has not ended
    yet, or of which only the end is left, is an episode as well; see ``Episode.complete``.

    Notes
    -----
    The first call after rows were added looks at the flags of all rows; every other call costs in
    proportion to what it gives. Any number of threads may add meanwhile.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> fields = {"rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(rew=[1, 2, 3, 4, 5], done=[0, 0, 1, 0, 1])
    0
    >>> len(rb.episodes)
    2
    >>> rb.episodes.read(1)["rew"].tolist()
    [4.0, 5.0]
    >>> [episode.return_ for episode in rb.episodes.list(reward="rew")]
    [6.0, 9.0]
    >>> rb.episodes.delete(0)
    3
    >>> len(rb), len(rb.episodes)
    (2, 1)
    """

    def __init__(self, buffer: Buffer, index: EpisodeIndex) -> None:
        self._buffer = buffer
        self._index = index

    def _steadily(self, attempt: Callable[[Table], tuple[Slots, Found] | None]) -> Found:
        """What ``attempt`` finds in the present episodes, beside the slots that it read.

        None in place of both means that rows changed meanwhile.
        """

        def with_table() -> tuple[Slots, Found] | None:
            table = self._index.table()
            return None if table is None else attempt(table)

        return self._buffer._consistently(with_table)

    def __len__(self) -> int:
        """How many episodes there are."""
        return self._steadily(lambda table: (NO_SLOTS, len(table.firsts)))

    def __repr__(self) -> str:
        return f"Episodes({len(self)})"

    # ------------------------------------------------------------------ looking

    def list(self, reward: str | None = None) -> Records:
        """What there is to say of each episode.

        Parameters
        ----------
        reward : str, optional
            The field to sum for ``return_``: one number a row.

        Returns
        -------
        list of Episode

        Raises
        ------
        TypeError, ValueError
            ``reward`` is no field of one number a row.

        Notes
        -----
        Cost: proportional to the number of episodes; with ``reward``, of rows.
        """
        return self._steadily(lambda table: self._records(table, reward))

    def _records(self, table: Table, reward: str | None) -> tuple[Slots, Records] | None:
        returns: Any = [None] * len(table.firsts)
        slots = NO_SLOTS
        if reward is not None:
            found = self._returns(table, reward)
            if found is None:
                return None
            slots, returns = found[0], found[1].tolist()
        ring = self._index.ring
        return slots, [
            Episode(
                env=first % ring.n_envs,
                slot=first % ring.capacity,
                length=length,
                terminated=flags & FLAG_TERMINATED == FLAG_TERMINATED,
                truncated=flags & FLAG_TRUNCATED == FLAG_TRUNCATED,
                complete=complete,
                return_=return_,
            )
            for first, length, flags, complete, return_ in zip(
                table.firsts.tolist(),
                table.lengths.tolist(),
                table.flags.tolist(),
                table.complete.tolist(),
                returns,
                strict=True,
            )
        ]

    def _returns(self, table: Table, reward: str) -> tuple[Slots, NDArray[np.float64]] | None:
        """The sum of a field over each episode; None if a row was deleted meanwhile."""
        if not isinstance(reward, str):
            raise TypeError(f"reward: expected the name of a field, got {reward!r}")
        columns = [column for column in self._index.ring.columns if column.name == reward]
        if not columns:
            known = [column.name for column in self._index.ring.columns]
            raise ValueError(f"reward: expected one of {known}, got {reward!r}")
        if columns[0].dtype.kind not in "biuf" or np.prod(columns[0].shape) != 1:
            raise ValueError(
                f"reward: expected a field of one number a row, got {reward!r}: "
                f"{columns[0].dtype} of shape {columns[0].shape}"
            )
        if len(table.firsts) == 0:
            return NO_SLOTS, np.empty(0)
        found = self._take(table, np.arange(len(table.firsts)), (reward,))
        if found is None:
            return None
        slots, batch = found
        values = batch[reward].reshape(-1).astype(np.float64)
        sums: NDArray[np.float64] = np.add.reduceat(values, np.cumsum([0, *table.lengths[:-1]]))
        return slots, sums

    def statistics(self, reward: str | None = None) -> Statistics:
        """Lengths, and returns if ``reward`` names a field, of the complete episodes.

        Raises
        ------
        NotEnoughDataError
            No episode is complete. It is a ``ValueError``.
        TypeError, ValueError
            ``reward`` is no field of one number a row.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}, "done": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3, 4, 5], done=[0, 0, 1, 0, 1])
        0
        >>> rb.episodes.statistics("rew").return_
        Spread(mean=7.5, std=1.5, least=6.0, greatest=9.0)
        """
        complete = [episode for episode in self.list(reward) if episode.complete]
        if not complete:
            raise NotEnoughDataError("no episode is complete")
        lengths = np.array([episode.length for episode in complete], np.float64)
        returns = np.array([episode.return_ for episode in complete], np.float64)
        return Statistics(
            len(complete), Spread.of(lengths), None if reward is None else Spread.of(returns)
        )

    # ------------------------------------------------------------------ reading

    def read(self, number: int) -> Batch:
        """The rows of an episode, in the order of time.

        Parameters
        ----------
        number : int
            Of the episode.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(length, *shape)``, as it was added.

        Raises
        ------
        TypeError
            ``number`` is no integer.
        IndexError
            There is no such episode.
        """
        given = whole("number", number)
        return self._steadily(lambda table: self._batch(table, _place(given, table)))

    def __getitem__(self, number: int) -> Batch:
        """As ``read``."""
        return self.read(number)

    def __iter__(self) -> Iterator[Batch]:
        """The rows of each episode that is there now.

        Raises ``RuntimeError`` if rows were added or an episode was deleted in the meantime.
        """
        began = self._steadily(lambda table: (NO_SLOTS, table))

        def attempt(number: int, table: Table) -> tuple[Slots, Batch] | None:
            if table is not began:
                raise RuntimeError("the episodes changed while they were read")
            return self._batch(table, number)

        for number in range(len(began.firsts)):
            yield self._steadily(partial(attempt, number))

    def sample(self, n: int, *, complete: bool = True) -> Batches:
        """Draw episodes, each with the same probability; one may come more than once.

        Parameters
        ----------
        n : int
            How many, at least 0.
        complete : bool
            Draw among the complete ones only.

        Returns
        -------
        list of dict of ndarray
            As ``read`` gives them.

        Raises
        ------
        NotEnoughDataError
            There is no episode to draw. It is a ``ValueError``.
        TypeError, ValueError
            ``n`` is no integer of at least 0.
        """
        count = whole("n", n, 0)

        def attempt(table: Table) -> tuple[Slots, Batches] | None:
            among = np.flatnonzero(table.complete) if complete else np.arange(len(table.firsts))
            if len(among) == 0:
                kind = "complete " if complete else ""
                raise NotEnoughDataError(f"cannot sample: there is no {kind}episode")
            drawn = among[choose(count, len(among), self._buffer.rng)]
            found = [self._batch(table, number) for number in drawn.tolist()]
            whole_ones = [part for part in found if part is not None]
            if len(whole_ones) < len(found):
                return None
            slots = [NO_SLOTS, *(slots for slots, _ in whole_ones)]
            return np.concatenate(slots), [batch for _, batch in whole_ones]

        return self._steadily(attempt)

    def _batch(self, table: Table, number: int) -> tuple[Slots, Batch] | None:
        return self._take(table, [number])

    def _take(
        self, table: Table, places: Any, names: tuple[str, ...] | None = None
    ) -> tuple[Slots, Batch] | None:
        """Slots and fields of the rows of episodes; None if a row was deleted meanwhile."""
        ring = self._index.ring
        slots = np.concatenate([self._index.slots(table, place) for place in places])
        if len(slots) != table.lengths[places].sum():
            return None
        batch = {
            column.name: new_array(ring, column, len(slots))
            for column in ring.columns
            if names is None or column.name in names
        }
        read_rows(ring, slots, batch)
        return slots, batch

    # ------------------------------------------------------------------ deleting

    def delete(self, number: int) -> int:
        """Never draw, read or count the rows of an episode again.

        Their memory is used again when the rows would have been overwritten anyway.

        Parameters
        ----------
        number : int
            Of an episode that has ended.

        Returns
        -------
        int
            How many rows are gone.

        Raises
        ------
        TypeError
            ``number`` is no integer.
        IndexError
            There is no such episode.
        ValueError
            The episode has not ended; ``on_episode_end`` ends it.

        Notes
        -----
        Cost: proportional to the rows. The ``indexes`` of a batch that was drawn before may mean
        deleted rows, which ``update_priorities`` refuses.
        """
        given = whole("number", number)

        def find(table: Table) -> tuple[Slots, tuple[Table, int]]:
            place = _place(given, table)
            if not table.flags[place] & FLAG_END:
                raise ValueError(
                    f"number: episode {number} has not ended; on_episode_end() ends it"
                )
            return NO_SLOTS, (table, place)

        table, place = self._steadily(find)
        return self._buffer._while_writers_wait(lambda: self._hide(table, place))

    def _hide(self, table: Table, place: int) -> int | None:
        """Make what is left of an episode absent; None if rows were overwritten meanwhile."""
        ring, sampler = self._index.ring, self._buffer.sampler
        moment = ring.now()
        if moment.clears != table.revision:
            return 0
        slots = self._index.slots(table, place, moment.written - ring.capacity)
        if hasattr(sampler, "drop"):
            sampler.drop(slots, moment)
        return len(slots) if ring.hide(slots, moment) else None


def _place(number: int, table: Table) -> int:
    """The place of an episode in the table."""
    n = len(table.firsts)
    if not -n <= number < n:
        raise IndexError(f"number: expected {-n} to {n - 1}, got {number}")
    return number % n
