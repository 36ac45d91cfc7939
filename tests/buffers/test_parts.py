"""Names of rows in several parts, split by part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like._rows.rings import Parts
from cpprb_like.buffers import Mixture


@given(st.integers(1, 9), st.data())
def test_parts_are_the_rows_of_each_ring(width: int, data: st.DataObject) -> None:
    """Numbers of rows come apart into rings and slots, and are found at their places again."""
    rings = data.draw(st.lists(st.integers(0, width - 1), max_size=30))
    slots = data.draw(st.lists(st.integers(0, 50), min_size=len(rings), max_size=len(rings)))
    group = Parts(width)
    rows = np.empty(len(rings), np.intp)
    for ring in range(width):
        places = [place for place, one in enumerate(rings) if one == ring]
        rows[places] = group.name(ring, np.array(slots, np.intp)[places])
    seen = np.full(len(rows), -1, np.intp)
    for ring, there, own in group.split(rows):
        assert [rings[place] for place in there] == [ring] * len(there)
        seen[there] = own
    np.testing.assert_array_equal(seen, slots)


def test_an_index_of_no_source_is_refused() -> None:
    """Three sources leave one number of two bits without a source; nothing has changed."""
    fields: dict[str, Any] = {"x": {"shape": ()}}
    sources = {name: PrioritizedReplayBuffer(10, fields, seed=0) for name in "abc"}
    for source in sources.values():
        source.add(x=[1, 2])
    mixture = Mixture(sources, dict.fromkeys("abc", 1), seed=0)
    batch = mixture.sample(9)
    assert (batch["indexes"] & 3 == batch["source"]).all()
    with pytest.raises(
        IndexError, match=r"indexes\[1\]: expected that of a row of a source; got 7"
    ):
        mixture.update_priorities([int(batch["indexes"][0]), 7], [5.0, 5.0])
    assert [source.get_max_priority() for source in sources.values()] == [1.0] * 3
    mixture.update_priorities(batch["indexes"], [5.0] * 9)
    assert [source.get_max_priority() for source in sources.values()] == [5.0] * 3


@pytest.mark.parametrize("width", [1, 3, 4])
def test_what_names_no_row_is_left_out(width: int) -> None:
    """A name below zero is of no part."""
    ((number, places, own),) = Parts(width).split(np.array([-1, width - 1, -1]))
    assert (number, places.tolist(), own.tolist()) == (width - 1, [1], [0])
