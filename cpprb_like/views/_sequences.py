"""``Sequences``: a layer whose items are consecutive rows of one environment.

Not here: which rows a sequence can start at (``samplers._starts``), how starts are drawn (the
samplers), the copying (``_gather_windows``), and whole episodes (``buffers._episodes``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Array, Batch, Floats, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like._core import Ring
from cpprb_like._machine.aligned import empty
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings
from cpprb_like._rows.row_handles import handles
from cpprb_like.samplers._starts import Starts
from cpprb_like.schedules import check
from cpprb_like.views._gather_windows import take_sequences
from cpprb_like.views._layer import Items, Layer, as_names
from cpprb_like.views._taken import Taken

ROW_INDEXES = "row_indexes"
PartOfBatch = tuple[Starts, Slots, Slots | None]  # see ``take_sequences``


class Sequences(Layer):
    """Sequences of consecutive rows, for recurrent agents and world models.

    Each field of a batch has the shape ``(batch_size, T, *shape)`` with ``T = burn_in + length``;
    fields of ``first_only`` have ``(batch_size, *shape)``. Each batch has one more bool column of
    shape ``(batch_size, T)``:

    - ``mask``, by default: false for padding. Values after the end of the episode are padded by 0
      (``None`` for Python objects).
    - ``is_first``, with ``across_episodes``: true where an episode begins. It is false for the
      first row of a sequence if the row before was overwritten.

    ``sample(..., indexes=True)`` adds ``row_indexes``, shape ``(batch_size, T)``, int64. They are
    handles of the rows for ``update``, for example of new recurrent states; -1 for padding.

    Parameters
    ----------
    length : int
        Number of rows to learn from, at least 1.
    burn_in : int
        Number of rows before these that only warm up the recurrent state, at least 0. ``length``
        does not count burn-in rows; the rows to learn from are ``batch[name][:, burn_in:]``.
    across_episodes : bool
        Let sequences continue across episode ends. By default each sequence lies in one episode.
    stride : int
        Distance between starts, at least 1: every ``stride``-th row of an environment is a start,
        and the first row of each episode.
    first_only : str or iterable of str
        Fields read only for the first row, such as the recurrent state. With ``NStep``, the column
        ``discount`` can be named too.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: the buffer cannot hold ``T`` rows of
        each environment, or a field has the name of a further column.

    Notes
    -----
    Starts: a row is a start if its episode has T rows from this row on, or has ended with at least
    ``burn_in + 1`` rows from this row on. So the newest rows of an unfinished episode are no starts
    yet. With ``across_episodes`` all T rows must be stored, and may belong to any episodes. With
    ``NStep`` the n - 1 rows after the T rows must be there as well, by the same rule.

    Probability: uniform over starts. With priorities, proportional to the weight of the first row:
    ``P(i) = weight(i) / (sum of the weights of all starts)``. The importance-sampling ``weights``
    of the batch are then exactly ``(P(i) / least P of the batch) ** -beta``. A draw changes no
    priority.

    Cost: proportional to ``batch_size * T``. Rows are drawn and rejected until they are starts,
    about ``stride`` tries for each sequence. If starts are rarer than about one row in
    ``32 * stride``, they are stored in a set, a quarter of a byte a row. Then the first batch, and
    the next one after a deletion, looks at all rows, and at up to ``burn_in`` rows behind each.
    Later batches look at rows from the oldest row on that waits for later rows. With priorities a
    try takes 0.1 us. If the tries exceed 64 for each sequence and an eighth of the rows, the batch
    looks at all starts.

    Source: Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement
    Learning" (R2D2), section 2.3 and section 3 on stored states and burn-in. Sequences across
    episode ends: Hafner et al. (2023), "Mastering Diverse Domains through World Models".

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
        self.first_only: str | Iterable[str] = as_names(first_only)

    @property
    def rows(self) -> int:
        """Rows of a sequence, with the burn-in."""
        return self.burn_in + self.length

    @property
    def least(self) -> int:
        """Minimum number of rows of a sequence, without padding."""
        return self.rows if self.across_episodes else self.burn_in + 1

    def items(self) -> Items:
        return Items(
            rows=self.rows,
            least=self.least,
            across=self.across_episodes,
            stride=self.stride,
            mark="is_first" if self.across_episodes else "mask",
            first_only=self.first_only,
        )


