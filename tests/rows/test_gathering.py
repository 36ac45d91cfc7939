"""Rows of all widths, gathered by every way of copying them, against NumPy's indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._rows.gather import take

CAPACITY = 50
LARGE = (1 << 24) + 1  # bytes of a batch that is written past the caches

# around a cache line, a piece of a row, and the longest row that is copied in pieces
WIDTHS = [1, 63, 65, 127, 129, 511, 512, 513, 528, 575, 1000, 1024, 7057, 28224, 65535, 65537]


def images(width: int) -> tuple[ReplayBuffer, NDArray[np.uint8]]:
    """A full buffer of random rows of so many bytes, and those rows."""
    rows = np.random.default_rng(0).integers(0, 256, (CAPACITY, width), np.uint8)
    rb = ReplayBuffer(CAPACITY, {"x": {"shape": width, "dtype": np.uint8}, "k": {}}, seed=0)
    rb.add(x=rows, k=np.arange(CAPACITY))
    return rb, rows


def out_for(width: int, n: int, offset: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An array for n rows whose memory starts so far behind a cache line, and all around it."""
    around = np.full(n * width + 256, 77, np.uint8)
    start = 64 + -around.ctypes.data % 64 + offset
    return around[start : start + n * width].reshape(n, width), around


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_width_are_those_of_numpy(width: int, large: bool) -> None:
    """Large batches are written past the caches in lines, which no row need start or end with."""
    rb, rows = images(width)
    least = max(1, LARGE // width) if large else 0
    for n, offset in ((least, 0), (least + 1, 16), (least + 2, 63), (least + 3, 1)):
        slots = np.random.default_rng(n).integers(0, CAPACITY, n)
        if large and width < 512:
            slots = slots[:1000]  # rows that are never written past the caches
        out, around = out_for(width, len(slots), offset)
        numbers = np.empty((len(slots), 1), np.float32)
        ring: Any = rb.ring
        take(ring, slots, [out if c.name == "x" else numbers for c in ring.stored_columns])
        assert (out == rows[slots]).all()
        assert (numbers[:, 0] == slots).all()
        assert np.count_nonzero(around != 77) == np.count_nonzero(out != 77)
        fresh = take(ring, slots)
        assert (fresh["x"] == out).all()
