"""``PrioritizedReplayBuffer``: a ``ReplayBuffer`` whose rows have priorities, and their calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.foreign_arrays import read_array
from cpprb_like._store.row_handles import without_row
from cpprb_like.buffers._entry import PriorityBufferBase
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.samplers._prioritized import Prioritized, PrioritySampler
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.typing import BufferOptions, FieldSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["PrioritizedReplayBuffer"]

OWN_NAMES = ("priorities", "weights", "indexes")


class PrioritizedReplayBuffer(PriorityBufferBase, ReplayBuffer):
    """Proportional prioritized experience replay (PER; Schaul et al., 2016).

    A row i of priority ``p_i`` is drawn with probability ``P(i)`` proportional to
    ``(p_i + eps) ** alpha``. Batches have importance-sampling ``weights``, and ``indexes`` for
    ``update_priorities``.

    Parameters
    ----------
    size, env_dict
        As for ``ReplayBuffer``. No field may be called ``priorities``, ``weights`` or ``indexes``.
    alpha : float, optional
        Prioritization exponent, at least 0; 0 is uniform. See ``Prioritized`` for its default.
    eps : float, optional
        Added to each priority, so that rows of priority 0 can be drawn.
    check_for_update : bool, optional
        Make ``indexes`` handles of rows, which name one row for ever: ``update_priorities`` skips
        rows that were overwritten since they were drawn. By default they are slots.
    sampler : PrioritySampler, optional
        The sampler, ``Prioritized(...)`` or ``RankBased(...)``, in place of ``alpha``, ``eps`` and
        ``check_for_update``.
    **options
        As for ``ReplayBuffer``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``ReplayBuffer``; or a parameter of priorities is of a wrong type or value.

    Notes
    -----
    New rows get the maximum priority so far, 1.0 at first; adding them costs what it costs in a
    uniform buffer. See ``Prioritized`` for importance-sampling weights, cost and source.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> rb = PrioritizedReplayBuffer(1000, {"obs": {"shape": 4}, "rew": {"shape": ()}}, seed=0)
    >>> for _ in range(10):
    ...     _ = rb.add(obs=[1, 2, 3, 4], rew=0.5)
    >>> batch = rb.sample(32, beta=0.4)
    >>> batch["obs"].shape, batch["weights"].shape
    ((32, 4), (32,))
    >>> rb.update_priorities(batch["indexes"], abs(batch["rew"] - 1))
    """

    sampler: PrioritySampler

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec],
        *,
        alpha: float | None = None,
        eps: float | None = None,
        check_for_update: bool | None = None,
        sampler: PrioritySampler | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        given = {"alpha": alpha, "eps": eps, "check_for_update": check_for_update}
        given = {name: value for name, value in given.items() if value is not None}
        if sampler is None:
            sampler = Prioritized(**given)  # type: ignore[arg-type]
        elif given:
            raise TypeError(f"{', '.join(given)}: expected as options of the sampler")
        elif not isinstance(sampler, PrioritySampler):
            raise TypeError(f"sampler: expected a PrioritySampler, got {sampler!r}")
        fields: object = env_dict  # what is no mapping is refused below
        taken = [name for name in OWN_NAMES if isinstance(fields, Mapping) and name in fields]
        if taken:
            raise ValueError(f"env_dict: {taken} are names of what a batch gets from priorities")
        super().__init__(size, env_dict, sampler=sampler, **options)

    def add_where(self, present: ArrayLike, /, **fields: Any) -> int | None:
        """As ``ReplayBuffer.add_where``; it takes ``priorities`` too, as ``add`` does."""
        self.sampler.sync()
        slot = super().add_where(present, **fields)
        self.sampler.sync()
        return slot

    def _read_priorities(
        self, priorities: ArrayLike
    ) -> tuple[RowWeights | None, NDArray[np.float64], NDArray[np.float64] | None]:
        """Priorities for ``add``, and the row weights if they can be set without Python code."""
        if self.n_envs > 1:
            priorities = self._in_time_order(priorities)
        return self.sampler.prepare(priorities)

    def _in_time_order(self, priorities: ArrayLike) -> ArrayLike:
        """Priorities of a block of time steps, flattened to one for each row."""
        try:
            # A masked array stays one, for the sampler to refuse.
            given = priorities if isinstance(priorities, np.ndarray) else read_array(priorities)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return priorities  # the sampler raises the error
        is_block = given.shape[1:] in ((self.n_envs,), (self.n_envs, 1))
        if is_block:
            return given.reshape(-1)
        return priorities if isinstance(priorities, (list, tuple)) else given  # for messages

    def _set_new(self, first: int, clears: int, priorities: NDArray[np.float64]) -> None:
        self.sampler.set_new(first, clears, priorities)

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: true."""
        return True

    def _check_indexes(self) -> None:
        if not self.sampler.check_for_update:
            raise ValueError("indexes: without check_for_update they are slots")
        super()._check_indexes()

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        self.sampler.read_priorities(priorities)
        return without_row(self.ring, indexes, self.sampler.check_for_update)

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set priorities, such as the absolute TD errors of a batch.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, or slots, which mean the rows that are there now. With
            ``check_for_update``, handles of overwritten rows are skipped. Of duplicates the last
            counts.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        TypeError
            They are no integers, or no numbers.
        ValueError
            Not one priority for each index, or one that is negative, infinite or NaN.
        IndexError
            A slot holds no step. Whatever is raised, no priority has changed.

        Notes
        -----
        Cost: proportional to n and the logarithm of the capacity.

        Examples
        --------
        >>> from cpprb_like import PrioritizedReplayBuffer
        >>> rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}}, seed=0)
        >>> rb.add(x=[1, 2, 3])
        0
        >>> rb.update_priorities([0, 1, 2], [0.5, 2.0, 7.0])
        >>> rb.get_max_priority()
        7.0
        """
        self.sampler.update_priorities(indexes, priorities)

    def get_max_priority(self) -> float:
        """The priority of new rows: the maximum so far, 1.0 at first and after ``clear``."""
        return self.sampler.get_max_priority()
