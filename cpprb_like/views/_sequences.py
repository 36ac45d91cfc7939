"""``Sequences``: rows of one environment that follow one another, as a layer of a view.

Not here: which rows a sequence can start at (``samplers._starts``), how starts are drawn (the
samplers), the copying (``_gather_sequences``), and whole episodes (``buffers._episodes``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._c.foreign_arrays import read_array
from cpprb_like._store.column import Column
from cpprb_like._store.episode_index import EpisodeIndex
from cpprb_like._store.row_handles import tag
from cpprb_like._store.schema import read_names
from cpprb_like.samplers._starts import Starts
from cpprb_like.schedules import check
from cpprb_like.views._gather_sequences import take_sequences
from cpprb_like.views._layer import Layer

__all__ = ["SequenceReader", "Sequences", "Taken", "sequence_priorities"]

Array = NDArray[Any]
Slots = NDArray[np.intp]
Batch = dict[str, Array]
Floats = NDArray[np.float64]
Read = Callable[[Slots, "list[Array] | None", "Slots | None", tuple[Column, ...]], Batch]
Steps = Callable[[int], "Slots | None"]

ROW_INDEXES = "row_indexes"


class Sequences(Layer):
    """Sequences of rows, for agents with a memory.

    Each field of a batch has the shape ``(batch_size, T, *shape)`` with ``T = burn_in + length``;
    those of ``first_only``, ``(batch_size, *shape)``. Besides there is a column of bool, shape
    ``(batch_size, T)``:

    - ``mask``, unless ``across_episodes``: which rows are there. Behind the end of the episode the
      values are padding: 0 (``None`` for Python objects), and the mask is false.
    - ``is_first``, with ``across_episodes``: where an episode begins. Where the row before was
      overwritten, which can be that of the first row of a sequence only, it is false.

    ``sample(..., indexes=True)`` adds ``row_indexes``, shape ``(batch_size, T)``, int64: numbers
    for ``update`` that name exactly these rows, so that new recurrent states can be written back;
    -1 where no row is.

    Parameters
    ----------
    length : int
        Rows to learn from, at least 1.
    burn_in : int
        Rows before them that only warm up a recurrent state, at least 0. They are not part of
        ``length``: those to learn from are ``batch[name][:, burn_in:]``.
    across_episodes : bool
        Let sequences run over the ends of episodes. By default each lies in one episode.
    stride : int
        Only each ``stride``-th row of an environment's rows can be the first of a sequence, and the
        first row of each episode; at least 1.
    first_only : str or iterable of str
        Fields of which only the value of the first row is read, such as a recurrent state.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; or, by ``view``, ``T`` rows of each environment do
        not fit into the buffer, or a field has the name of a further column.

    Notes
    -----
    A sequence can start at a row if T rows of its episode are there, or if its episode has ended
    and at least ``burn_in + 1`` of its rows are: the newest rows of an episode that has not ended
    wait. With ``across_episodes`` all T rows have to be there, whichever episodes they belong to.
    With ``NStep`` the n - 1 rows behind the T rows have to be there as well, on the same terms.
    Each of these starts has the same probability; with priorities, one in proportion to the weight
    of its first row: ``P(i) = weight(i) / (sum of the weights of all starts)``. There the
    importance-sampling ``weights`` of the batch are ``(P(i) / least P of the batch) ** -beta``,
    exactly: the sum cancels out, so it is never computed. A draw changes no priority.

    Cost proportional to ``batch_size * T``, and to ``batch_size * stride`` tries for a start.
    Where starts are very rare among the rows, at less than about one in ``32 * stride``, they are
    kept in a set: the first batch looks at all rows, some 20 ns each, and the next ones at those
    that were added since; after ``on_episode_end`` or ``update`` also once at each environment,
    1 ns. The set takes a quarter of a byte a row.

    With priorities the tries go by weight: as many for each sequence as the weights of all rows are
    times those of the starts, 0.1 us each; where they would be more than 64 for each sequence and
    than an eighth of the rows, all starts are looked at, 20 ns each. Where these are few, that is
    done at once.

    Source: Kapturowski, Ostrovski, Quan, Munos and Dabney (2019), "Recurrent Experience Replay in
    Distributed Reinforcement Learning" (R2D2), section 2.3 and section 3 on stored states and
    burn-in. Sequences that run over the ends of episodes are those of Hafner, Pasukonis, Ba and
    Lillicrap (2023), "Mastering Diverse Domains through World Models" (DreamerV3).

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Sequences
    >>> fields = {"x": {"shape": (), "dtype": "i8"}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> for x in range(5):
    ...     _ = rb.add(x=x, done=x == 4)
    >>> batch = rb.view(Sequences(3)).sample(2)
    >>> batch["x"].tolist(), batch["mask"].tolist()
    ([[4, 0, 0], [3, 4, 0]], [[True, False, False], [True, True, False]])
    """

    def __init__(
        self,
        length: int,
        *,
        burn_in: int = 0,
        across_episodes: bool = False,
        stride: int = 1,
        first_only: str | Iterable[str] = (),
    ) -> None:
        self.length = as_int("length", length, 1)
        self.burn_in = as_int("burn_in", burn_in, 0)
        if not isinstance(across_episodes, (bool, np.bool_)):
            raise TypeError(f"across_episodes: expected a bool, got {across_episodes!r}")
        self.across_episodes = bool(across_episodes)
        self.stride = min(as_int("stride", stride, 1), sys.maxsize)
        names: Any = first_only
        if isinstance(names, Iterable) and not isinstance(names, (str, Mapping)):
            names = tuple(names)
        self.first_only: str | Iterable[str] = names

    @property
    def rows(self) -> int:
        """Rows of a sequence, those of the burn-in too."""
        return self.burn_in + self.length

    @property
    def least(self) -> int:
        """Rows that a sequence has at least."""
        return self.rows if self.across_episodes else self.burn_in + 1

    @property
    def mark(self) -> str:
        """The column that says what the rows are."""
        return "is_first" if self.across_episodes else "mask"

    def single(self, names: list[str]) -> frozenset[str]:
        """The fields of these that are read of the first row only."""
        return frozenset(read_names("first_only", self.first_only, names))


@dataclass
class Taken:
    """Sequences that were read."""

    batch: Batch
    marks: NDArray[np.bool_]  # see ``Sequences``
    slots: Slots | None  # of the rows, shape (n, T), if they are wanted
    there: NDArray[np.bool_]  # of the rows: whether there is one
    steps: Slots | None  # of the rows that are there: how many each is read as, where that differs


class SequenceReader:
    """Reads sequences.

    Parameters
    ----------
    index : EpisodeIndex
        The episodes of the ring.
    layer : Sequences
        What a sequence is.
    read : callable, optional
        ``read(slots, arrays, steps, columns)`` gives what single rows are read as; by default that
        is what was added.
    steps : callable
        ``steps(n)`` draws how many steps each of n rows is read as, or gives None.
    """

    def __init__(
        self, index: EpisodeIndex, layer: Sequences, read: Read | None, steps: Steps
    ) -> None:
        self.ring = index.ring
        self.layer = layer
        self.mark = layer.mark
        self._read = read
        self._steps = steps
        # How long a sequence is, and not where one can start.
        self._shape = Starts(
            index, rows=layer.rows, least=1, across=layer.across_episodes, stride=1
        )

    def take(
        self,
        slots: Slots,
        columns: tuple[Column, ...],
        single: frozenset[str],
        arrays: Batch | None,
        located: bool,
    ) -> Taken | None:
        """The sequences that start at these slots; None if rows went away meanwhile.

        ``single`` names those of the columns of which only the first row is read. ``arrays`` are
        the caller's. ``located`` asks for the slots of all rows.
        """
        if self._read is None:
            found = take_sequences(self._shape, slots, single, columns, arrays, located)
        else:
            found = take_sequences(self._shape, slots, frozenset(), (), None, True)
        if found is None:
            return None
        batch, marks, rows = found
        there = np.ones(marks.shape, np.bool_) if self.layer.across_episodes else marks
        steps = None
        if self._read is not None and rows is not None:
            steps = self._steps(int(there.sum()))
            batch = self._spread(self._read, rows, there, steps, columns, single, arrays)
        return Taken(batch, marks, rows, there, steps)

    def _spread(
        self,
        read: Read,
        rows: Slots,
        there: NDArray[np.bool_],
        steps: Slots | None,
        columns: tuple[Column, ...],
        single: frozenset[str],
        arrays: Batch | None,
    ) -> Batch:
        """What is read of each row, in its place."""
        places = np.flatnonzero(there)
        several = tuple(column for column in columns if column.name not in single)
        batch = {
            name: self._place(values, there, places, None if arrays is None else arrays.get(name))
            for name, values in read(rows.ravel()[places], None, steps, several).items()
        }
        first = tuple(column for column in columns if column.name in single)
        if first:
            given = None if arrays is None else [arrays[column.name] for column in first]
            if steps is not None:
                steps = steps[places % there.shape[1] == 0]
            found = read(np.ascontiguousarray(rows[:, 0]), given, steps, first)
            batch |= {column.name: found[column.name] for column in first}
        return {column.name: batch[column.name] for column in columns} | batch

    @staticmethod
    def _place(
        values: Array, there: NDArray[np.bool_], places: Slots, array: Array | None
    ) -> Array:
        """The values of the rows that are there, with padding behind the others."""
        shape = (*there.shape, *values.shape[1:])
        if array is None and len(places) == there.size:
            return values.reshape(shape)
        blank = None if values.dtype == object else np.zeros((), values.dtype)
        if array is None:
            array = np.empty(shape, values.dtype)
        array[~there] = blank
        array.reshape(-1, *values.shape[1:])[places] = values
        return array

    def indexes(self, taken: Taken) -> NDArray[np.int64]:
        """What names the rows for ever; -1 where there is none."""
        assert taken.slots is not None
        rows = np.ascontiguousarray(taken.slots.ravel())
        found = tag(self.ring, rows).reshape(taken.slots.shape)
        found[~taken.there] = -1
        return found


def sequence_priorities(
    td_errors: ArrayLike, mask: ArrayLike | None = None, *, eta: float = 0.9
) -> Floats:
    """Priorities of sequences: ``eta * max + (1 - eta) * mean`` of the absolute TD errors of each.

    Parameters
    ----------
    td_errors : array_like of numbers, shape (n, steps)
        TD errors of the rows that were learned from; signs do not count.
    mask : array_like of bool, shape (n, steps), optional
        Which of them are rows: ``batch["mask"][:, burn_in:]``. At least one of each sequence. What
        stands in the others does not matter.
    eta : float
        From 0, the mean, to 1, the greatest.

    Returns
    -------
    ndarray of float64, shape (n,)
        For ``update_priorities(batch["indexes"], priorities)``.

    Raises
    ------
    TypeError
        They are no numbers or bools.
    ValueError
        A shape is another one, a sequence has no row, an error of a row is infinite or NaN, or
        ``eta`` is not from 0 to 1.

    Notes
    -----
    Cost: proportional to ``n * steps``.

    Source: Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement
    Learning" (R2D2), section 2.3, where ``eta`` is 0.9.

    Examples
    --------
    >>> from cpprb_like.views import sequence_priorities
    >>> sequence_priorities([[-1.0, 3.0]], [[True, True]], eta=0.5).tolist()
    [2.5]
    """
    check("eta", eta, 0, 1)
    if callable(eta):
        raise TypeError(f"eta: expected a number, got {eta!r}")
    errors = read_array(td_errors)
    if errors.dtype.kind not in "fiu":
        raise TypeError(f"td_errors: expected numbers, got {errors.dtype}")
    if errors.ndim != 2 or errors.shape[1] == 0:
        raise ValueError(f"td_errors: expected shape (n, steps), got {errors.shape}")
    there = np.ones(errors.shape, np.bool_) if mask is None else read_array(mask)
    if there.dtype != np.bool_:
        raise TypeError(f"mask: expected bools, got {there.dtype}")
    if there.shape != errors.shape:
        raise ValueError(f"mask: expected shape {errors.shape}, got {there.shape}")
    empty = np.flatnonzero(~there.any(axis=1))
    if len(empty):
        raise ValueError(f"mask[{empty[0]}]: expected at least one row, got none")
    sizes = np.where(there, np.abs(errors.astype(np.float64)), 0.0)
    wrong = np.argwhere(~np.isfinite(sizes))
    if len(wrong):
        i, k = wrong[0].tolist()
        raise ValueError(f"td_errors[{i}, {k}]: expected a finite number, got {errors[i, k]}")
    means = (sizes / there.sum(axis=1, keepdims=True)).sum(axis=1)
    mixed: Floats = float(eta) * sizes.max(axis=1) + (1.0 - float(eta)) * means
    return mixed
