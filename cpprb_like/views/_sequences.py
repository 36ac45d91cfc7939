"""Sequences: rows of one environment that follow one another, for agents with a memory.

``sample_sequences`` is a method of every buffer, ``update_sequence_priorities`` of those with
priorities. Not here: which rows a sequence can start at (``samplers._starts``), how starts are
drawn (the samplers), and whole episodes (``buffers._episodes``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._c.foreign_arrays import read_array
from cpprb_like._c.machine_memory import require
from cpprb_like._core import Ring
from cpprb_like._store.column import Column
from cpprb_like._store.schema import read_names
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import PrioritySampler
from cpprb_like.samplers._starts import Starts
from cpprb_like.schedules import Schedule, check
from cpprb_like.views._gather_sequences import take_sequences

__all__ = ["sample_sequences", "update_sequence_priorities"]

Batch = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]

ROW_INDEXES = "row_indexes"
CHECKED_NBYTES = 1 << 28  # batches from here on are compared with the memory that is left


class Buffer(Protocol):
    """What ``sample_sequences`` needs of a buffer."""

    rng: np.random.Generator

    @property
    def ring(self) -> Ring:
        """The rows."""
        ...

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        ...

    @property
    def _starts(self) -> Callable[..., Starts]: ...

    def _check_batch_size(
        self, batch_size: int, columns: tuple[Column, ...] | None = None
    ) -> int: ...

    def _columns(self, fields: str | Iterable[str] | None) -> tuple[Column, ...] | None: ...

    def consistently(self, attempt: Callable[[], tuple[Slots, Batch] | None]) -> Batch: ...


class PriorityBuffer(Protocol):
    """What ``update_sequence_priorities`` needs of a buffer."""

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows."""
        ...


def sample_sequences(
    self: Buffer,
    batch_size: int,
    length: int,
    *,
    burn_in: int = 0,
    across_episodes: bool = False,
    stride: int = 1,
    first_only: str | Iterable[str] = (),
    beta: float | Schedule | None = None,
    indexes: bool = False,
    fields: str | Iterable[str] | None = None,
) -> Batch:
    """Draw sequences: rows of one environment that follow one another.

    Parameters
    ----------
    batch_size : int
        Sequences to draw, at least 0. One may come more than once.
    length : int
        Rows to learn from, at least 1.
    burn_in : int
        Rows before them in the sequence that only warm up a recurrent state, at least 0. They are
        not part of ``length``: a sequence has ``T = burn_in + length`` rows, and those to learn
        from are ``batch[name][:, burn_in:]``.
    across_episodes : bool
        Let sequences run over the ends of episodes. By default each lies in one episode.
    stride : int
        Only each ``stride``-th row of an environment's rows can be the first of a sequence, and the
        first row of each episode; at least 1.
    first_only : str or iterable of str
        Fields of which only the value of the first row is read, such as a recurrent state.
    beta : float or schedule, optional
        As for ``PrioritizedReplayBuffer.sample``, and for such buffers only.
    indexes : bool
        Add the column ``row_indexes``: numbers for ``update`` that name exactly these rows, so that
        new recurrent states can be written back.
    fields : str or iterable of str, optional
        The fields to read; all.

    Returns
    -------
    dict of ndarray
        Each field, shape ``(batch_size, T, *shape)``; those of ``first_only``, shape
        ``(batch_size, *shape)``. The values are those that were added, never sums of several
        steps. And, of bool and shape ``(batch_size, T)``:

        - ``mask``, unless ``across_episodes``: which rows are there. Behind the end of the episode
          the values are 0 (``None`` for Python objects), and the mask is false.
        - ``is_first``, with ``across_episodes``: where an episode begins. Where the row before was
          overwritten, which can be that of the first row of a sequence only, it is false.

        With priorities also ``weights`` and ``indexes``, shape ``(batch_size,)``. With ``indexes``
        also ``row_indexes``, shape ``(batch_size, T)``, int64: -1 where no row is.

    Raises
    ------
    NotEnoughDataError
        No sequence is long enough yet. It is a ``ValueError``. The generator has gone on, as after
        a draw.
    TypeError, ValueError
        An argument is of a wrong type or value; ``T`` rows of each environment do not fit into the
        buffer; a field has the name of a further column; or the sampler of the buffer can draw no
        sequences. The message says which.
    MemoryError
        The batch does not fit into memory.

    Notes
    -----
    A sequence can start at a row if T rows of its episode are there, or if its episode has ended
    and at least ``burn_in + 1`` of its rows are: the newest rows of an episode that has not ended
    wait. With ``across_episodes`` all T rows have to be there, whichever episodes they belong to.
    Each of these starts has the same probability; with priorities, one in proportion to the weight
    of its first row: ``P(i) = weight(i) / (sum of the weights of all starts)``. There the
    importance-sampling ``weights`` of the batch are ``(P(i) / least P of the batch) ** -beta``,
    exactly: the sum cancels out, so it is never computed. A draw changes no priority.

    With priorities and ``Nstep``, a row that waits for the steps of ``Nstep`` starts no sequence.

    Cost proportional to ``batch_size * T``, and to ``batch_size * stride`` tries for a start.
    Where starts are very rare among the rows, at less than about one in ``32 * stride``, they are
    kept in a set: the first batch of such a shape looks at all rows, some 20 ns each, and the next
    ones at those that were added since; after ``on_episode_end`` or ``update`` also once at each
    environment, 1 ns. The sets of the last eight shapes are kept, a quarter of a byte a row each.

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
    >>> fields = {"x": {"shape": (), "dtype": "i8"}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> for x in range(5):
    ...     _ = rb.add(x=x, done=x == 4)
    >>> batch = rb.sample_sequences(2, 3)
    >>> batch["x"].tolist(), batch["mask"].tolist()
    ([[4, 0, 0], [3, 4, 0]], [[True, False, False], [True, True, False]])
    """
    columns = self._columns(fields)
    n = self._check_batch_size(batch_size, columns)
    warm_up = as_int("burn_in", burn_in, 0)
    rows = warm_up + as_int("length", length, 1)
    ring = self.ring
    if rows * ring.n_envs > ring.capacity:
        raise ValueError(
            f"length: {rows} rows (with burn_in) of {ring.n_envs} environment(s) do not fit into "
            f"{ring.capacity} rows"
        )
    if not isinstance(across_episodes, (bool, np.bool_)):
        raise TypeError(f"across_episodes: expected a bool, got {across_episodes!r}")
    across = bool(across_episodes)
    starts = self._starts(
        rows=rows,
        least=rows if across else warm_up + 1,
        across=across,
        stride=min(as_int("stride", stride, 1), sys.maxsize),
    )
    read = ring.columns if columns is None else columns
    single = frozenset(read_names("first_only", first_only, [column.name for column in read]))
    draw = _drawing(self, beta)
    added = "is_first" if across else "mask"
    taken = {column.name for column in ring.columns} & {added, *[ROW_INDEXES] * bool(indexes)}
    if taken:
        raise ValueError(f"sample_sequences adds the column {min(taken)!r}: a field has this name")
    nbytes = n * rows * (16 + sum(column.nbytes for column in read))
    if nbytes >= CHECKED_NBYTES:
        require(nbytes, f"a batch of {n} sequences of {rows} rows")

    def attempt() -> tuple[Slots, Batch] | None:
        slots, extra = draw(starts, n)
        found = take_sequences(starts, slots, single, columns, bool(indexes))
        if found is None:
            return None
        batch, marks, tags = found
        wrong = [name for name in extra if name in batch]
        if wrong:
            raise ValueError(f"{self.sampler!r}: expected names that are no fields, got {wrong}")
        batch[added] = marks
        batch.update(extra)
        if tags is not None:
            batch[ROW_INDEXES] = tags
        return slots, batch

    return self.consistently(attempt)


