"""Whole episodes of a buffer: their list, their rows, and how to be rid of one.

Not here: where episodes begin and end (``_store.episode_index``), and parts of episodes to learn
from (``views._sequences``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._core import FLAG_TERMINATED, FLAG_TRUNCATED, Moment
from cpprb_like._store.column import Column
from cpprb_like._store.episode_index import EpisodeIndex
from cpprb_like._store.gather import new_array
from cpprb_like._store.schema import read_columns
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._starts import choose
from cpprb_like.views._view import read_rows

__all__ = ["Episode", "Episodes", "Spread", "Statistics"]

Batch = dict[str, NDArray[Any]]
Slots = NDArray[np.intp]
Found = TypeVar("Found")
Batches = list[Batch]  # ``list`` is a method below
NO_SLOTS = np.empty(0, np.intp)
TRIES = 8  # rounds of draws among all episodes, before those that are complete are looked for


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


class Buffer(Protocol):
    """What ``Episodes`` needs of a buffer."""

    rng: np.random.Generator

    @property
    def sampler(self) -> Any:
        """The sampler."""
        ...

    def consistently(self, attempt: Callable[[], tuple[Slots, Found] | None]) -> Found: ...

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
    A call looks once at each row that was added since the last one, about 10 ns for each; besides,
    it costs in proportion to what it gives. Of an episode whose first rows were overwritten, absent
    rows are counted too. Any number of threads may add meanwhile.

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

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self._index)

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
        column = None if reward is None else self._column(reward)
        return self._buffer.consistently(lambda: self._records(column))

    def _records(self, reward: Column | None) -> tuple[Slots, Records] | None:
        ring = self._index.ring
        version = self._index.version()
        firsts, lengths, flags, complete, slots = self._index.tell(reward is not None)
        returns: list[Any] = [None] * len(firsts)
        if reward is not None and slots is not None and len(firsts):
            values = new_array(ring, reward, len(slots))
            read_rows(ring, slots, {reward.name: values})
            starts = np.cumsum(lengths) - lengths
            returns = np.add.reduceat(values.reshape(-1).astype(np.float64), starts).tolist()
        columns = (
            (firsts % ring.n_envs).tolist(),
            (firsts % ring.span).tolist(),
            lengths.tolist(),
            (flags & FLAG_TERMINATED == FLAG_TERMINATED).tolist(),
            (flags & FLAG_TRUNCATED == FLAG_TRUNCATED).tolist(),
            complete.tolist(),
            returns,
        )
        if self._index.version() != version:
            return None
        return NO_SLOTS if slots is None else slots, list(map(Episode, *columns))

    def _column(self, reward: str) -> Column:
        """The field of this name, if it is one number a row."""
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
        return columns[0]

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

    def read(self, number: int, *, fields: str | Iterable[str] | None = None) -> Batch:
        """The rows of an episode, in the order of time.

        Parameters
        ----------
        number : int
            Of the episode.
        fields : str or iterable of str, optional
            The fields to read; all.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(length, *shape)``, as it was added.

        Raises
        ------
        TypeError
            ``number`` is no integer, or ``fields`` are no names.
        ValueError
            ``fields`` as for ``ReplayBuffer.sample``.
        IndexError
            There is no such episode.
        """
        given, columns = _read_number(number), self._columns(fields)
        return self._buffer.consistently(lambda: self._batch(given, columns))

    def __getitem__(self, number: int) -> Batch:
        """As ``read``."""
        return self.read(number)

    def __iter__(self) -> Iterator[Batch]:
        """The rows of each episode that is there now.

        Raises ``RuntimeError`` if rows were added or an episode was deleted in the meantime.
        """
        index = self._index
        began = index.version()

        def attempt(number: int) -> tuple[Slots, Batch]:
            if index.version() != began:
                raise RuntimeError("the episodes changed while they were read")
            return self._batch(number, index.ring.columns)

        for number in range(len(index)):
            yield self._buffer.consistently(partial(attempt, number))

    def sample(
        self, n: int, *, complete: bool = True, fields: str | Iterable[str] | None = None
    ) -> Batches:
        """Draw episodes, each with the same probability; one may come more than once.

        Parameters
        ----------
        n : int
            How many, at least 0.
        complete : bool
            Draw among the complete ones only.
        fields : str or iterable of str, optional
            The fields to read; all.

        Returns
        -------
        list of dict of ndarray
            As ``read`` gives them.

        Raises
        ------
        NotEnoughDataError
            There is no episode to draw. It is a ``ValueError``.
        TypeError, ValueError
            ``n`` is no integer of at least 0; or ``fields`` as for ``ReplayBuffer.sample``.

        Notes
        -----
        Cost: in proportion to the rows that it gives. Where hardly an episode is complete, all are
        looked at, about 10 ns for each.
        """
        count, columns = as_int("n", n, 0), self._columns(fields)

        def attempt() -> tuple[Slots, Batches] | None:
            version = self._index.version()
            numbers = self._draw_complete(count) if complete else self._draw(count, None)
            found = [self._batch(number, columns) for number in numbers.tolist()]
            if self._index.version() != version:
                return None
            return np.concatenate([NO_SLOTS, *(slots for slots, _ in found)]), [
                batch for _, batch in found
            ]

        return self._buffer.consistently(attempt)

    def _draw(self, n: int, among: Slots | None) -> Slots:
        """Numbers of n episodes, or of n of these."""
        kinds = len(self._index) if among is None else len(among)
        if kinds == 0:
            kind = "" if among is None else "complete "
            raise NotEnoughDataError(f"cannot sample: there is no {kind}episode")
        drawn = choose(n, kinds, self._buffer.rng)
        return drawn if among is None else among[drawn]

    def _draw_complete(self, n: int) -> Slots:
        """Numbers of n complete episodes: nearly all are, unless there are few of them."""
        among, found = len(self._index), NO_SLOTS
        middle = np.full(1, among // 2, np.intp)
        for _ in range(TRIES if among and self._index.complete(middle).any() else 0):
            tried = self._draw(n - len(found), None)
            found = np.concatenate([found, tried[self._index.complete(tried)]])
            if len(found) == n:
                return found
        every = np.arange(among, dtype=np.intp)
        rest = self._draw(n - len(found), every[self._index.complete(every)])
        return np.concatenate([found, rest])

    def _columns(self, fields: str | Iterable[str] | None) -> tuple[Column, ...]:
        """The columns to read."""
        columns = self._index.ring.columns
        return read_columns(fields, columns) or columns

    def _batch(self, number: int, columns: tuple[Column, ...]) -> tuple[Slots, Batch]:
        """The slots and the values of the rows of an episode."""
        ring = self._index.ring
        slots = self._index.slots(number)[0]
        batch = {column.name: new_array(ring, column, len(slots)) for column in columns}
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
        given = _read_number(number)

        return self._buffer._while_writers_wait(lambda: self._index.hide(given, self._drop))

    def _drop(self, slots: Slots, moment: Moment) -> None:
        """Let the sampler forget rows that will be hidden."""
        self._buffer.sampler.forget(slots, moment)


def _read_number(number: object) -> int:
    """A number of an episode; there are none beyond those of the machine."""
    return max(-sys.maxsize, min(as_int("number", number), sys.maxsize))
