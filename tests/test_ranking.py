"""The ranking: against a sorted list, on orders that fill and thin out its blocks, and misuse."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cpprb_like._ranking import Ranking, ranking_size

Floats = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]

BLOCKS = [2, 3, 4, 7, 128]
LARGEST = sys.float_info.max


def floats(values: Any) -> Floats:
    """Keys as the ranking takes them."""
    return np.array(values, np.float64)


def indexes(values: Any) -> Indexes:
    """Slots and ranks as the ranking takes them."""
    return np.array(values, np.intp)


class Ranked:
    """A ranking over arrays that the test can see; its memory begins with junk."""

    def __init__(self, capacity: int, block: int = 128, keys: Any = np.nan) -> None:
        self.keys: Floats = np.full(capacity, keys, np.float64)
        self.memory = np.random.default_rng(1).normal(size=ranking_size(capacity, block))
        self.ranking = Ranking(self.keys, self.memory, block)

    def order(self) -> list[int]:
        """All present slots by rank."""
        slots: list[int] = self.ranking.at(np.arange(1, len(self.ranking) + 1)).tolist()
        return slots

    def everything(self) -> tuple[Any, ...]:
        """What a caller can see."""
        return self.order(), self.keys.tobytes(), self.ranking.largest


def order_of(keys: Floats) -> list[int]:
    """Present slots in order, by NumPy."""
    present = np.flatnonzero(~np.isnan(keys))
    slots: list[int] = present[np.lexsort((present, -keys[present]))].tolist()
    return slots


def assert_ranks(ranked: Ranked, expected: Floats) -> None:
    """The ranking holds these keys, and tells of them what NumPy does."""
    order = order_of(expected)
    np.testing.assert_array_equal(ranked.keys, expected)
    assert not np.signbit(ranked.keys[order]).any()
    assert ranked.order() == order
    assert ranked.ranking.ranks_of(indexes(order)).tolist() == [*range(1, len(order) + 1)]
    np.testing.assert_array_equal(ranked.ranking.get(np.arange(len(expected))), expected)
    assert len(ranked.ranking) == len(order)
    assert ranked.ranking.largest == (expected[order[0]] if order else 0.0)


# ---- against a sorted list --------------------------------------------------------------------


class SortedList:
    """The slow, obvious twin: pairs in a list that is sorted after each change."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, int]] = []

    def remove(self, slot: int) -> None:
        self.pairs = [pair for pair in self.pairs if pair[1] != slot]

    def set(self, slot: int, key: float) -> None:
        self.remove(slot)
        self.pairs = sorted([*self.pairs, (-key, slot)])

    def order(self) -> list[int]:
        return [slot for _, slot in self.pairs]


any_key = st.one_of(
    st.integers(0, 3).map(float),
    st.floats(0, 1),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 2.3e-308, 1.0, np.nextafter(1, 2), LARGEST]),
)


