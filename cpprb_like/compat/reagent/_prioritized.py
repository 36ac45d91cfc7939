"""ReAgent's ``PrioritizedReplayBuffer``: transitions drawn by priority.

Not here: transitions (``_rows``). Priorities are the weights of the sampler ``Prioritized``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.compat.reagent._buffer import Element, ReplayBuffer
from cpprb_like.compat.reagent._elements import RESERVED, ElementMetadata, InputError
from cpprb_like.compat.reagent._files import Contents
from cpprb_like.compat.reagent._rows import PRIORITY, PRIORITY_KIND, Rows
from cpprb_like.compat.reagent._settings import (
    Declared,
    Settings,
    declared_prioritized,
    prioritized,
)
from cpprb_like.compat.reagent._sum_tree import SumTree
from cpprb_like.samplers import PrioritySampler

read_priorities = PrioritySampler().read_priorities  # the rule of all samplers


class Priorities(SumTree):
    """A ``SumTree`` whose values are the priorities of the rows of a buffer."""

    def __init__(self, rows: Rows) -> None:
        self._sampler = rows.sampler
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
        """Set the priorities of slots; slots without a row are ignored."""
        stored = node_indices < self._ring.stored
        self._sampler.update_priorities(node_indices[stored], values[stored])


class PrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritized experience replay, without exponents (Schaul et al., 2016).

    Parameters
    ----------
    stack_size, replay_capacity, batch_size, update_horizon, gamma, max_sample_attempts
        As for ``ReplayBuffer``. The first three are required. ``max_sample_attempts`` is not used,
        because slots that are not valid are never drawn. ``return_everything_as_stack`` and
        ``return_as_timeline_format`` are keywords.
    observation_shape, extra_storage_types, ...
        Declarations of fields, as until July 2020. Arguments by position have the order of
        ReAgent's class: ``observation_shape``, then those above, then ``extra_storage_types,
        observation_dtype, terminal_dtype, action_shape, action_dtype, reward_shape,
        reward_dtype``.

    Attributes
    ----------
    sum_tree : SumTree
        Priorities of all slots, valid or not. A slot without a row has priority 0.

    Notes
    -----
    Draws are stratified where all rows are valid: one slot from each of equal parts of the sum of
    the priorities. A slot that is not valid is replaced by an independent draw. Batches have
    ``priority``, ``next_priority``, ``sampling_probabilities`` and ``probabilities``. As in the
    original, ``sampling_probabilities`` are the raw priorities. Where fields are declared, batches
    have only ``sampling_probabilities``.

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
    _OPTIONAL = RESERVED | {PRIORITY}
    _inferred: ClassVar[Callable[..., Settings]] = staticmethod(prioritized)
    _declared: ClassVar[Callable[..., Declared]] = staticmethod(declared_prioritized)

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

    def add(self, /, *args: Any, priority: float | None = None, **fields: Any) -> None:
        """Add a step: see ``ReplayBuffer.add``.

        ``priority`` is finite and at least 0. By default it is the greatest priority so far, at
        least 1.0. Where fields are declared, ``priority`` may be the last positional argument. Bad
        priorities raise ``TypeError`` or ``ValueError``, and leave the buffer unchanged.
        """
        super().add(*args, **(fields if priority is None else {**fields, PRIORITY: priority}))

    def _add(self, /, priority: float | None = None, **fields: Any) -> None:
        if priority is None:
            priority = self.sum_tree.max_recorded_priority
        (value,) = _read_priorities(priority, 1)
        self._write(fields, value)

    def get_add_args_signature(self) -> list[Element]:
        """The fields that ``add`` takes, ``priority`` last."""
        signature = super().get_add_args_signature()
        return [*signature, self._element(PRIORITY, PRIORITY_KIND)] if signature else []

    def set_priority(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of slots; slots without a row are ignored.

        Parameters
        ----------
        indices : array_like of int, shape (n,) or (n, 1)
            Slots, such as ``batch.indices``. The last of several priorities of a slot is kept.
        priorities : array_like, shape (n,) or (n, 1)
            Finite priorities, at least 0.

        Raises ``IndexError`` if there is no such slot. Raises ``TypeError`` or ``ValueError`` for
        bad slots or priorities, or other than one priority for each slot. Then nothing has changed.
        """
        slots = self._slot_list(indices)
        self.sum_tree.set_many(slots, _read_priorities(priorities, len(slots)))

    def get_priority(self, indices: ArrayLike) -> NDArray[np.float32]:
        """The priorities of slots, with shape ``(n,)``; 0 for slots that were never used.

        ``indices`` and errors are as for ``set_priority``.
        """
        return self.sum_tree.get_many(self._slot_list(indices)).astype(np.float32)

    def _slot_list(self, indices: ArrayLike) -> Slots:
        slots = self._slots(indices)
        if slots.ndim == 0 or slots.shape[1:] not in ((), (1,)):
            raise InputError(f"indices: expected shape (n,) or (n, 1), got {slots.shape}")
        return np.ascontiguousarray(slots.reshape(-1))

    def _fill(self, found: Contents) -> None:
        assert found.priorities is not None
        leaves, greatest = found.priorities
        values = _read_priorities([*leaves, greatest], len(leaves) + 1)
        super()._fill(found._replace(priorities=(values[:-1], greatest)))
        if found.add_count:  # the row with the greatest priority so far may be overwritten
            for priority in (greatest, values[0]):
                self.sum_tree.set(0, priority)


def _read_priorities(priorities: ArrayLike, n: int) -> Floats:
    values = read_priorities(priorities)
    if len(values) != n:
        raise InputError(f"priorities: expected {n}, got {len(values)}")
    return values
