"""ReAgent's ``PrioritizedReplayBuffer``: transitions drawn by priority.

Not here: transitions (``_buffer``), and the weights of rows, which the sampler ``Prioritized`` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Array, Floats, Slots
from cpprb_like.compat.reagent import _settings
from cpprb_like.compat.reagent._buffer import Element, ReplayBuffer, Tensor
from cpprb_like.compat.reagent._elements import DenseMetadata, ElementMetadata, InputError, column
from cpprb_like.compat.reagent._files import Contents
from cpprb_like.compat.reagent._rows import Rows
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._sum_tree import SumTree
from cpprb_like.samplers import Prioritized, PrioritySampler

__all__ = ["PrioritizedReplayBuffer"]

PRIORITY = "priority"
read_priorities = PrioritySampler().read_priorities  # as all priorities are read
KIND = DenseMetadata((), np.dtype(np.float32))


class Priorities(SumTree):
    """The priorities of the rows of a buffer, under the names of ``SumTree``."""

    def __init__(self, rows: Rows) -> None:
        self._sampler = cast("Prioritized", rows.rows.sampler)
        self._ring = rows.ring
        self.capacity = rows.ring.capacity

    @property
    def max_recorded_priority(self) -> float:  # type: ignore[override]
        """The greatest priority that was ever set, at least 1.0."""
        return self._sampler.get_max_priority()

    @property
    def _tree(self) -> Any:  # type: ignore[override]
        self._sampler.rows.sync()
        return self._sampler.rows.tree

    def set_many(self, node_indices: Slots, values: Floats) -> None:
        """Set the priorities of slots; those that hold no row yet have none."""
        there = node_indices < self._ring.stored
        self._sampler.update_priorities(node_indices[there], values[there])


class PrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritized experience replay, without exponents (Schaul et al., 2016).

    Parameters
    ----------
    stack_size, replay_capacity, batch_size, update_horizon, gamma, ...
        As for ``ReplayBuffer``.
    max_sample_attempts : int
        Taken for ReAgent's sake: slots that are not valid are not drawn in the first place.

    Attributes
    ----------
    sum_tree : SumTree
        The priorities of all slots, valid or not; 0 for those that hold no row yet.

    Raises
    ------
    InputError, TypeError, ImportError
        As ``ReplayBuffer``.

    Notes
    -----
    Draws are stratified where all rows are valid: one slot from each of equal parts of the sum of
    the priorities. A slot that is not valid is replaced by an independent draw.

    Source: Schaul et al. (2016), "Prioritized Experience Replay", without its exponents.

    Examples
    --------
    >>> from cpprb_like.compat.reagent import PrioritizedReplayBuffer
    >>> rb = PrioritizedReplayBuffer(stack_size=1, replay_capacity=10, batch_size=4)
    >>> for t in range(3):
    ...     rb.add(observation=[t], action=t, reward=1.0, terminal=t == 2, priority=t / 2)
    >>> batch = rb.sample_all_valid_transitions()
    >>> batch.sampling_probabilities.tolist(), batch.probabilities[:2].tolist()
    ([[0.0], [0.5], [1.0]], [[0.0], [0.3333333432674408]])
    """

    _BY_WEIGHT = True
    _inferred: ClassVar[Callable[..., Settings]] = staticmethod(_settings.prioritized)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            stack_size: int,
            replay_capacity: int,
            batch_size: int,
            update_horizon: int = 1,
            gamma: float = 0.99,
            max_sample_attempts: int = 1000,
            *,
            return_everything_as_stack: bool | None = False,
            return_as_timeline_format: bool | None = False,
            strict: bool = False,
        ) -> None: ...

        @overload
        def __init__(
            self, observation_shape: tuple[int, ...], *args: Any, **options: Any
        ) -> None: ...

        def __init__(self, *args: Any, **options: Any) -> None: ...

    @property
    def sum_tree(self) -> SumTree:
        """The priorities of all slots."""
        if self._rows is None:
            return SumTree(self._settings.replay_capacity)
        return Priorities(self._rows)

    def _new_rows(self, elements: dict[str, ElementMetadata]) -> Rows:
        if PRIORITY in elements:
            raise InputError(f"{PRIORITY}: it is a parameter of add, and no name for a field")
        return super()._new_rows(elements)

    # ------------------------------------------------------------------ adding

    def add(self, /, *args: Any, priority: float | None = None, **fields: Any) -> None:
        """Add a step, see ``ReplayBuffer.add``.

        Parameters
        ----------
        priority : float, optional
            Finite, at least 0; by default the greatest priority so far, at least 1.0. Where fields
            are declared it may be the last one by position.

        Raises
        ------
        TypeError, ValueError
            The priority is none. Whatever is raised, the buffer is as it was.
        """
        given = self._by_name(args, fields if priority is None else {**fields, PRIORITY: priority})
        priority = given.pop(PRIORITY, None)
        if priority is None:
            priority = self.sum_tree.max_recorded_priority
        (value,) = self._read_priorities(priority, 1)
        self._write(given, value)

    def _read_priorities(self, priorities: ArrayLike, n: int) -> NDArray[np.float64]:
        values = read_priorities(priorities)
        if len(values) != n:
            raise InputError(f"priorities: expected {n}, got {len(values)}")
        largest = self.sum_tree.largest
        if n and values.max() > largest:
            raise InputError(f"priorities: expected at most {largest:g}, got {values.max():g}")
        return values

    def get_add_args_signature(self) -> list[Element]:
        """The fields that ``add`` takes, ``priority`` last."""
        signature = super().get_add_args_signature()
        return [*signature, self._element(PRIORITY, KIND)] if signature else []

    # ------------------------------------------------------------------ priorities

    def set_priority(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of slots; those that hold no row yet have none.

        Parameters
        ----------
        indices : array_like of int, shape (n,) or (n, 1)
            Slots, such as ``batch.indices``. Of duplicates the last wins.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        IndexError
            There is no such slot.
        TypeError, ValueError
            They are no slots, no priorities, or not one for each slot. Whatever is raised, no
            priority has changed.

        Notes
        -----
        Cost: proportional to n and the logarithm of the capacity.
        """
        slots = self._slot_list(indices)
        values = self._read_priorities(priorities, len(slots))
        self.sum_tree.set_many(slots, values)

    def get_priority(self, indices: ArrayLike) -> NDArray[np.float32]:
        """The priorities of slots, 0 for those that were never used.

        Parameters
        ----------
        indices : array_like of int, shape (n,) or (n, 1)

        Returns
        -------
        ndarray of float32, shape (n,)

        Raises
        ------
        IndexError
            There is no such slot.
        InputError
            They are no integers in one dimension. It is a ``ValueError`` and an
            ``AssertionError``.
        """
        return self.sum_tree.get_many(self._slot_list(indices)).astype(np.float32)

    def _slot_list(self, indices: ArrayLike) -> Slots:
        slots = self._slots(indices)
        if slots.ndim == 0 or slots.shape[1:] not in ((), (1,)):
            raise InputError(f"indices: expected shape (n,) or (n, 1), got {slots.shape}")
        return np.ascontiguousarray(slots.reshape(-1))

    # ------------------------------------------------------------------ sampling

    def sample_index_batch(self, batch_size: SupportsIndex) -> Tensor:
        """Draw slots by priority, see the notes of the class.

        Parameters
        ----------
        batch_size : int
            How many, at least 0.

        Returns
        -------
        Tensor of int64, shape (batch_size,)

        Raises
        ------
        NotEnoughDataError
            No slot is valid and has a priority above 0. It is a ``RuntimeError``.
        """
        return super().sample_index_batch(batch_size)

    # What ReAgent gave out until July 2020, where fields are declared, and no more.

    def _names(self, elements: Mapping[str, ElementMetadata]) -> tuple[str, ...]:
        more = () if self._settings.is_declared else ("probabilities",)
        return (*super()._names(elements), "sampling_probabilities", *more)

    def _outputs(self, elements: Mapping[str, ElementMetadata]) -> Mapping[str, ElementMetadata]:
        return elements if self._settings.is_declared else {**elements, PRIORITY: KIND}

    def _column(self, rows: Rows, name: str, slots: Slots) -> Array:
        if name != PRIORITY:
            return super()._column(rows, name, slots)
        there = slots >= 0
        priorities = np.zeros(slots.shape, np.float32)
        priorities[there] = Priorities(rows).get_many(slots[there])
        return priorities

    def _beside(self, rows: Rows, slots: Slots) -> dict[str, Any]:
        """The priorities under ReAgent's name for them, and what they make probable."""
        tree = Priorities(rows)
        priorities = tree.get_many(slots)
        columns = {"sampling_probabilities": priorities}
        if not self._settings.is_declared:
            others = np.flatnonzero(~rows.flags[: rows.ring.stored])
            total = tree._total_priority() - tree.get_many(others).sum()
            columns["probabilities"] = priorities / (total if total > 0 else 1.0)
        return {name: column(values.astype(np.float32)) for name, values in columns.items()}

    # ------------------------------------------------------------------ files

    def _fill(self, found: Contents) -> None:
        assert found.priorities is not None
        leaves, greatest = found.priorities
        values = self._read_priorities([*leaves, greatest], len(leaves) + 1)
        super()._fill(found._replace(priorities=(values[:-1], greatest)))
        if self._rows is not None and found.add_count:  # the greatest so far may be of no row
            for priority in (greatest, values[0]):
                self.sum_tree.set_many(np.zeros(1, np.intp), np.array([priority]))
