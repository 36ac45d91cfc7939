"""Whole episodes (trajectories) of a buffer: list, read, draw and delete them.

Not here: where episodes begin and end (``_rows.episode_index``), and sequences for recurrent
agents (``views._sequences``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cpprb_like._arguments.arrays import Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._core import FLAG_TERMINATED, FLAG_TRUNCATED
from cpprb_like._fields.schema import read_columns
from cpprb_like._rows.column import Column
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._starts import choose
from cpprb_like.views._rows import read_fields

if TYPE_CHECKING:
    from cpprb_like.buffers._source import MomentSource

Batches = list[Batch]  # ``list`` is a method below
NO_SLOTS = np.empty(0, np.intp)
ALL_ROWS = slice(None)
MOST_DRAWN = sys.maxsize // 16  # episodes in a draw
MAX_ROUNDS = 8  # rounds of rejection sampling among all episodes


@dataclass(frozen=True)
class Episode:
    """An episode in a buffer, as ``Episodes.list`` returns it.

    Attributes
    ----------
    env : int
        Its environment, 0 to ``n_envs - 1``.
    slot : int
        Slot of its first row in the buffer.
    length : int
        Rows in the buffer.
    terminated, truncated : bool
        How it ended. Both are false while it has not ended.
    complete : bool
        Whether it has ended, and all its rows are known to be in the buffer. The oldest episode of
        an environment is not complete if the row before it was overwritten, as that row may have
        belonged to it.
    return_ : float or None
        Undiscounted return: the sum of the rewards of its rows in the buffer; None unless a field
        of rewards was named.
    """

    env: int
    slot: int
    length: int
    terminated: bool
    truncated: bool
    complete: bool
    return_: float | None = None


Records = list[Episode]


class Episodes:
    """The episodes (trajectories) whose rows are in a buffer: ``rb.episodes``.

    Episodes are numbered from 0, in the order in which their oldest row in the buffer was added. A
    number is valid until rows are added or an episode is deleted: then the oldest episodes may be
    overwritten, and the numbers of the others decrease. Negative numbers count from the end.

    An episode ends at a nonzero end field, or at ``on_episode_end``. An episode that has not ended
    yet, and one whose first rows were overwritten, are listed too; see ``Episode.complete``.

    Notes
    -----
    Cost: proportional to the result, plus about 10 ns for each row that was added since the last
    call. In an episode whose first rows were overwritten, absent rows are counted. Other threads
    may add meanwhile.

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

    def __init__(self, buffer: MomentSource, index: EpisodeIndex) -> None:
        self._buffer = buffer
        self._index = index

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self._index)

    def __repr__(self) -> str:
        return f"Episodes({len(self)})"

    # ------------------------------------------------------------------ looking

    def list(self, reward: str | None = None) -> Records:
        """Environment, place, length, end and return of each episode.

        Parameters
        ----------
        reward : str, optional
            The field of rewards to sum for ``return_``: one number for each row.

        Returns
        -------
        list of Episode

        Raises
        ------
        TypeError, ValueError
            ``reward`` is not a field with one number for each row.

        Notes
        -----
        Cost: proportional to the number of episodes; with ``reward``, to the number of rows.
        """
        column = None if reward is None else self._column(reward)
        return self._buffer.consistently(lambda: self._records(column))

    def _records(self, reward: Column | None) -> tuple[Slots, Records] | None:
        ring = self._index.ring
        version = self._index.version()
        firsts, lengths, flags, complete, slots = self._index.describe(reward is not None)
        returns: list[Any] = [None] * len(firsts)
        if reward is not None and slots is not None and len(firsts):
            values = read_fields(ring, slots, {reward.name})[reward.name]
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
        """The field of this name, which must have one number for each row."""
        if not isinstance(reward, str):
            raise TypeError(f"reward: expected the name of a field, got {reward!r}")
        columns = [column for column in self._index.ring.columns if column.name == reward]
        if not columns:
            known = list(self._buffer.fields)
            raise ValueError(f"reward: expected one of {known}, got {reward!r}")
        if kind_of(columns[0].dtype) not in "biuf" or np.prod(columns[0].shape) != 1:
            raise ValueError(
                f"reward: expected a field of one number a row, got {reward!r}: "
                f"{columns[0].dtype} of shape {columns[0].shape}"
            )
        return columns[0]

    # ------------------------------------------------------------------ reading

    def read(
        self,
        number: int,
        *,
        fields: str | Iterable[str] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Batch:
        """The rows of an episode, in the order of time.

        Parameters
        ----------
        number : int
            Number of the episode.
        fields : str or iterable of str, optional
            The fields to read; by default all.
        start, stop : int
            Read the rows from ``start`` to ``stop`` of the episode, as a slice does, so that a long
            one can be read piece by piece.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(length, *shape)``, as it was added. Values of any length are padded
            to the longest row, with a mask such as ``T_mask``.

        Raises
        ------
        TypeError
            ``number``, ``start`` or ``stop`` is not an integer, or ``fields`` are not names.
        ValueError
            ``fields`` as for ``ReplayBuffer.sample``.
        IndexError
            There is no such episode.
        """
        given, columns = _read_number(number), self._columns(fields)
        rows = slice(as_int("start", start), None if stop is None else as_int("stop", stop))
        return self._buffer.consistently(lambda: self._batch(given, columns, rows))

    def __getitem__(self, number: int) -> Batch:
        """The rows of an episode: see ``read``."""
        return self.read(number)

    def __iter__(self) -> Iterator[Batch]:
        """The rows of each episode, as ``read`` returns them.

        Raises ``RuntimeError`` if rows are added or an episode is deleted during the iteration.
        """
        index, columns = self._index, self._columns(None)
        began = index.version()

        def attempt(number: int) -> tuple[Slots, Batch]:
            if index.version() != began:
                raise RuntimeError("the episodes changed while they were read")
            return self._batch(number, columns)

        for number in range(len(index)):
            yield self._buffer.consistently(partial(attempt, number))

    def sample(
        self, n: int, *, complete: bool = True, fields: str | Iterable[str] | None = None
    ) -> Batches:
        """Draw episodes uniformly, with replacement.

        Parameters
        ----------
        n : int
            Episodes to draw, at least 0.
        complete : bool
            Draw from complete episodes only.
        fields : str or iterable of str, optional
            The fields to read; by default all.

        Returns
        -------
        list of dict of ndarray
            Each episode as ``read`` returns it.

        Raises
        ------
        NotEnoughDataError
            There is no (complete) episode. It is a ``ValueError``.
        TypeError, ValueError
            ``n`` is not an integer of at least 0, or too great for an array; or ``fields`` as for
            ``ReplayBuffer.sample``.

        Notes
        -----
        Cost: proportional to the rows returned. Where hardly any episode is complete, also about
        10 ns for each episode.
        """
        count, columns = as_int("n", n, 0, MOST_DRAWN), self._columns(fields)

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
        """Numbers of n drawn episodes: of all episodes, or of ``among``."""
        candidates = len(self._index) if among is None else len(among)
        if candidates == 0:
            kind = "" if among is None else "complete "
            raise NotEnoughDataError(f"cannot sample: there is no {kind}episode")
        drawn = choose(n, candidates, self._buffer.rng)
        return drawn if among is None else among[drawn]

    def _draw_complete(self, n: int) -> Slots:
        """Numbers of n drawn complete episodes.

        Rejection sampling comes first, as most episodes are complete unless a buffer has few.
        After some rounds a list of all complete episodes is made.
        """
        among, found = len(self._index), NO_SLOTS
        middle = np.full(1, among // 2, np.intp)
        for _ in range(MAX_ROUNDS if among and self._index.complete(middle).any() else 0):
            proposed = self._draw(n - len(found), None)
            found = np.concatenate([found, proposed[self._index.complete(proposed)]])
            if len(found) == n:
                return found
        every = np.arange(among, dtype=np.intp)
        rest = self._draw(n - len(found), every[self._index.complete(every)])
        return np.concatenate([found, rest])

    def _columns(self, fields: str | Iterable[str] | None) -> tuple[Column, ...]:
        """The columns to read."""
        names = self._buffer.fields if fields is None else fields
        return read_columns(names, self._index.ring.columns) or ()

    def _batch(
        self, number: int, columns: tuple[Column, ...], rows: slice = ALL_ROWS
    ) -> tuple[Slots, Batch]:
        """The slots and the values of rows of an episode."""
        slots = self._index.slots(number)[0][rows]
        return slots, self._buffer._stored(slots, {column.name for column in columns})

    # ------------------------------------------------------------------ deleting

    def delete(self, number: int) -> int:
        """Delete an episode: its rows are never drawn, read or counted again.

        They become absent rows. Their slots are reused when they would have been overwritten
        anyway.

        Parameters
        ----------
        number : int
            Number of an episode that has ended.

        Returns
        -------
        int
            Number of deleted rows.

        Raises
        ------
        TypeError
            ``number`` is not an integer.
        IndexError
            There is no such episode.
        ValueError
            The episode has not ended; ``on_episode_end`` ends it.
        OSError
            As ``ReplayBuffer.add``: the disk of ``mmap_prefix`` failed or is full.

        Notes
        -----
        Cost: proportional to the rows. ``update`` and ``update_priorities`` skip deleted rows of a
        batch that was drawn before. Where its ``indexes`` are slots, as of cpprb's
        ``PrioritizedReplayBuffer``, they raise ``IndexError``.
        """
        return self._buffer._while_writers_wait(partial(self._index.hide, _read_number(number)))


def _read_number(number: object) -> int:
    """The number of an episode, limited to the integers of the machine."""
    return max(-sys.maxsize, min(as_int("number", number), sys.maxsize))
