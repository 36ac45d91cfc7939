"""``RowReader``: transitions by slot, of one step or n steps.

Next values and n-step returns are computed from the rows after a drawn row. Not here: which rows
are drawn (``samplers``), how chained fields are stored (``_rows.chained``), and the walk through a
window (``_walker``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import Ring
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import new_array, take, take_chain
from cpprb_like._rows.rings import Rings
from cpprb_like.views._walker import Walker

Walked = tuple[Batch, Any, Any, Slots]  # see ``Walker.take``


def read_rows(ring: Ring | Rings, slots: Slots, out: dict[str, Array]) -> None:
    """Read the fields of ``out`` into its arrays, each field as it was added."""
    stored = [column for column in ring.stored_columns if column.name in out]
    take(ring, slots, [out[column.name] for column in stored], tuple(stored))
    for chain in ring.chains:
        if chain.name in out:
            take_chain(ring, chain, slots, out[chain.name])


def read_fields(ring: Ring | Rings, slots: Slots, names: Collection[str]) -> Batch:
    """Some fields of rows, each as it was added."""
    n = len(slots)
    found = {
        column.name: new_array(ring, column, n) for column in ring.columns if column.name in names
    }
    read_rows(ring, slots, found)
    return found


class RowReader:
    """Reads batches of transitions by slot, of one step or of n steps.

    The caller checks ``Ring.holds`` afterwards. ``around`` has the numbers of rows before and
    behind each row in its window. If it is None, no windows are returned.
    """

    def __init__(
        self,
        ring: Ring | Rings,
        nstep: NStepReturns | None,
        around: tuple[int, int] | None = None,
    ) -> None:
        self.ring = ring
        self.nstep = nstep
        self.around = (0, 0) if around is None else around
        self._odd: list[Column] = []  # rewards that ``_sum_odd`` sums
        self.last_fields = frozenset[str]()  # fields of the last row of an n-step return
        self._walker: Walker | None = None
        if nstep is not None or around is not None:
            self._walker = self._new_walker(nstep, around is not None)

    def _new_walker(self, nstep: NStepReturns | None, gives_windows: bool) -> Walker:
        summed: Column | None = None
        if nstep is not None:
            rewards = [column for column in self.ring.columns if column.name in nstep.rewards]
            numbers = [column for column in rewards if column.nbytes == column.dtype.itemsize]
            stored = [column for column in numbers if column in self.ring.stored_columns]
            summed = next((column for column in stored if column.dtype.char in "fd"), None)
            self._odd = [column for column in rewards if column is not summed]
            self.last_fields = frozenset(nstep.last_step_fields)
        columns = self.ring.columns
        axes = {column.axis for column in columns if column.name in self.last_fields} - {""}
        entries = {column.name for column in columns if column.is_entry and column.axis in axes}
        before, after = self.around
        return Walker(
            self.ring,
            size=1 if nstep is None else nstep.size,
            gamma=1.0 if nstep is None else nstep.gamma,
            summed=summed,
            last_fields=self.last_fields | entries,
            discount_shape=nstep.discount_shape if nstep is not None and nstep.discount else None,
            before=before,
            after=after,
            gives_windows=gives_windows or bool(self._odd),
        )

    def take(
        self,
        slots: Slots,
        arrays: list[Array] | None = None,
        steps: Slots | None = None,
        columns: tuple[Column, ...] | None = None,
    ) -> Batch:
        """A batch of the given rows.

        ``columns`` are the columns to read, by default all; ``arrays`` are the caller's arrays, one
        for each column. ``steps`` is the number of steps of each row, at most ``nstep.size``.
        """
        if self._walker is not None:
            batch, rows, _, lengths = self._walker.take(slots, arrays, steps, columns)
            if self._odd:
                self._sum_odd(rows, lengths, batch)
            return batch
        ring = self.ring
        if not ring.chains:
            return take(ring, slots, arrays, columns)
        if columns is None:
            columns = ring.columns
        if arrays is None:
            n = len(slots)
            batch = {column.name: new_array(ring, column, n) for column in columns}
        else:
            batch = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        read_rows(ring, slots, batch)
        return batch

    def take_of_rows(self) -> Callable[..., Batch]:
        """The fastest function with the arguments and the result of ``take``."""
        return self.take if self._walker is None or self._odd else self._walker.read

    def walk_of(self) -> Callable[..., Walked] | None:
        """Function that reads batches with their windows; None without n-step and ``around``.

        It has the arguments of ``take`` and the result of ``Walker.take``.
        """
        if self._walker is None or not self._odd:
            return None if self._walker is None else self._walker.take
        return self._walk_odd

    def _walk_odd(self, *arguments: Any) -> Walked:
        assert self._walker is not None
        found = self._walker.take(*arguments)
        self._sum_odd(found[1], found[3], found[0])
        return found

    def _sum_odd(self, rows: Slots, lengths: Slots, batch: Batch) -> None:
        """Sum the rewards that the walker does not sum: all but one column of one float a row."""
        assert self.nstep is not None
        most = int(lengths.max(initial=1))
        window = np.ascontiguousarray(rows[:, self.around[0] : self.around[0] + most])
        within = np.arange(most) < lengths[:, np.newaxis]
        for column in self._odd:
            if column.name in batch:
                values = read_fields(self.ring, window.ravel(), {column.name})[column.name]
                steps = values.reshape(*window.shape, *column.shape)
                batch[column.name][...] = discounted_sums(steps, within, self.nstep.gamma)


def discounted_sums(rewards: Array, within: NDArray[np.bool_], gamma: float) -> Array:
    """The n-step returns of rewards, shape (n, steps, ...), over the steps ``within``."""
    precision = np.result_type(rewards.dtype, np.float64)
    powers = gamma ** np.arange(within.shape[1], dtype=precision)
    shape = (*within.shape, *(1,) * (rewards.ndim - 2))
    counted = (within & (powers != 0.0)).reshape(shape)  # not inf * 0, which is NaN
    steps = np.where(counted, rewards.astype(precision), precision.type(-0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        steps *= powers.reshape(-1, *shape[2:])
        total = steps[:, 0]
        for k in range(1, steps.shape[1]):  # rounding of ``sum`` depends on the longest window
            total += steps[:, k]
        found = total.astype(rewards.dtype)
    alone = within.sum(axis=1) == 1
    found[alone] = rewards[alone, 0]  # the same bits, also of NaN
    return found
