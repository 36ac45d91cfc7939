"""The memory of items, as checkpoints read and fill it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._rows.item_ring import place_from_start

FIELDS: dict[str, Any] = {
    "tokens": {"shape": ("T",), "dtype": "i4"},
    "pairs": {"shape": (2, "T"), "dtype": "u1"},
}


Numbers = NDArray[np.int64]


def places_and_counts(*pairs: tuple[int, int]) -> tuple[Numbers, Numbers]:
    """Both as arrays of int64."""
    places, counts = np.array(pairs, np.int64).T.copy()
    return places, counts


def test_items_at_any_places_are_packed() -> None:
    """Bytes of items one behind the other, the axis first."""
    rb = ReplayBuffer(9, FIELDS, room={"T": 20})
    rb.add(tokens=[np.arange(5), np.arange(5, 9)], pairs=[np.ones((2, 5)), np.full((2, 4), 2)])
    (items,) = rb.ring.items
    out = np.zeros(5 * 4, np.uint8)
    items.pack(0, *places_and_counts((6, 3), (0, 0), (1, 2)), out)
    assert out.view(np.int32).tolist() == [6, 7, 8, 1, 2]
    out = np.zeros(2 * 2, np.uint8)
    items.pack(1, *places_and_counts((4, 2)), out)
    assert out.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "pair", [(0, -1), (-1, 1), (39, 1), (0, 40), (2**62, 2**62), (5, 2**63 - 1)]
)
def test_items_outside_of_the_memory_are_refused(pair: tuple[int, int]) -> None:
    """There are places for 39 items; an array of another length is refused too."""
    rb = ReplayBuffer(9, FIELDS, room={"T": 20})
    (items,) = rb.ring.items
    with pytest.raises(ValueError, match="lie outside of the memory"):
        items.pack(0, *places_and_counts(pair), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="out: expected 8 bytes, got 4"):
        items.pack(0, *places_and_counts((0, 2)), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="expected at most 20 items, got 21"):
        place_from_start(items, 21, 0)
