"""Rows of versions from a cut on, against a dict of all rows."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like.views._newer_rows import NewerRows

NUMBERS = 12
LEAST, MOST = -(2**63), 2**63 - 1
SLOTS = st.integers(0, NUMBERS - 1)
VERSIONS = st.sampled_from([LEAST, LEAST + 1, -1, 0, 1, 2, 3, 4, 5, MOST - 1, MOST])
CALLS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(SLOTS, VERSIONS), max_size=20)),
    st.tuples(st.just("take_out"), st.lists(SLOTS, max_size=8)),
    st.tuples(st.just("move"), VERSIONS | st.none()),
    st.tuples(st.just("keep"), st.integers(1, 4)),
    st.tuples(st.just("clear"), st.none()),
)


class Slow:
    """The versions of the rows by slot, and the cut."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.cut: int | None = None

    def newer(self) -> set[int]:
        return {slot for slot, version in self.rows.items() if self.is_newer(version)}

    def is_newer(self, version: int) -> bool:
        return self.cut is not None and version >= self.cut

    def listed(self) -> list[int]:
        return sorted({self.rows[slot] for slot in self.newer()})


def call(rows: NewerRows, twin: Slow, what: str, value: Any) -> None:
    """Do the same with both."""
    before = twin.newer()
    if what == "put":
        slots, versions = [one for one, _ in value], [one for _, one in value]
        newer = rows.put(np.array(slots, np.intp), np.array(versions, np.int64))
        twin.rows |= dict(value)
        assert newer.tolist() == [twin.is_newer(version) for version in versions]
    elif what == "take_out":
        rows.take_out(np.array(value, np.intp))
        twin.rows = {slot: one for slot, one in twin.rows.items() if slot not in value}
    elif what == "clear":
        rows.clear()
        twin.rows, twin.cut = {}, None
    elif what == "move":
        twin.cut = value
        compare_moved(rows.move(value, MOST), before, twin)
    elif len(twin.listed()) > value:  # keep
        found = rows.move(rows.cut, value)
        twin.cut = twin.listed()[-value]
        compare_moved(found, before, twin)
        assert rows.cut is not None
        assert all(one < rows.cut for one in twin.rows.values() if one < twin.cut)
        twin.cut = rows.cut  # of those between two versions it does not matter which


def compare_moved(found: tuple[Array, Array], before: set[int], twin: Slow) -> None:
    """The rows that came, or those that left, each once."""
    slots, came = found
    now = twin.newer()
    assert sorted(slots.tolist()) == sorted(before ^ now)
    assert came.tolist() == [slot in now for slot in slots.tolist()]


@given(calls=st.lists(CALLS, max_size=40))
def test_rows_are_those_of_a_look_at_all(calls: list[tuple[str, Any]]) -> None:
    """After any calls, of versions up to the ends of int64, and rows that come twice in a call."""
    rows, twin = NewerRows(NUMBERS), Slow()
    for what, value in calls:
        call(rows, twin, what, value)
        listed = twin.listed()
        assert (rows.cut, rows.count) == (twin.cut, len(listed))
        assert rows.least == (listed[0] if listed else None)
        assert rows.rows().tolist() == sorted(twin.rows)
        older = sorted(one for one in twin.rows.values() if not twin.is_newer(one))
        assert sorted(rows.older().tolist()) == older
        assert [rows.versions[slot] for slot in twin.rows] == [*twin.rows.values()]


def test_versions_that_come_and_go_for_ever_take_no_memory() -> None:
    """Behind an older one, which stays."""
    rows, one = NewerRows(3), np.array([1])
    rows.move(0, MOST)
    rows.put(np.array([0]), np.array([5]))
    tracemalloc.start()
    for version in range(10, 20_002):
        rows.put(one, np.array([version]))
        if version % 3:
            rows.take_out(one)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 50_000
    assert (rows.count, rows.least) == (2, 5)


@pytest.mark.parametrize("slot", [-1, NUMBERS, 2**62])
def test_a_slot_of_no_row_is_refused(slot: int) -> None:
    """Before anything changes: such slots came from a user's rule, and memory was written there."""
    rows = NewerRows(NUMBERS)
    rows.move(0, MOST)
    rows.put(np.array([3]), np.array([5]))
    for refused in (
        lambda: rows.put(np.array([4, slot]), np.array([6, 7])),
        lambda: rows.take_out(np.array([3, slot])),
    ):
        with pytest.raises(IndexError, match=rf"slots\[1\]: expected 0 to 11, got {slot}"):
            refused()
    assert (rows.rows().tolist(), rows.count, rows.least) == ([3], 1, 5)
