"""Rows of several rings, parted by the ring that they are in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like.processes._followers import Followers, places_by_label


@given(st.lists(st.integers(0, 9), max_size=30), st.sampled_from([np.int32, np.int64, np.intp]))
def test_places_of_each_label(labels: list[int], dtype: type[np.signedinteger]) -> None:
    """Each label that occurs, ascending, with all of its places in their order."""
    found = places_by_label(np.array(labels, dtype))
    expected = [
        (label, [place for place, one in enumerate(labels) if one == label])
        for label in sorted(set(labels))
    ]
    assert [(label, places.tolist()) for label, places in found] == expected


@given(st.integers(1, 9), st.data())
def test_parts_are_the_rows_of_each_ring(width: int, data: st.DataObject) -> None:
    """Numbers of rows come apart into rings and slots, and are found at their places again."""
    rings = data.draw(st.lists(st.integers(0, width - 1), max_size=30))
    slots = data.draw(st.lists(st.integers(0, 50), min_size=len(rings), max_size=len(rings)))
    group = Followers(width)
    rows = np.empty(len(rings), np.intp)
    for ring in range(width):
        places = [place for place, one in enumerate(rings) if one == ring]
        rows[places] = group.number(ring, np.array(slots, np.intp)[places])
    seen = np.full(len(rows), -1, np.intp)
    for ring, there, own in group.parts(rows):
        assert [rings[place] for place in there] == [ring] * len(there)
        seen[there] = own
    np.testing.assert_array_equal(seen, slots)


@pytest.mark.parametrize("width", [1, 3, 4])
def test_what_names_no_row_stays_none(width: int) -> None:
    """A handle below zero stays one, so whoever looks for its row finds none."""
    (part,) = Followers(width).parts(np.array([-1, -1]))
    assert part[1].tolist() == [0, 1]
    assert (part[2] < 0).all()
