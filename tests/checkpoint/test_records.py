"""Records without what pads them, and back: as slices of NumPy do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like._c.records import pack, spread


@given(st.integers(0, 50), st.integers(0, 70), st.integers(0, 70), st.integers(0, 9))
def test_both_are_slices(n: int, used: int, padding: int, seed: int) -> None:
    """Of any sizes; what is not set stays as it was."""
    rng = np.random.default_rng(seed)
    records: Any = rng.integers(0, 256, (n, used + padding + 1), np.uint8)
    around: Any = rng.integers(0, 256, (n + 2, used + 1), np.uint8)
    expected = around.copy()
    expected[1 : n + 1, :used] = records[:, :used]
    expected[1 : n + 1, used] = records[:, -1]

    pack(records, around[1 : n + 1])

    np.testing.assert_array_equal(around, expected)

    back: Any = rng.integers(0, 256, (n + 2, used + padding + 1), np.uint8)
    expected = back.copy()
    expected[1 : n + 1, :used] = records[:, :used]
    expected[1 : n + 1, -1] = records[:, -1]

    spread(around[1 : n + 1], back[1 : n + 1])

    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize(
    ("records", "entries"), [((3, 8), (2, 5)), ((3, 8), (3, 9)), ((3, 8), (3, 0))]
)
def test_what_is_no_pair_is_refused(records: Any, entries: Any) -> None:
    """Nothing is written."""
    one, two = np.ones(records, np.uint8), np.ones(entries, np.uint8)
    message = (
        f"^expected as many entries as records, and no larger ones, got {entries[0]} of "
        f"{entries[1]} bytes for {records[0]} of {records[1]}$"
    )
    with pytest.raises(ValueError, match=message):
        pack(one * 0, two)
    with pytest.raises(ValueError, match=message):
        spread(two * 0, one)
    assert one.all()
    assert two.all()
