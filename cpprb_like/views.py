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

from cpprb_like._core import FLAG_TERMINATED, Ring
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
        self.nstep = nstep
        self.names = tuple(column.name for column in ring.columns)

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
        ring = self.ring
        if ring.revision != revision:
            return None
        if arrays is None:
            arrays = [new_array(ring, column, len(slots)) for column in ring.columns]
        batch = dict(zip(self.names, arrays, strict=True))
        rows = Rows(slots, written, revision)
        updates = ring.updates
        if self.nstep is None:
            taken = batch if read_rows(ring, rows, batch) else None
        else:
            taken = self._take_several(self.nstep, rows, batch, steps, gamma)
        return taken if ring.updates == updates else None

    def _take_several(
        self,
        nstep: NStep,
        rows: Rows,
        batch: Batch,
        steps: int | NDArray[np.intp] | None,
        gamma: float | None,
    ) -> Batch | None:
        most = nstep.size if steps is None else int(np.max(steps, initial=1))
        lengths = np.empty(len(rows.slots), np.intp)
        lengths[:] = nstep.size if steps is None else steps
        gamma = nstep.gamma if gamma is None else gamma
        found = take_windows(self.ring, rows.slots, lengths, most, *_when(rows))
        if found is None:
            return None
        window, counts, last, flags = found
        there = {name: batch[name] for name in nstep.ahead}
        here = {
            name: values
            for name, values in batch.items()
            if name not in nstep.rewards and name not in nstep.ahead
        }
        if not read_rows(self.ring, rows, here):
            return None
        if not read_rows(self.ring, Rows(last, *_when(rows)), there):
            return None
        within = np.arange(most) < counts[:, np.newaxis]
        steps_there = Rows(window.ravel(), *_when(rows))
        for name in nstep.rewards:
            if not self._sum_rewards(name, steps_there, within, gamma, batch[name]):
                return None
        if nstep.discount:
            terminated = (flags & FLAG_TERMINATED) == FLAG_TERMINATED
            discount = np.where(terminated, 0.0, gamma**counts).astype(np.float32)
            batch["discount"] = discount.reshape(-1, *nstep.discount_shape)
        return batch

    def _sum_rewards(
        self, name: str, window: Rows, within: NDArray[np.bool_], gamma: float, out: Array
    ) -> bool:
        """Sum the rewards ``within`` the windows, each times a power of gamma."""
        (column,) = [column for column in self.ring.columns if column.name == name]
        values = new_array(self.ring, column, len(window.slots))
        if not read_rows(self.ring, window, {name: values}):
            return False
        precision = np.result_type(column.dtype, np.float64)
        rewards = values.reshape(*within.shape, *column.shape)
        steps = rewards.astype(precision)
        factors = gamma ** np.arange(within.shape[1], dtype=precision)
        axes = (1,) * len(column.shape)
        counted = within & (factors != 0.0)
        steps = np.where(counted.reshape(*within.shape, *axes), steps, precision.type(-0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            out[...] = (steps * factors.reshape(-1, *axes)).sum(axis=1)
        alone = within.sum(axis=1) == 1
        out[alone] = rewards[alone, 0]  # to the last bit, NaN too
        return True


def _when(rows: Rows) -> tuple[int, int]:
    return rows.written, rows.revision