class SequenceReader:
    """Reads items of several rows. ``split(slots)`` gives the parts for ``take_sequences``."""

    def __init__(
        self, ring: Ring | Rings, items: Items, split: Callable[[Slots], list[PartOfBatch]]
    ) -> None:
        self._ring = ring
        self._across = items.across
        self._split = split

    def copy(
        self,
        slots: Slots,
        columns: tuple[Column, ...],
        single: frozenset[str],
        arrays: Batch | None,
        located: bool,
    ) -> Taken | None:
        """Stored values of the rows in the items that start at these slots.

        ``single`` names the columns that are read for the first row only. ``arrays`` is the
        caller's ``out``. With ``located`` the result has slots. Returns None for overwritten rows.
        """
        parts = self._split(slots)
        found = take_sequences(parts, len(slots), single, columns, arrays, located)
        if found is None:
            return None
        batch, marks, ids = found
        rows: Slots | None = None
        if ids is not None:
            rows = (ids % self._ring.capacity).astype(np.intp, copy=False)
            if isinstance(self._ring, Rings):
                rows = rows << self._ring.bits | (slots & self._ring.mask)[:, np.newaxis]
        there = marks
        if rows is not None and self._across:
            there = np.ones(marks.shape, np.bool_)
        return Taken(batch, marks, rows, there, self._across)

    def locate(self, slots: Slots) -> Taken | None:
        """The slots of the rows of items, without values: see ``copy``."""
        return self.copy(slots, (), frozenset(), None, True)

    def indexes(self, taken: Taken) -> NDArray[np.int64]:
        """The handles of the rows; -1 for padding."""
        assert taken.slots is not None
        rows = np.ascontiguousarray(taken.slots.ravel())
        found = handles(self._ring, rows).reshape(taken.slots.shape)
        found[~taken.there] = -1
        return found


def spread(values: Array, there: NDArray[np.bool_], places: Slots, array: Array | None) -> Array:
    """Put values of rows into their places of a padded batch.

    ``places`` are the true places of ``there``, on one axis; ``array`` is the caller's.
    """
    shape = (*there.shape, *values.shape[1:])
    if array is None and len(places) == there.size:
        return values.reshape(shape)
    blank = None if values.dtype == object else np.zeros((), values.dtype)
    if array is None:
        array = empty(shape, values.dtype)
    array[~there] = blank
    put_rows(by_row(array), places, values)
    return array


def by_row(column: Array) -> Array:
    """View of a ``column`` of shape ``(n, T, *shape)`` with one axis for all rows."""
    n, steps, *shape = column.shape
    return column.reshape(n * steps, *shape)  # not -1, which fails for values without elements


def put_rows(column: Array, numbers: Slots, values: Array) -> None:
    """Set ``column[numbers]`` to ``values``; rows of several elements are copied as bytes.

    NumPy takes three times as long for 256 rows of 3 floats.
    """
    n, kind = len(values), column.dtype
    if column.ndim == 1 or not column.flags.c_contiguous or values.dtype != kind or not n:
        column[numbers] = values
        return
    row = np.dtype((np.void, values.nbytes // n))
    if kind.hasobject or not row.itemsize:
        column[numbers] = values
        return
    to = column.reshape(len(column), -1).view(row)[:, 0]
    to[numbers] = np.ascontiguousarray(values).reshape(n, -1).view(row)[:, 0]


def sequence_priorities(
    td_errors: ArrayLike, mask: ArrayLike | None = None, *, eta: float = 0.9
) -> Floats:
    """Priorities of sequences: ``eta * max + (1 - eta) * mean`` of the absolute TD errors of each.

    Parameters
    ----------
    td_errors : array_like of numbers, shape (n, steps)
        TD errors of the rows to learn from, of either sign.
    mask : array_like of bool, shape (n, steps), optional
        False for padding, which is ignored: ``batch["mask"][:, burn_in:]``. Each sequence has at
        least one row that is not padding.
    eta : float
        Mixing factor: 0 is the mean, 1 the maximum.

    Returns
    -------
    ndarray of float64, shape (n,)
        For ``update_priorities(batch["indexes"], priorities)``.

    Raises
    ------
    TypeError
        ``td_errors`` has no numbers, or ``mask`` no bools.
    ValueError
        A shape is wrong, a sequence has only padding, the TD error of a row is infinite or NaN, or
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
    errors = read_argument("td_errors", td_errors)
    if errors.dtype.kind not in "fiu":
        raise TypeError(f"td_errors: expected numbers, got {errors.dtype}")
    if errors.ndim != 2 or errors.shape[1] == 0:
        raise ValueError(f"td_errors: expected shape (n, steps), got {errors.shape}")
    there = np.ones(errors.shape, np.bool_) if mask is None else read_argument("mask", mask)
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