class RankingAgainstSortedList(RuleBasedStateMachine):
    """Any history of calls; every fact is compared after each."""

    @initialize(capacity=st.integers(1, 300), block=st.sampled_from(BLOCKS))
    def create(self, capacity: int, block: int) -> None:
        self.capacity = capacity
        self.ranked = Ranked(capacity, block)
        self.twin = SortedList()

    def some_slots(self, data: st.DataObject, most: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, self.capacity - 1), max_size=most))

    # Up to 18 of 300 slots are changed one by one, more of them all at once.
    @rule(data=st.data(), most=st.sampled_from([4, 18, 40]))
    def set(self, data: st.DataObject, most: int) -> None:
        slots = self.some_slots(data, most)
        keys = data.draw(st.lists(any_key, min_size=len(slots), max_size=len(slots)))
        self.ranked.ranking.set(indexes(slots), floats(keys))
        for slot, key in zip(slots, keys, strict=True):
            self.twin.set(slot, key)

    @rule(data=st.data(), keys=st.lists(any_key, max_size=18))
    def set_range(self, data: st.DataObject, keys: list[float]) -> None:
        keys = keys[: self.capacity]
        first = data.draw(st.integers(0, self.capacity - len(keys)))
        self.ranked.ranking.set_range(first, floats(keys))
        for k, key in enumerate(keys):
            self.twin.set(first + k, key)

    @rule(data=st.data(), share=st.integers(1, 20))
    def add_like_a_ring(self, data: st.DataObject, share: int) -> None:
        """Rows with the largest key come one after another, past the end if need be."""
        n = -(-self.capacity // share)
        first = data.draw(st.integers(0, self.capacity - 1))
        for slot in range(first, first + n):
            key = max(self.ranked.ranking.largest, 0.5)
            self.ranked.ranking.set_range(slot % self.capacity, floats([key]))
            self.twin.set(slot % self.capacity, key)

    @rule(data=st.data(), most=st.sampled_from([4, 18, 300]))
    def remove(self, data: st.DataObject, most: int) -> None:
        slots = self.some_slots(data, most)
        self.ranked.ranking.remove(indexes(slots))
        for slot in slots:
            self.twin.remove(slot)

    @rule(data=st.data(), step=st.integers(2, 9))
    def thin_out(self, data: st.DataObject, step: int) -> None:
        """Every so many ranks stay: that leaves many blocks with few entries."""
        kept = self.twin.order()[data.draw(st.integers(0, step - 1)) :: step]
        for slot in set(self.twin.order()) - set(kept):
            self.ranked.ranking.remove(indexes([slot]))
            self.twin.remove(slot)

    @rule()
    def clear(self) -> None:
        self.ranked.ranking.clear()
        self.twin = SortedList()

    @rule()
    def rebuild(self) -> None:
        self.ranked.memory[:] = np.nan
        self.ranked.ranking.rebuild()

    @rule(bad=st.sampled_from([np.nan, np.inf, -1.0, -5e-324]), where=st.integers(0, 3))
    def refused(self, bad: float, where: int) -> None:
        keys = np.ones(4)
        keys[where] = bad
        with pytest.raises(ValueError, match=rf"keys\[{where}\]"):
            self.ranked.ranking.set(np.zeros(4, np.intp), keys)

    @invariant()
    def same(self) -> None:
        expected = np.full(self.capacity, np.nan)
        for key, slot in self.twin.pairs:
            expected[slot] = -key
        assert self.ranked.order() == self.twin.order()
        assert_ranks(self.ranked, expected)


TestRankingAgainstSortedList = RankingAgainstSortedList.TestCase


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 17, 64, 300])
def test_crowded_histories(capacity: int, block: int, rng: np.random.Generator) -> None:
    """Calls of all kinds on a ranking that is mostly full, with many equal keys."""
    ranked, expected = Ranked(capacity, block), np.full(capacity, np.nan)
    for _ in range(150):
        n = int(rng.integers(0, max(capacity // 16, 1) + 2))
        slots, keys = rng.integers(0, capacity, n), rng.integers(0, 6, n).astype(np.float64)
        match rng.choice(["set", "set_range", "remove"], p=[0.5, 0.3, 0.2]):
            case "set":
                ranked.ranking.set(slots, keys)
                for slot, key in zip(slots.tolist(), keys.tolist(), strict=True):
                    expected[slot] = key
            case "set_range":
                keys = keys[:capacity]
                first = int(rng.integers(0, capacity - len(keys) + 1))
                ranked.ranking.set_range(first, keys)
                expected[first : first + len(keys)] = keys
            case _:
                ranked.ranking.remove(slots)
                expected[slots] = np.nan
        assert_ranks(ranked, expected)


@pytest.mark.parametrize("different", [1, 3, 2**53], ids=["equal", "few", "all different"])
def test_many_changes_of_many_slots(different: int) -> None:
    """With 10^5 slots and as many changes, the order is NumPy's."""
    capacity = 100_000
    rng = np.random.default_rng(different)
    ranked, expected = Ranked(capacity), np.full(capacity, np.nan)
    for n in [70_000, *[1, 256, 1000, 6000] * 14]:
        slots = rng.integers(0, capacity, n)
        keys = np.ldexp(rng.integers(0, different, n), -53)
        ranked.ranking.set(slots, keys)
        for slot, key in zip(slots.tolist(), keys.tolist(), strict=True):
            expected[slot] = key
        slots = rng.integers(0, capacity, n // 3)
        ranked.ranking.remove(slots)
        expected[slots] = np.nan
    assert_ranks(ranked, expected)


# ---- orders that fill and thin out blocks -----------------------------------------------------


ORDERS: dict[str, Callable[[int], Any]] = {
    "equal": np.ones,
    "ascending": np.arange,
    "descending": lambda n: np.arange(n)[::-1],
    "from both ends": lambda n: np.where(np.arange(n) % 2, 1, -1) * np.arange(n) + n,
    "to the middle": lambda n: np.where(np.arange(n) % 2, 1, -1) * np.arange(n)[::-1] + n,
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("order", ORDERS)
def test_slots_one_after_another(order: str, block: int) -> None:
    """Slots whose keys come in some order, one by one, fill the ranking; twice around."""
    capacity = 500
    ranked, expected = Ranked(capacity, block), np.full(capacity, np.nan)
    keys = floats(ORDERS[order](2 * capacity))
    for k, key in enumerate(keys.tolist()):
        slot = k % capacity
        ranked.ranking.set_range(slot, floats([key]))
        expected[slot] = key
        if k % 50 == 0 or k == 2 * capacity - 1:
            assert_ranks(ranked, expected)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_blocks_that_are_nearly_empty_are_used_again(block: int, kept: int) -> None:
    """Blocks are thinned out to a few entries, while others grow, again and again."""
    capacity = 600
    ranked, expected = Ranked(capacity, block), np.arange(capacity, dtype=np.float64)
    ranked.ranking.set_range(0, expected)
    for turn in range(8):
        order = indexes(ranked.order())
        moved = order[np.arange(capacity) % max(block // 2, kept + 1) >= kept]
        goal = np.linspace(0, capacity, 7)[turn % 7]
        for slot in moved.tolist():  # all of them to one place
            expected[slot] = goal + slot / capacity
            ranked.ranking.set(indexes([slot]), expected[[slot]])
        assert_ranks(ranked, expected)


@given(
    keys=st.lists(any_key | st.just(np.nan), min_size=1, max_size=400),
    block=st.sampled_from(BLOCKS),
)
def test_any_keys_are_sorted_at_once(keys: list[float], block: int) -> None:
    """A ranking over keys that are there has their order."""
    assert_ranks(Ranked(len(keys), block, keys), floats(keys) + 0.0)


@pytest.mark.parametrize("capacity", [1, 2, 255, 256, 257, 5000])
def test_each_byte_of_a_key_counts(capacity: int, rng: np.random.Generator) -> None:
    """Keys that differ in any of their bytes, or in several, are sorted at once."""
    for byte in range(8):
        bits = np.full(capacity, 0x3FEFCDAB89674523, np.uint64)
        bits ^= rng.integers(0, 64, capacity, np.uint64) << np.uint64(8 * byte)
        keys = bits.view(np.float64)
        keys = np.where(np.isfinite(keys), abs(keys), 0.0)
        assert_ranks(Ranked(capacity, keys=keys), keys)
    keys = rng.random(capacity) * 10.0 ** rng.integers(-300, 300, capacity)
    assert_ranks(Ranked(capacity, keys=keys), keys)


# ---- bad input --------------------------------------------------------------------------------


two = indexes([0, 1])
ones = np.ones(2)


def refuse(
    call: Callable[[Ranking], object], error: type[Exception], message: str, capacity: int = 10
) -> None:
    """The call raises with this message at its start, and changes nothing."""
    ranked = Ranked(capacity, 4, np.arange(capacity) % 4)
    ranked.ranking.remove(indexes([3, 8]))
    before = ranked.everything()
    with pytest.raises(error) as caught:
        call(ranked.ranking)
    assert str(caught.value).startswith(message)
    assert ranked.everything() == before


INDEX_CASES: list[tuple[Any, type[Exception], str]] = [
    (indexes([0, 10]), IndexError, "indexes: expected 0 to 9, got 0 to 10"),
    (indexes([-1, 4]), IndexError, "indexes: expected 0 to 9, got -1 to 4"),
    (indexes([0, 2**62]), IndexError, f"indexes: expected 0 to 9, got 0 to {2**62}"),
    (ones, TypeError, "indexes: expected a dense 1-d array of intp, got a 1-d one of float64"),
    (two.astype(np.int32), TypeError, "indexes: expected a dense 1-d array of intp, got a 1-d one"),
    (two.astype(">i8"), TypeError, "indexes: expected a dense 1-d array of intp, got a 1-d one"),
    (two.reshape(1, 2), TypeError, "indexes: expected a dense 1-d array of intp, got a 2-d one"),
    (np.arange(4)[::2], TypeError, "indexes: expected a dense 1-d array of intp, got a strided"),
    (np.array(0), TypeError, "indexes: expected a dense 1-d array of intp, got a 0-d one"),
    ([0, 1], TypeError, "indexes: expected an array of intp, got list"),
    (None, TypeError, "indexes: expected an array of intp, got NoneType"),
]


@pytest.mark.parametrize(("slots", "error", "message"), INDEX_CASES)
def test_bad_indexes(slots: Any, error: type[Exception], message: str) -> None:
    """What is no array of slots is refused by every call that takes one."""
    refuse(lambda ranking: ranking.set(slots, ones), error, message)
    refuse(lambda ranking: ranking.remove(slots), error, message)
    refuse(lambda ranking: ranking.get(slots), error, message)
    refuse(lambda ranking: ranking.ranks_of(slots), error, message)


KEY_CASES: list[tuple[Any, type[Exception], str]] = [
    (floats([1, np.nan]), ValueError, "keys[1]: expected a finite number from 0, got nan"),
    (floats([np.inf, 1]), ValueError, "keys[0]: expected a finite number from 0, got inf"),
    (floats([1, -1e-320]), ValueError, "keys[1]: expected a finite number from 0, got -1e-320"),
    (ones.astype(np.float32), TypeError, "keys: expected a dense 1-d array of float64, got a 1-d"),
    (two, TypeError, "keys: expected a dense 1-d array of float64, got a 1-d one of int64"),
    (np.ones(4)[::2], TypeError, "keys: expected a dense 1-d array of float64, got a strided 1-d"),
    ([1.0, 1.0], TypeError, "keys: expected an array of float64, got list"),
    (None, TypeError, "keys: expected an array of float64, got NoneType"),
]


@pytest.mark.parametrize(("keys", "error", "message"), KEY_CASES)
@pytest.mark.parametrize("capacity", [10, 100], ids=["all at once", "one by one"])
def test_bad_keys(keys: Any, error: type[Exception], message: str, capacity: int) -> None:
    """What is no array of keys is refused, however many slots there are."""
    refuse(lambda ranking: ranking.set(two, keys), error, message, capacity)
    refuse(lambda ranking: ranking.set_range(0, keys), error, message, capacity)


RANGE_CASES: list[tuple[Any, int, type[Exception], str]] = [
    (0, 11, IndexError, "range: expected slots from 0 to 9, got 11 from 0 on"),
    (9, 2, IndexError, "range: expected slots from 0 to 9, got 2 from 9 on"),
    (-1, 2, IndexError, "range: expected slots from 0 to 9, got 2 from -1 on"),
    (11, 0, IndexError, "range: expected slots from 0 to 9, got 0 from 11 on"),
    (2**62, 2, IndexError, "range: expected slots from 0 to 9, got 2 from"),
    (0.5, 2, TypeError, "'float' object cannot be interpreted as an integer"),
    (None, 2, TypeError, "'NoneType' object cannot be interpreted as an integer"),
]


@pytest.mark.parametrize(("first", "n", "error", "message"), RANGE_CASES)
def test_bad_ranges(first: Any, n: int, error: type[Exception], message: str) -> None:
    """A range that does not fit is refused."""
    refuse(lambda ranking: ranking.set_range(first, np.ones(n)), error, message)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_another_number_of_keys(n: int) -> None:
    """There is a key for each slot."""
    refuse(lambda ranking: ranking.set(two, np.ones(n)), ValueError, f"keys: expected 2, got {n}")


@pytest.mark.parametrize("bad", [[0], [1, 9], [-1, 3], [2**62]])
def test_ranks_that_are_not_there(bad: list[int]) -> None:
    """Ranks go from 1 to the number of present slots."""
    message = f"ranks: expected 1 to 8, got {min(bad)} to {max(bad)}"
    refuse(lambda ranking: ranking.at(indexes(bad)), IndexError, message)


def test_ranks_of_another_kind_and_of_nothing() -> None:
    """Ranks come in arrays of intp; absent slots, and those of an empty ranking, have none."""
    message = "ranks: expected a dense 1-d array of intp, got a 1-d one of float64"
    wrong: Any = ones
    refuse(lambda ranking: ranking.at(wrong), TypeError, message)
    message = "indexes[1]: expected slots that are present, got 3"
    refuse(lambda ranking: ranking.ranks_of(indexes([2, 3, 8])), ValueError, message)
    empty = Ranked(3)
    with pytest.raises(IndexError, match="ranks: expected 1 to 0, got 1 to 1"):
        empty.ranking.at(indexes([1]))


def test_empty_arrays() -> None:
    """Nothing to change, find or rank is no error."""
    none, no_slots = np.ones(0), np.zeros(0, np.intp)
    for ranked in (Ranked(3), Ranked(3, keys=1.0)):
        before = ranked.everything()
        ranked.ranking.set(no_slots, none)
        ranked.ranking.set_range(0, none)
        ranked.ranking.set_range(3, none)
        ranked.ranking.remove(no_slots)
        assert ranked.ranking.get(no_slots).dtype == np.float64
        for found in (ranked.ranking.at(no_slots), ranked.ranking.ranks_of(no_slots)):
            assert found.shape == (0,)
            assert found.dtype == np.intp
        assert ranked.everything() == before


def test_arguments_are_left_alone_and_results_are_the_callers() -> None:
    """No call writes to its arguments, which may be read-only; results own their memory."""
    ranking = Ranked(50, keys=np.arange(50)).ranking
    slots, keys, ranks = indexes([3, 4, 3]), floats([5, -0.0, 70]), indexes([1, 50])
    for array in (slots, keys, ranks):
        array.flags.writeable = False
    ranking.set(slots, keys)
    ranking.set_range(7, keys)
    results = [ranking.get(slots), ranking.at(ranks), ranking.ranks_of(slots)]
    copies = [result.copy() for result in results]
    ranking.clear()
    assert keys.tolist() == [5, 0, 70]
    assert np.signbit(keys).tolist() == [False, True, False]
    for result, copy in zip(results, copies, strict=True):
        assert result.flags.owndata
        assert result.flags.writeable
        np.testing.assert_array_equal(result, copy)


# ---- memory -----------------------------------------------------------------------------------


def test_sizes() -> None:
    """The memory is what the documentation says, and nothing else is taken for one."""
    assert ranking_size(1) == ranking_size(9) == 3 * (3 + 128 + 64)
    assert 8 * ranking_size(10**6) / 10**6 + 8 == pytest.approx(33, abs=0.3)
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((0,), ValueError, "capacity: expected 1 to 2147483647, got 0"),
        ((2**31,), ValueError, "capacity: expected 1 to 2147483647, got 2147483648"),
        ((9, 1), ValueError, "block: expected 2 to 2147483647, got 1"),
        ((9, 2**31), ValueError, "block: expected 2 to 2147483647, got 2147483648"),
        ((2.5,), TypeError, "'float' object cannot be interpreted as an integer"),
        ((9, 2.5), TypeError, "'float' object cannot be interpreted as an integer"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            ranking_size(*arguments)
    assert ranking_size(2**31 - 1, 2**31 - 1) > 0


def test_bad_memory() -> None:
    """Arrays of the wrong size or kind, and keys that are none, are refused."""
    size = ranking_size(9)
    keys, memory = np.full(9, np.nan), np.zeros(size)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (keys, np.zeros(size + 1), ValueError, f"memory: expected {size}, got {size + 1}"),
        (keys, np.zeros(0), ValueError, f"memory: expected {size}, got 0"),
        (keys[:0], memory, ValueError, "capacity: expected 1 to"),
        (keys.astype(np.float32), memory, ValueError, "mismatch"),
        (keys, memory.astype(np.int64), ValueError, "mismatch"),
        (np.zeros(18)[::2], memory, ValueError, "contiguous"),
        (np.broadcast_to(0.0, 9), memory, ValueError, "read-only|contiguous"),
        (None, memory, TypeError, "keys"),
        (keys, None, TypeError, "memory"),
        (floats([0, np.inf]), np.zeros(ranking_size(2)), ValueError, r"keys\[1\]: .* got inf"),
        (floats([-1, 0]), np.zeros(ranking_size(2)), ValueError, r"keys\[0\]: .* got -1"),
    ]
    for bad_keys, bad_memory, error, words in cases:
        with pytest.raises(error, match=words):
            Ranking(bad_keys, bad_memory)


def test_keys_are_all_that_need_be_saved(rng: np.random.Generator) -> None:
    """A ranking over a copy of the keys, even with other blocks, has the same order."""
    ranked = Ranked(1000, 7)
    for _ in range(200):
        ranked.ranking.set(rng.integers(0, 1000, 9), rng.integers(0, 50, 9) / 7)
    for block in BLOCKS:
        copy = Ranked(1000, block, ranked.keys)
        assert copy.everything() == ranked.everything()


def test_keys_that_somebody_else_wrote() -> None:
    """They count from ``rebuild`` on, which refuses what is no key and then changes nothing."""
    ranked = Ranked(5, keys=[1, 2, 3, 4, 5])
    ranked.keys[:] = [3, np.nan, -0.0, 9, 3]
    ranked.ranking.rebuild()
    assert_ranks(ranked, floats([3, np.nan, 0, 9, 3]))
    for bad in (np.inf, -1.0, -np.inf):
        ranked.keys[4] = bad
        with pytest.raises(ValueError, match=rf"keys\[4\]: expected a finite .* got {bad}"):
            ranked.ranking.rebuild()
        assert ranked.order() == [3, 0, 4, 2]


@pytest.mark.parametrize("block", BLOCKS)
def test_keys_written_without_a_rebuild_do_no_harm(block: int, rng: np.random.Generator) -> None:
    """Calls raise or go on within their memory, and ``rebuild`` puts everything right."""
    capacity = 200
    ranked = Ranked(capacity, block, rng.random(capacity))
    raised: set[str] = set()
    for _ in range(1500):
        slots = rng.integers(0, capacity, 9)
        ranked.keys[slots] = rng.choice([np.nan, 0.5, 1e300, -1.0, np.inf], 9)
        try:
            ranked.ranking.set(rng.integers(0, capacity, 9), rng.random(9))
        except RuntimeError as error:
            raised.add(str(error))
        assert len(ranked.ranking) <= capacity
        assert 0 <= min(ranked.order()) <= max(ranked.order()) < capacity
    assert raised == {"keys: somebody else wrote to them without calling rebuild()"}
    ranked.keys[:] = rng.random(capacity)
    ranked.ranking.rebuild()
    assert_ranks(ranked, ranked.keys.copy())


def test_an_entry_that_was_removed_is_not_found_again() -> None:
    """What lies in memory behind the last entry of a block is none, even if the keys say so."""
    ranked = Ranked(100, keys=np.arange(100))
    ranked.ranking.remove(indexes([0]))  # the last of all
    ranked.keys[0] = 0.0
    with pytest.raises(RuntimeError, match="keys: somebody else wrote to them"):
        ranked.ranking.remove(indexes([0]))
    assert len(ranked.ranking) == 99


def test_rankings_keep_their_memory_alive() -> None:
    """The caller may drop the arrays; nothing else is kept."""
    keys, memory = np.ones(1000), np.zeros(ranking_size(1000))
    before = sys.getrefcount(keys), sys.getrefcount(memory)
    ranking = Ranking(keys, memory)
    assert sys.getrefcount(keys) > before[0]
    assert sys.getrefcount(memory) > before[1]
    slots, ranks = np.arange(9), np.arange(1, 10)
    arguments = sys.getrefcount(slots), sys.getrefcount(ranks)
    results = [ranking.get(slots), ranking.at(ranks), ranking.ranks_of(slots)]
    ranking.set(slots, np.zeros(9))
    ranking.remove(slots)
    fresh = [np.zeros(9), np.zeros(9), np.zeros(9)]
    assert [*map(sys.getrefcount, results)] == [*map(sys.getrefcount, fresh)]
    assert arguments == (sys.getrefcount(slots), sys.getrefcount(ranks))
    del ranking
    assert before == (sys.getrefcount(keys), sys.getrefcount(memory))


def test_no_call_keeps_memory(rng: np.random.Generator) -> None:
    """Thousands of calls, refused ones too, leave no memory behind."""
    ranked = Ranked(5000)
    bad = indexes([5000])

    def work(rounds: int) -> None:
        for _ in range(rounds):
            slots = rng.integers(0, 5000, 100)
            ranked.ranking.set(slots, rng.random(100))
            ranked.ranking.set_range(0, rng.random(1000))
            ranked.ranking.at(ranked.ranking.ranks_of(slots))
            ranked.ranking.remove(slots[:50])
            with pytest.raises(IndexError):
                ranked.ranking.get(bad)

    work(50)
    tracemalloc.start()
    try:
        work(50)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(500)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000  # 4 bytes a call and less
    finally:
        tracemalloc.stop()


# ---- threads ----------------------------------------------------------------------------------


def test_calls_of_several_threads_are_whole() -> None:
    """Writers that change all slots, at once or one by one, are never seen halfway."""
    capacity, rounds = 4096, 60
    ranking = Ranked(capacity, keys=0.0).ranking
    everything, ranks = np.arange(capacity), np.arange(1, capacity + 1)
    few = np.arange(0, capacity, 32)
    failures: list[object] = []

    def write(key: float) -> None:
        for k in range(rounds):
            ranking.set(everything, np.full(capacity, key + k))
            ranking.set(few, np.full(len(few), 1e6 + key))
            ranking.set(few, np.full(len(few), key))

    def read(_: float) -> None:
        for _ in range(4 * rounds):
            keys = ranking.get(everything)
            if len(set(keys[few].tolist())) > 1 or len(set(keys.tolist())) > 2:
                failures.append(keys)
            if sorted(ranking.at(ranks).tolist()) != everything.tolist():
                failures.append("slots twice")

    def run(job: Callable[[float], None], key: float) -> None:
        try:
            job(key)
        except BaseException as error:
            failures.append(error)

    jobs = [(write, 1.0), (write, 1000.0), (read, 0.0), (read, 0.0)]
    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
