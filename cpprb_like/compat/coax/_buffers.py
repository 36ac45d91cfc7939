"""coax's ``SimpleReplayBuffer`` and ``PrioritizedReplayBuffer``, adapters of public buffers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like import NotEnoughDataError, ReplayBuffer, buffers
from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.generators import read_seed
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.compat.coax._transitions import (
    STORED,
    Array,
    Columns,
    TransitionBatch,
    read,
    restore,
)
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import check

__all__ = ["PrioritizedReplayBuffer", "SimpleReplayBuffer", "TransitionBatch"]

MAX_IDX = int(np.iinfo(np.int64).max)


class _Buffer(Checkpointed):
    """Transitions in a ``ReplayBuffer``, whose fields come from the first batch."""

    OF_ROWS = ("_capacity",)

    def __init__(self, capacity: int) -> None:
        self._capacity = as_int("capacity", capacity, 1)
        self._rows: ReplayBuffer | None = None
        self._parts: list[Any] = []  # the first batch, with names of fields in place of arrays
        self._kind: Any = TransitionBatch

    @property
    def capacity(self) -> int:
        """Number of transitions that the buffer can store."""
        return self._capacity

    def _open(self, fields: dict[str, Any]) -> ReplayBuffer:
        raise NotImplementedError

    def _put(self, batch: Any, parts: list[Any], leaves: Columns, **more: Any) -> None:
        """Add the transitions of a batch; ``parts`` and ``leaves`` are the result of ``read``."""
        if len(leaves["Rn"]) == 0:
            return
        rows = self._rows
        if rows is None:
            rows = self._open(
                {
                    name: {"shape": leaf.shape[1:], "dtype": leaf.dtype}
                    for name, leaf in leaves.items()
                }
            )
        elif parts != self._parts:
            raise ValueError(
                f"transition_batch: expected {list(rows.schema.names)}, as in the first one, "
                f"got {list(leaves)}"
            )
        rows.add(**leaves, **more)
        if self._rows is None:
            self._parts, self._kind = parts, type(batch)
            self._rows = rows  # set last: threads that find rows read the two others

    def _batch(self, columns: Columns, idx: Array) -> Any:
        parts = {
            name: restore(part, columns) for name, part in zip(STORED, self._parts, strict=True)
        }
        return self._kind(**parts, idx=idx)

    def _number(self, slots: Array, written: int) -> Array:
        """The ``idx`` of the transitions in ``slots``, when ``written`` of them were added."""
        raise NotImplementedError

    def clear(self) -> None:
        """Delete all transitions; memory stays allocated."""
        if self._rows is not None:
            self._rows.clear()

    def __len__(self) -> int:
        """Number of stored transitions."""
        return 0 if self._rows is None else len(self._rows)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Any]:
        """The transitions stored at the call, as batches of one, the oldest first."""
        rows = self._rows
        if rows is None:
            return iter(())
        columns: Columns
        columns, numbers = rows.consistently(partial(self._all, rows))
        return (
            self._batch({name: column[k : k + 1] for name, column in columns.items()}, number)
            for k, number in enumerate(numbers[:, np.newaxis])
        )

    def _all(self, rows: ReplayBuffer) -> tuple[Array, tuple[Columns, Array]]:
        """All slots; the columns and numbers of all transitions; called by ``consistently``."""
        written = rows.ring.written
        slots = np.arange(max(0, written - self._capacity), written) % self._capacity
        return slots, (rows[slots], self._number(slots, written))


class SimpleReplayBuffer(_Buffer):
    """coax's buffer with uniform draws, without replacement.

    With the same ``random_seed`` the draws equal coax's draws. They come from ``random.sample`` of
    a generator with this seed. The generator of the module ``random`` does not change.

    Examples
    --------
    >>> from cpprb_like.compat.coax import SimpleReplayBuffer, TransitionBatch
    >>> buffer = SimpleReplayBuffer(100, random_seed=0)
    >>> for i in range(10):
    ...     batch = TransitionBatch.from_single([i, i], 0, 0.0, 1.0, False, 0.9, [i + 1, i + 1])
    ...     buffer.add(batch)
    >>> len(buffer), buffer.sample(batch_size=4).S.shape
    (10, (4, 2))
    """

    def __init__(self, capacity: int, random_seed: int | None = None) -> None:
        super().__init__(capacity)
        try:
            self._random = random.Random(random_seed)
        except TypeError:
            raise TypeError(f"random_seed: expected an integer, got {random_seed!r}") from None

    def _open(self, fields: dict[str, Any]) -> ReplayBuffer:
        return ReplayBuffer(self.capacity, fields, seed=0)  # the seed is not used: this class draws

    def add(self, transition_batch: Any) -> None:
        """Add transitions: a ``TransitionBatch``, or another object with its attributes.

        The object does not change: its ``idx`` is not set to the numbers in the buffer. Raises
        ``TypeError`` or ``ValueError``, and adds nothing, if an attribute is missing. The same
        holds if the arrays differ from the first ones in number, shape or dtype.
        """
        parts, leaves = read(transition_batch)
        self._put(transition_batch, parts, leaves)

    def sample(self, batch_size: int = 32) -> Any:
        """Draw different transitions, as a batch of the class of the first added batch.

        ``idx`` counts the transitions from the first one added after the last ``clear``. Raises
        ``NotEnoughDataError``, a ``ValueError``, if there are fewer than ``batch_size``.
        """
        n, rows = as_int("batch_size", batch_size, 1), self._rows
        if rows is None:
            raise NotEnoughDataError(f"cannot sample {n} transitions: the buffer holds 0")
        return rows.consistently(partial(self._sample, rows, n))

    def _sample(self, rows: ReplayBuffer, n: int) -> tuple[Array, Any]:
        """The slots of a random batch, and the batch; called by ``consistently``."""
        written = rows.ring.written
        stored = min(written, self._capacity)
        if n > stored:
            raise NotEnoughDataError(f"cannot sample {n} transitions: the buffer holds {stored}")
        idx = written - stored + np.array(self._random.sample(range(stored), n))
        slots = idx % self._capacity
        return slots, self._batch(rows[slots], idx)

    def _number(self, slots: Array, written: int) -> Array:
        oldest = max(0, written - self._capacity)
        return oldest + (slots - oldest) % self._capacity


class PrioritizedReplayBuffer(_Buffer):
    """coax's buffer with draws by priority.

    Parameters
    ----------
    capacity : int
        Number of transitions to store.
    alpha : float
        Prioritization exponent, above 0. A transition of advantage ``Adv`` is drawn in proportion
        to ``(abs(Adv) + epsilon) ** alpha``.
    beta : float
        Importance-sampling exponent, above 0. An exponent of 1 corrects fully.
    epsilon : float
        Number added to each absolute advantage, above 0: see ``alpha``.
    random_seed : int, optional
        Seed of the draws.

    Notes
    -----
    The three parameters can be set at any time. ``alpha`` applies to all transitions, and
    ``epsilon`` to transitions added or updated afterwards. A parameter of a wrong type or value
    raises ``TypeError`` or ``ValueError``, which names the parameter.

    Source: Schaul, Quan, Antonoglou and Silver (2016), "Prioritized Experience Replay", sections
    3.3 and 3.4. Draws are not stratified.

    Examples
    --------
    >>> from cpprb_like.compat.coax import PrioritizedReplayBuffer, TransitionBatch
    >>> buffer = PrioritizedReplayBuffer(100, alpha=0.6, random_seed=0)
    >>> for i in range(10):
    ...     batch = TransitionBatch.from_single([i, i], 0, 0.0, 1.0, False, 0.9, [i + 1, i + 1])
    ...     buffer.add(batch, Adv=[0.1 * i])
    >>> drawn = buffer.sample(batch_size=4)
    >>> drawn.S.shape, float(drawn.W.max())
    ((4, 2), 1.0)
    >>> buffer.update(drawn.idx, Adv=[0.5, 0.5, 0.5, 0.5])
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 1.0,
        beta: float = 1.0,
        epsilon: float = 1e-4,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(capacity)
        try:
            np.random.default_rng(read_seed("random_seed", random_seed))
        except (TypeError, ValueError) as error:
            raise type(error)(f"random_seed: {error}") from None
        self._random_seed = random_seed
        self._alpha = _above_zero("alpha", alpha)
        self.beta = _above_zero("beta", beta)
        self.epsilon = _above_zero("epsilon", epsilon)

    def _open(self, fields: dict[str, Any]) -> ReplayBuffer:
        sampler = Prioritized(
            self.alpha,
            eps=0.0,
            check_for_update=True,
            stratified=False,
            weights="batch",
            weights_dtype=np.float64,  # weights are then multiplied by W
        )
        return buffers.PrioritizedReplayBuffer(
            self.capacity, fields, sampler=sampler, seed=self._random_seed
        )

    @property
    def alpha(self) -> float:
        """Prioritization exponent."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        old, new = self._alpha, _above_zero("alpha", alpha)
        if self._rows is not None:
            rows, sampler = self._opened()
            slots = np.arange(len(rows))
            priorities = sampler.rows.get(slots) ** (1 / old)
            sampler.alpha = new
            try:
                rows.update_priorities(slots, priorities)
            except ValueError:
                sampler.alpha = old
                raise
        self._alpha = new

    def _opened(self) -> tuple[buffers.PrioritizedReplayBuffer, Prioritized]:
        rows = self._rows
        assert isinstance(rows, buffers.PrioritizedReplayBuffer)
        assert isinstance(rows.sampler, Prioritized)
        return rows, rows.sampler

    def add(self, transition_batch: Any, Adv: ArrayLike) -> None:  # noqa: N803
        """Add transitions, as ``SimpleReplayBuffer.add`` does.

        ``Adv`` is a finite advantage for each transition, such as a TD error. Other values raise
        ``TypeError`` or ``ValueError`` and leave the buffer unchanged.
        """
        parts, leaves = read(transition_batch)
        priorities = self._priorities(Adv, len(leaves["Rn"]))
        self._put(transition_batch, parts, leaves, priorities=priorities)

    def _priorities(self, advantages: ArrayLike, n: int) -> Array:
        given = np.asarray(advantages)
        if given.dtype.kind not in "fiu" and given.size:
            raise TypeError(f"Adv: expected numbers, got {advantages!r}")
        if given.shape != (n,):
            raise ValueError(f"Adv: expected shape ({n},), got {given.shape}")
        if not np.isfinite(given.astype(np.float64)).all():
            raise ValueError(f"Adv: expected finite numbers, got {advantages!r}")
        return np.abs(given.astype(np.float64)) + _above_zero("epsilon", self.epsilon)

    def sample(self, batch_size: int = 32) -> Any:
        """Draw transitions by priority, with replacement, as a batch of the first batch's class.

        ``W`` is multiplied by importance-sampling weights. The least probable transition of the
        batch has weight 1.0. ``idx`` is for ``update``, and counts the transitions, also over a
        ``clear``. Raises ``NotEnoughDataError``, a ``ValueError``, if the buffer is empty.
        """
        n = as_int("batch_size", batch_size, 1)
        if not self:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        columns = self._opened()[0].sample(n, beta=_above_zero("beta", self.beta))
        idx = columns.pop("indexes").astype(np.int64) - self.capacity
        weighted = columns["W"].T * columns.pop("weights")  # W may have more axes
        return self._batch(columns | {"W": weighted.T.astype(columns["W"].dtype)}, idx)

    def update(self, idx: ArrayLike, Adv: ArrayLike) -> None:  # noqa: N803
        """Replace the advantages of transitions; overwritten transitions are ignored.

        Parameters
        ----------
        idx : array_like of int, shape (n,)
            ``batch.idx`` of a drawn batch.
        Adv : array_like, shape (n,)
            Finite advantages.

        Raises
        ------
        IndexError
            No transition ever had this ``idx``. Any error leaves the buffer unchanged.
        """
        given = np.asarray(idx)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise TypeError(f"idx: expected integers in one dimension, got {idx!r}")
        priorities = self._priorities(Adv, len(given))
        if len(given) == 0:
            return
        unknown = IndexError(
            f"idx: expected numbers of transitions that were added, got {given.min()} to "
            f"{given.max()}"
        )
        if self._rows is None or given.min() < 0 or given.max() > MAX_IDX - self.capacity:
            raise unknown
        try:
            self._opened()[0].update_priorities(given.astype(np.int64) + self.capacity, priorities)
        except IndexError:
            raise unknown from None

    def _number(self, slots: Array, written: int) -> Array:  # noqa: ARG002 (handles number rows)
        handles = self._opened()[1].rows.indexes(slots, True)
        return handles.astype(np.int64) - self.capacity


def _above_zero(name: str, value: float) -> float:
    if callable(value):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    check(name, value, 0, above=True)
    return float(value)
