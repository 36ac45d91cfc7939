"""Which slots of a buffer may be drawn, and draws from these.

Flags for the answers that users ask for, and a sum tree over them, so that a draw costs the same
however many slots there are: ReAgent looks through all flags at each draw. Not here: what is read
of the slots (``_transitions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._sum_tree import SumTree

__all__ = ["Draws", "Plan", "marks"]

Floats = NDArray[np.float64]
Slots = NDArray[np.intp]


def _alike(slots: Slots) -> Floats:
    """Every slot counts the same."""
    return np.ones(len(slots))


class Plan(NamedTuple):
    """Flags that are to change: their slots, what they will be, and how many will be set."""

    slots: Slots
    flags: NDArray[np.bool_]
    total: int


class Draws:
    """Flags of the slots, and a tree of the weights of those whose flag is set.

    Parameters
    ----------
    capacity : int
        Slots.
    weights : callable, optional
        The weights of slots, as a float64 array; 1.0 each.

    Attributes
    ----------
    flags : ndarray of bool, shape (capacity,)
        To be read only.
    count : int
        Flags that are set.
    """

    def __init__(self, capacity: int, weights: Callable[[Slots], Floats] = _alike) -> None:
        self.flags: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.count = 0
        self._weights = weights
        self._tree = SumTree(capacity)

    def slots(self, indices: Any) -> Slots:
        """Numbers of slots as an array.

        Raises ``IndexError`` if there is no such slot, ``InputError`` if it is no number of one.
        """
        given = np.asarray(indices)
        with np.errstate(invalid="ignore"):
            slots = given.astype(np.intp) if given.dtype.kind in "iuf" else given
        if slots.dtype != np.intp or (slots != given).any():
            raise InputError(f"indices: expected integers, got {indices!r}")
        if slots.size and not 0 <= slots.min() <= slots.max() < len(self.flags):
            raise IndexError(f"indices: expected 0 to {len(self.flags) - 1}, got {indices!r}")
        return slots

    def plan(self, marks: Iterable[tuple[int, bool]]) -> Plan:
        """What setting or clearing flags, in this order, comes to."""
        wanted = dict(marks)
        changed = {slot: to for slot, to in wanted.items() if bool(self.flags[slot]) != to}
        more = sum(1 if to else -1 for to in changed.values())
        return Plan(
            np.fromiter(changed, np.intp, len(changed)),
            np.fromiter(changed.values(), np.bool_, len(changed)),
            self.count + more,
        )

    def follow(self, plan: Plan) -> None:
        """Set and clear the flags. If it is interrupted, it has to be done again."""
        self.flags[plan.slots] = plan.flags
        self.count = plan.total
        if len(plan.slots):
            self.weigh(plan.slots)

    def weigh(self, slots: Slots) -> None:
        """Take note of weights that have changed."""
        self._tree.set_many(slots, self._weights(slots) * self.flags[slots])

    def load(self, flags: NDArray[np.bool_]) -> None:
        """Replace all flags."""
        self.flags[:] = flags
        self.count = int(np.count_nonzero(flags))
        self.weigh(np.arange(len(flags), dtype=np.intp))

    def nth(self, places: NDArray[Any]) -> Slots:
        """The slots in these places among those whose flag is set; for weights of 1.0."""
        return self._tree.find(places + 0.5)

    def stratified(self, n: int) -> Slots:
        """As ``SumTree.stratified_sample``, of the slots whose flag is set."""
        return self._tree.draw_stratified(n)

    def probabilities(self, slots: Slots) -> Floats:
        """How probable each of these slots is in one draw by weight."""
        total = self._tree._total_priority()
        return self._tree.get_many(slots) / total if total else np.zeros(len(slots))


def marks(
    settings: Settings, written: list[int], padding: int, episode_steps: int, is_known: bool
) -> Iterator[tuple[int, bool]]:
    """Which slots become invalid and valid when rows are written.

    Parameters
    ----------
    settings : Settings
        Of the buffer.
    written : list of int
        The slots of the rows: ``padding`` rows, the step, and a final observation perhaps.
    padding : int
        Rows of zeros among them.
    episode_steps : int
        Steps of the episode so far, this one included.
    is_known : bool
        Whether the episode ends here and leaves no next state open.
    """
    capacity, horizon = settings.replay_capacity, settings.update_horizon
    step = written[padding]
    if episode_steps > horizon:
        yield (step - horizon) % capacity, True
    for slot in written:
        yield slot, False
    for ahead in range(1, settings.stack_size):
        yield (written[-1] + ahead) % capacity, False  # its stack is broken
    if is_known:
        for back in range(min(episode_steps, horizon)):
            yield (step - back) % capacity, True
