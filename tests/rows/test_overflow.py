"""Values of an overflow in memory that a test gives."""

from __future__ import annotations

import numpy as np
import pytest
from byte_rings import MOST_RUNS

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


@pytest.mark.parametrize("n_runs", [MOST_RUNS, MOST_RUNS + 1])
def test_the_most_runs_that_memory_may_have(n_runs: int) -> None:
    """Values of as many runs as a writer can have are found; one run more is damage."""
    units, n = 4 * n_runs, 2 * n_runs
    ids = np.arange(n)
    places = np.arange(units).reshape(n_runs, 4)[:, :2].ravel()  # two free units behind each run
    words, keys, values = np.array([units, 0]), np.full(units, -1), np.zeros(units, "u1")
    keys[places] = ids
    values[places] = ids
    overflow = Overflow(1, 0, words, keys, values)
    if n_runs > MOST_RUNS:
        with pytest.raises(ValueError, match="in no order"):
            overflow.derive(0, n)
        return
    overflow.derive(0, n)
    found_ids, found = overflow.part(0, n)
    assert found_ids.tolist() == found.ravel().tolist() == ids.tolist()
    assert overflow.last == n - 1
