"""Values of an overflow in memory that a test gives."""

from __future__ import annotations

import numpy as np
import pytest

from cpprb_like._rows.overflow import Overflow


def test_memory_for_no_more_than_is_needed() -> None:
    """Exactly as many units as there are values are enough; one less is too little."""
    units, n = 100_000, 500
    usable: list[int] = []

    def use(first: int, stop: int) -> None:
        if stop > limit:
            raise MemoryError
        usable.append(stop)

    memory = np.zeros(2, "i8"), np.zeros(units, "i8"), np.zeros(units, "u1")
    overflow = Overflow(1, 0, *memory, use)
    values = np.zeros((n, 1), "u1")
    limit = n - 1
    with pytest.raises(MemoryError):
        overflow.load(0, np.arange(n), values)
    assert usable == []
    limit = n
    overflow.load(0, np.arange(n), values)
    assert usable == [n]
    limit = units
    overflow.load(0, np.arange(n + 1), np.zeros((n + 1, 1), "u1"))
    assert usable[:2] == [n, n + 1]
    assert usable[2] > n + 1
