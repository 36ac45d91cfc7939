"""What reading sequences costs in C: random starts, and the rows from there on, which lie together.

Compiled with ``steps``. The batches are two in turn, as in a program that keeps one until it has
the next: a single one would stay in nearer caches.
"""

# ruff: noqa: E501 (C code in a string)

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from data import Batch

from cpprb_like import ReplayBuffer

from .steps import Columns, Floor, Repeat, call

__all__ = ["SequenceFloor"]

SOURCE = r"""
/* Draw n starts, and copy the length steps from each of them into the columns, fetching the next sequence. */
void sequences(Steps steps, int64_t starts, BitGenerator *bits, int64_t *slots, const Columns *batches, int64_t n,
               int64_t length, int64_t calls)
{
    while (calls--) {
        Columns to = batches[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)starts);
        for (int64_t k = 0, row = 0; k < n; k++) {
            int64_t next = slots[k + 1 < n ? k + 1 : k];
            for (int64_t t = 0; t < length; t++, row++) {
                const Step *from = step_at(steps, slots[k] + t);
                __builtin_prefetch(step_at(steps, next + t));
                memcpy(to.obs[row], from->obs, sizeof from->obs);
                to.act[row] = from->act;
                to.rew[row] = from->rew;
                memcpy(to.next_obs[row], from->next_obs, sizeof from->next_obs);
                to.done[row] = from->done;
            }
        }
    }
}

/* Draw n starts, and memcpy the length rows from each of them, as they lie in memory. */
void copy_runs(const char *rows, int64_t stride, int64_t starts, BitGenerator *bits, int64_t *slots,
               char *const *batches, int64_t n, int64_t length, int64_t calls)
{
    while (calls--) {
        char *to = batches[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)starts);
        for (int64_t k = 0; k < n; k++)
            memcpy(to + k * length * stride, rows + slots[k] * stride, (size_t)(length * stride));
    }
}
"""


class SequenceFloor(Floor):
    """Sequences of the rows of a full buffer, wherever they start."""

    def __init__(self, rb: ReplayBuffer) -> None:
        super().__init__(rb, SOURCE)

    def sequences(self, batches: tuple[Batch, Batch], length: int) -> Repeat:
        """Draws sequences of steps into batches of sequences."""
        n = len(batches[0]["act"])
        steps, slots = self.steps(), np.zeros(n, np.int64)
        columns = (Columns * 2)(*(Columns.of(batch) for batch in batches))

        def work(calls: int, _: tuple[Batch, Batch] = batches) -> None:
            call(
                *(self.loops.sequences, steps, self._starts(length), self.bits, slots),
                *(columns, n, length, calls),
            )

        return work

    def copy_runs(self, name: str, n: int, length: int) -> Repeat:
        """Draws sequences of what holds a field, its block or all records, with memcpy."""
        (column,) = [column for column in self.rb.ring.columns if column.name == name]
        slots = np.zeros(n, np.int64)
        batches = [np.zeros(n * length * column.stride, np.uint8) for _ in range(2)]
        addresses = (ctypes.c_void_p * 2)(*(batch.ctypes.data for batch in batches))

        def work(calls: int, _: list[Any] = batches) -> None:
            call(
                *(self.loops.copy_runs, self._address(column.offset), column.stride),
                *(self._starts(length), self.bits, slots, addresses, n, length, calls),
            )

        return work

    def _starts(self, length: int) -> int:
        return self.rb.capacity - length + 1
