"""A set of slots against Python's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like._rows.slot_set import SlotSet

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=60)


@given(capacity=st.sampled_from([1, 2, 63, 64, 65, 128, 200, 1000]), changes=CHANGES)
def test_the_slots_that_are_left_are_found_by_their_number(
    capacity: int, changes: list[tuple[bool, int]]
) -> None:
    """After any changes each slot that is not in the set is found, and counted, by its rank."""
    slots = SlotSet(capacity)
    twin: set[int] = set()
    for is_in, number in changes:
        slot = number % capacity
        (slots.add if is_in else slots.remove)(slot)
        (twin.add if is_in else twin.discard)(slot)
    left = [slot for slot in range(capacity) if slot not in twin]
    assert slots.count == len(twin)
    assert [slots.free_at(place) for place in range(len(left))] == left
    assert [slots.at(place) for place in range(len(twin))] == sorted(twin)
    before = [sum(other < slot for other in left) for slot in range(capacity + 1)]
    assert [slots.free_before(slot) for slot in range(capacity + 1)] == before
    assert [slot in slots for slot in range(capacity)] == [slot in twin for slot in range(capacity)]


def test_it_has_no_memory_before_there_is_something_to_keep() -> None:
    """A buffer whose rows can all be drawn pays nothing."""
    slots = SlotSet(10**12)
    assert slots.nbytes == 0
    assert slots.free_at(5) == slots.free_before(5) == 5


def test_slots_that_are_none_are_refused() -> None:
    """Numbers beyond the slots, and ranks beyond those that are left."""
    slots = SlotSet(4)
    slots.add(1)
    for call, number in [(slots.add, 4), (slots.remove, -1), (slots.free_at, 3), (slots.at, 1)]:
        with pytest.raises(IndexError):
            call(number)
    with pytest.raises(IndexError):
        slots.free_before(5)
    with pytest.raises(ValueError, match="capacity"):
        SlotSet(0)
