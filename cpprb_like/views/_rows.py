"""Transitions by slot: of one step, or n-step.

Rows are stored once; next values and n-step returns are computed here from the rows after a drawn
one.
Not here: which rows are drawn (``samplers``), how chained fields are stored (``_rows.chained``),
and the walk through a window (``_nstep_windows``).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import Ring
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import new_array, take, take_chain
from cpprb_like.views._nstep_windows import Windows, can_sum

__all__ = ["RowReader", "read_fields", "read_rows"]


def read_rows(ring: Ring, slots: Slots, out: dict[str, Array]) -> None:
    """Read the fields of ``out`` into its arrays, each field as it was added."""
    stored = [column for column in ring.stored_columns if column.name in out]
    take(ring, slots, [out[column.name] for column in stored], tuple(stored))
    for chain in ring.chains:
        if chain.name in out:
            take_chain(ring, chain, slots, out[chain.name])


def read_fields(ring: Ring, slots: Slots, names: Collection[str]) -> Batch:
    """Some fields of rows, as they were added."""
    n = len(slots)
    found = {
        column.name: new_array(ring, column, n) for column in ring.columns if column.name in names
    }
    read_rows(ring, slots, found)
    return found


class RowReader:
    """Reads batches of transitions, one for each drawn slot: of one step, or n-step.

    The caller, who chose the rows, asks afterwards whether they were still there (``Ring.holds``).

    Parameters
    ----------
    ring : Ring
        The rows.
    nstep : NStepReturns, optional
        n-step returns; by default single steps.
    """

    stacked: frozenset[str] = frozenset()  # fields that are not read as they were added

    def __init__(self, ring: Ring, nstep: NStepReturns | None) -> None:
        self.ring = ring
        self.nstep = nstep
        self._several = None if nstep is None else _Several(ring, nstep)

    def take(
        self,
        slots: Slots,
        arrays: list[Array] | None = None,
        steps: Slots | None = None,
        columns: tuple[Column, ...] | None = None,
    ) -> Batch:
        """A batch of the given rows.

        ``columns`` are those to read, by default all; ``arrays`` are those of ``out``, one for each
        column. ``steps`` is the number n of steps by row, at most that of ``nstep``.
        """
        if self._several is not None:
            return self._several.take(slots, arrays, steps, columns)
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


class _Several:
    """Reads n-step transitions.

    ``Windows`` computes them. Rewards of unusual dtypes and chained rewards are summed here.
    """

    def __init__(self, ring: Ring, nstep: NStepReturns) -> None:
        self.ring = ring
        self.nstep = nstep
        columns = [column for column in ring.columns if column.name in nstep.rewards]
        plain = [column for column in columns if column in ring.stored_columns and can_sum(column)]
        self._odd = [column for column in columns if column not in plain]
        self._windows = Windows(
            ring,
            nstep.size,
            nstep.gamma,
            frozenset(column.name for column in plain),
            frozenset(nstep.last_step_fields),
            nstep.discount_shape if nstep.discount else None,
        )

    def take(
        self,
        slots: Slots,
        arrays: list[Array] | None,
        steps: Slots | None,
        columns: tuple[Column, ...] | None,
    ) -> Batch:
        """See ``RowReader.take``."""
        batch = self._windows.take(slots, arrays, steps, columns)
        if not any(column.name in batch for column in self._odd):
            return batch
        if steps is None:
            steps = np.full(len(slots), self.nstep.size, np.intp)
        self._sum_odd(slots, steps, self.nstep.gamma, batch)
        return batch

    def _sum_odd(self, slots: Slots, lengths: NDArray[np.intp], gamma: float, batch: Batch) -> None:
        """Sum the rewards that ``Windows`` cannot."""
        most = int(lengths.max(initial=1))
        window, counts, _ = self.ring.windows(slots, 0, most - 1)
        within = np.arange(most) < np.minimum(1 + counts[:, 1], lengths)[:, np.newaxis]
        for column in self._odd:
            if column.name in batch:
                self._sum_rewards(column, window.ravel(), within, gamma, batch[column.name])

    def _sum_rewards(
        self,
        column: Column,
        window: Slots,
        within: NDArray[np.bool_],
        gamma: float,
        out: Array,
    ) -> None:
        """Discounted sums of the rewards ``within`` the windows."""
        values = new_array(self.ring, column, len(window))
        read_rows(self.ring, window, {column.name: values})
        precision = np.result_type(column.dtype, np.float64)
        powers = gamma ** np.arange(within.shape[1], dtype=precision)
        rewards = values.reshape(*within.shape, *column.shape)
        axes = (1,) * len(column.shape)
        counted = within & (powers != 0.0)
        steps = np.where(
            counted.reshape(*within.shape, *axes), rewards.astype(precision), precision.type(-0.0)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            out[...] = (steps * powers.reshape(-1, *axes)).sum(axis=1)
        alone = within.sum(axis=1) == 1
        out[alone] = rewards[alone, 0]  # to the last bit, NaN too
