"""What is read of the rows that a sampler drew.

Rows are stored once; next values, stacks of frames and sums over several steps are made here, of
the rows around a drawn one. Not here: which rows are drawn (``samplers``), and how chained fields
are stored (``_chain``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._ahead import Windows, can_sum
from cpprb_like._column import Column
from cpprb_like._core import Ring
from cpprb_like._take import new_array, take, take_chain, take_windows
from cpprb_like.derived import NStep

__all__ = ["Rows", "View", "read_rows"]

Slots = NDArray[np.intp]
Array = NDArray[Any]
Batch = dict[str, Array]


@dataclass(frozen=True)
class Rows:
    """Slots, and how much had been written when they were chosen."""

    slots: Slots
    written: int
    revision: int


def read_rows(ring: Ring, rows: Rows, out: dict[str, Array]) -> bool:
    """Read the fields of ``out`` into its arrays, each field as it was added.

    Returns false if one of the rows was overwritten since it was chosen.
    """
    stored = tuple(column for column in ring.stored_columns if column.name in out)
    arrays = [out[column.name] for column in stored]
    if take(ring, rows.slots, rows.written, rows.revision, arrays, stored) is None:
        return False
    return all(
        take_chain(ring, chain, rows.slots, rows.written, rows.revision, out[chain.name])
        for chain in ring.chains
        if chain.name in out
    )


class View:
    """Reads batches of rows, of one step or of several.

    Parameters
    ----------
    ring : Ring
        The rows.
    nstep : NStep, optional
        Sums over several steps.
    """

    def __init__(self, ring: Ring, nstep: NStep | None) -> None:
        self.ring = ring
        self.names = tuple(column.name for column in ring.columns)
        self._several = None if nstep is None else _Several(ring, nstep)

    def take(
        self,
        slots: Slots,
        written: int,
        revision: int,
        arrays: list[Array] | None = None,
        steps: int | NDArray[np.intp] | None = None,
        gamma: float | None = None,
    ) -> Batch | None:
        """A batch of the given rows, or None if it has to be read again.

        That is so if one of them was overwritten since it was chosen, or values were replaced
        meanwhile.

        ``arrays`` are the caller's, one for each field. ``steps`` and ``gamma`` stand for those of
        ``nstep``; ``steps`` may be an array, a number for each row.
        """
        if self._several is not None:
            return self._several.take(slots, written, revision, arrays, steps, gamma)
        rows = Rows(slots, written, revision)
        ring = self.ring
        if ring.revision != revision:
            return None
        if arrays is None:
            arrays = [new_array(ring, column, len(slots)) for column in ring.columns]
        batch = dict(zip(self.names, arrays, strict=True))
        updates = ring.updates
        if read_rows(ring, rows, batch) and ring.updates == updates:
            return batch
        return None


class _Several:
    """Reads batches of rows of several steps.

    ``Windows`` does, but for rewards of unusual dtypes and those that are chained, which are summed
    here.
    """

    def __init__(self, ring: Ring, nstep: NStep) -> None:
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
            frozenset(nstep.ahead),
            nstep.discount_shape if nstep.discount else None,
        )

    def take(
        self,
        slots: Slots,
        written: int,
        revision: int,
        arrays: list[Array] | None,
        steps: int | NDArray[np.intp] | None,
        gamma: float | None,
    ) -> Batch | None:
        """See ``View.take``."""
        updates = self.ring.updates
        batch = self._windows.take(slots, written, revision, arrays, steps, gamma)
        if batch is None or not self._odd:
            return batch
        if not isinstance(steps, np.ndarray):
            steps = np.full(len(slots), self.nstep.size if steps is None else steps, np.intp)
        factor = self.nstep.gamma if gamma is None else gamma
        summed = self._sum_odd(Rows(slots, written, revision), steps, factor, batch)
        return batch if summed and self.ring.updates == updates else None

    def _sum_odd(self, rows: Rows, lengths: NDArray[np.intp], gamma: float, batch: Batch) -> bool:
        """Sum the rewards that ``Windows`` does not; false if rows were overwritten."""
        most = int(lengths.max(initial=1))
        found = take_windows(self.ring, rows.slots, lengths, most, *_when(rows))
        if found is None:
            return False
        window, counts = found[:2]
        within = np.arange(most) < counts[:, np.newaxis]
        steps_there = Rows(window.ravel(), *_when(rows))
        return all(
            self._sum_rewards(column, steps_there, within, gamma, batch[column.name])
            for column in self._odd
        )

    def _sum_rewards(
        self,
        column: Column,
        window: Rows,
        within: NDArray[np.bool_],
        gamma: float,
        out: Array,
    ) -> bool:
        """Sum the rewards ``within`` the windows, each times a power of gamma."""
        values = new_array(self.ring, column, len(window.slots))
        if not read_rows(self.ring, window, {column.name: values}):
            return False
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
        return True


def _when(rows: Rows) -> tuple[int, int]:
    return rows.written, rows.revision
