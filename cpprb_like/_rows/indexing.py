"""Indexing by slot: ``rb[...]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Slots
from cpprb_like._arguments.checks import as_ints
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like._core import Ring
from cpprb_like._rows.row_handles import public_stored, slots_of

__all__ = ["resolve"]


def resolve(ring: Ring, index: Any) -> Slots:
    """Slots of rows that can be drawn, for an int, a slice, an array of ints or a mask.

    Negative numbers count from the last slot in use. Raises ``IndexError`` for other values, and
    ``TypeError`` or ``ValueError`` for a slice with bounds of another type or a step of 0.
    """
    stored = public_stored(ring)
    if isinstance(index, slice):
        try:
            bounds = index.indices(stored)
        except (TypeError, ValueError) as error:  # no integer, or a step of 0
            raise type(error)(f"slots: {error}, got {index!r}") from None
        slots = slots_of(ring, np.arange(*bounds))
        if not ring.absent:
            return slots
        slots = slots[slots >= 0]
        return slots[~ring.absent_at(slots)]
    wanted = np.atleast_1d(read_argument("slots", index))
    if wanted.dtype.kind == "f" and wanted.size:
        wanted = as_ints("slots", wanted)
    if isinstance(index, (tuple, bool, np.bool_)):
        raise IndexError(f"slots: expected integers, a slice or a mask, got {index!r}")
    if wanted.dtype == np.bool_:
        if wanted.shape != (stored,):
            raise IndexError(f"mask: expected shape {(stored,)}, got {wanted.shape}")
        wanted = np.flatnonzero(wanted)
    if wanted.size == 0:
        wanted = wanted.astype(np.intp)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1:
        raise IndexError(f"slots: expected integers in one dimension, got {index!r}")
    if wanted.size and not -stored <= wanted.min() <= wanted.max() < stored:
        if stored == 0:
            raise IndexError(f"slots: the buffer is empty, got {index!r}")
        raise IndexError(
            f"slots: the buffer holds {stored} rows, so expected {-stored} to {stored - 1}, "
            f"got {index!r}"
        )
    wanted = wanted.astype(np.intp)
    slots = slots_of(ring, np.where(wanted < 0, wanted + stored, wanted))
    if ring.absent and ((slots < 0).any() or ring.absent_at(slots).any()):
        raise IndexError(
            f"slots: {index!r} holds no step, or one whose n-step window is not complete"
        )
    return slots