def _drawing(
    buffer: Buffer, beta: float | Schedule | None
) -> Callable[[Starts, int], tuple[Slots, Extra]]:
    """How the sampler of a buffer draws starts."""
    sampler = buffer.sampler
    if beta is None:
        return lambda starts, n: sampler.draw_starts(starts, n, buffer.rng)
    if not isinstance(sampler, PrioritySampler):
        raise ValueError("beta: the buffer has no priorities")
    check("beta", beta, 0)
    return lambda starts, n: sampler.draw_starts(starts, n, buffer.rng, beta=beta)


def update_sequence_priorities(
    self: PriorityBuffer,
    indexes: ArrayLike,
    td_errors: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    eta: float = 0.9,
) -> None:
    """Set the priorities of sequences: ``eta * max + (1 - eta) * mean`` of the errors of each.

    Parameters
    ----------
    indexes : array_like of int, shape (n,)
        ``batch["indexes"]`` of ``sample_sequences``. Of duplicates the last wins.
    td_errors : array_like of numbers, shape (n, steps)
        Errors of temporal difference of the rows that were learned from; signs do not count.
    mask : array_like of bool, shape (n, steps), optional
        Which of them are rows: ``batch["mask"][:, burn_in:]``. At least one of each sequence. What
        stands in the others does not matter.
    eta : float
        From 0, the mean, to 1, the greatest.

    Raises
    ------
    TypeError
        They are no integers, numbers or bools.
    ValueError
        A shape is another one, a sequence has no row, an error of a row is infinite or NaN, or
        ``eta`` is not from 0 to 1.
    IndexError
        An index holds no step. Whatever is raised, no priority has changed.

    Notes
    -----
    Cost: proportional to ``n * steps``, and as ``update_priorities`` of n rows.

    Source: Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement
    Learning" (R2D2), section 2.3, where ``eta`` is 0.9.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}, "done": {"shape": ()}}, seed=0)
    >>> rb.add(x=[1, 2, 3], done=[0, 0, 1])
    0
    >>> batch = rb.sample_sequences(1, 2)
    >>> rb.update_sequence_priorities(batch["indexes"], [[-1.0, 3.0]], batch["mask"], eta=0.5)
    >>> rb.get_max_priority()
    2.5
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
    self.update_priorities(indexes, _mix(errors, there, float(eta)))


def _mix(errors: NDArray[Any], there: NDArray[np.bool_], eta: float) -> Floats:
    """The priority of each sequence."""
    sizes = np.where(there, np.abs(errors.astype(np.float64)), 0.0)
    wrong = np.argwhere(~np.isfinite(sizes))
    if len(wrong):
        i, k = wrong[0].tolist()
        raise ValueError(f"td_errors[{i}, {k}]: expected a finite number, got {errors[i, k]}")
    means = (sizes / there.sum(axis=1, keepdims=True)).sum(axis=1)
    mixed: Floats = eta * sizes.max(axis=1) + (1.0 - eta) * means
    return mixed
