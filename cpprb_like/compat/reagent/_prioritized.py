"""ReAgent's ``PrioritizedReplayBuffer``: transitions drawn by priority.

Not here: transitions (``_buffer``), and the trees (``_sum_tree``, ``_draws``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like.compat.reagent import _settings
from cpprb_like.compat.reagent._buffer import Element, Pending, ReplayBuffer, Tensor
from cpprb_like.compat.reagent._draws import Draws
from cpprb_like.compat.reagent._elements import DenseMetadata, ElementMetadata, column
from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._store import Read, Store
from cpprb_like.compat.reagent._sum_tree import SumTree
from cpprb_like.samplers import PrioritySampler

__all__ = ["PrioritizedReplayBuffer"]

Array = NDArray[Any]
Slots = NDArray[np.intp]

PRIORITY = "priority"
read_priorities = PrioritySampler().read_priorities  # as all priorities are read
KIND = DenseMetadata((), np.dtype(np.float32))


class _Priorities(SumTree):
    """Priorities whose changes draws follow, also those that users of the tree make themselves."""

    follower: Draws

    def set_many(self, node_indices: Slots, values: NDArray[np.float64]) -> None:
        super().set_many(node_indices, values)
        self.follower.weigh(node_indices)


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
        The priorities of all slots, valid or not.

    Raises
    ------
    InputError, TypeError, ImportError
        As ``ReplayBuffer``.

    Notes
    -----
    The sums that draws go by are those of the valid slots, in a tree of their own. Random numbers
    are those of Python's module ``random``.

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
            self,
            observation_shape: tuple[int, ...],
            stack_size: int,
            replay_capacity: int,
            batch_size: int,
            return_everything_as_stack: bool | None = False,
            return_as_timeline_format: bool | None = False,
            update_horizon: int = 1,
            gamma: float = 0.99,
            max_sample_attempts: int = 1000,
            extra_storage_types: Iterable[tuple[str, tuple[int, ...], DTypeLike]] | None = None,
            observation_dtype: DTypeLike = np.uint8,
            action_shape: tuple[int, ...] = (),
            action_dtype: DTypeLike = np.int32,
            reward_shape: tuple[int, ...] = (),
            reward_dtype: DTypeLike = np.float32,
            terminal_dtype: DTypeLike = np.uint8,
        ) -> None: ...

        def __init__(self, *args: Any, **options: Any) -> None: ...

    def _new_draws(self) -> Draws:
        # The two know each other, but not the buffer, whose rows go away with the last name for it.
        priorities = _Priorities(self._settings.replay_capacity)
        priorities.follower = Draws(self._settings.replay_capacity, priorities.get_many)
        self.sum_tree: SumTree = priorities
        return priorities.follower

    def _new_store(self, elements: dict[str, ElementMetadata]) -> Store:
        if PRIORITY in elements:
            raise InputError(f"{PRIORITY}: it is a parameter of add, and no name for a field")
        return super()._new_store(elements)

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
        value = self._read_priority(given.pop(PRIORITY, None))
        self._write(given, value)

    def _follow(self, pending: Pending) -> None:
        super()._follow(pending)
        if pending.priorities is not None:
            self.sum_tree.set_many(pending.slots, pending.priorities)

    def _read_priority(self, priority: Any) -> float:
        if priority is None:
            return self.sum_tree.max_recorded_priority
        (value,) = self._read_priorities(priority, 1).tolist()
        return float(value)

    def _read_priorities(self, priorities: ArrayLike, n: int) -> NDArray[np.float64]:
        values = read_priorities(priorities)
        if len(values) != n:
            raise InputError(f"priorities: expected {n}, got {len(values)}")
        if n and values.max() > self.sum_tree.largest:
            raise InputError(
                f"priorities: expected at most {self.sum_tree.largest:g}, got {values.max():g}"
            )
        return values

    def get_add_args_signature(self) -> list[Element]:
        """The fields that ``add`` takes, ``priority`` last."""
        signature = super().get_add_args_signature()
        return [*signature, self._element(PRIORITY, KIND)] if signature else []

    # ------------------------------------------------------------------ priorities

    def set_priority(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of slots.

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
        self.sum_tree.set_many(slots, self._read_priorities(priorities, len(slots)))

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
        slots = self._draws.slots(indices)
        if slots.ndim == 0 or slots.shape[1:] not in ((), (1,)):
            raise InputError(f"indices: expected shape (n,) or (n, 1), got {slots.shape}")
        return np.ascontiguousarray(slots.reshape(-1))

    # ------------------------------------------------------------------ sampling

    def sample_index_batch(self, batch_size: SupportsIndex) -> Tensor:
        """Draw slots by priority, one from each of ``batch_size`` equal parts of their sum.

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

    def _draw(self, n: int) -> Slots:
        return self._valid.stratified(n)

    def _names(self, rows: Store | None) -> tuple[str, ...]:
        more = () if self._is_declared else ("probabilities",)
        return (*super()._names(rows), "sampling_probabilities", *more)

    @property
    def _is_declared(self) -> bool:
        """Whether batches have the fields that ReAgent gave them until July 2020, and no others."""
        return self._settings.elements is not None

    def _elements(self, rows: Store) -> dict[str, ElementMetadata]:
        """With the priorities, which are no declared field."""
        return rows.elements if self._is_declared else {**rows.elements, PRIORITY: KIND}

    def _reader(self, rows: Store) -> Read:
        read_field = super()._reader(rows)
        return lambda name, slots: (
            self._priorities(slots) if name == PRIORITY else read_field(name, slots)
        )

    def _priorities(self, slots: Slots) -> Array:
        """The priorities of slots of any shape, 0 for the slot -1."""
        there = slots >= 0
        priorities = np.zeros(slots.shape, np.float32)
        priorities[there] = self.sum_tree.get_many(slots[there])
        return priorities

    def _beside(self, slots: Slots) -> dict[str, Any]:
        """The priorities under ReAgent's name for them, and what they make probable."""
        columns = {"sampling_probabilities": self.sum_tree.get_many(slots)}
        if not self._is_declared:
            columns["probabilities"] = self._draws.probabilities(slots)
        return {name: column(values.astype(np.float32)) for name, values in columns.items()}

    # ------------------------------------------------------------------ files

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        words, arrays = super()._state()
        words["max_recorded_priority"] = self.sum_tree.max_recorded_priority
        slots = np.arange(self._settings.replay_capacity, dtype=np.intp)
        return words, arrays | {"sum_tree": self.sum_tree.get_many(slots)}

    def _restore(
        self, rows: Store | None, words: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        slots = np.arange(self._settings.replay_capacity, dtype=np.intp)
        priorities = self._read_priorities(arrays["sum_tree"], len(slots))
        greatest = self._read_priority(words["max_recorded_priority"])
        super()._restore(rows, words, arrays)
        self.sum_tree.set_many(slots, priorities)
        self.sum_tree.max_recorded_priority = greatest
