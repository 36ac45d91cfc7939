"""Places of entries in a byte ring, against the slow twin, and how far a ring gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceByteRing

from cpprb_like._rows.byte_ring import ByteRing

EXTENT, RUN_PLACE, RUN_KEY = range(3)  # words of a ring
# How many entries leave, and the lengths of those that come.
STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(1, 12), max_size=9)), max_size=60
)


def ring_of(units: int) -> tuple[ByteRing, np.ndarray]:
    """A ring, and its words."""
    words = np.zeros(8, np.int64)
    return ByteRing(units, words), words


def arrays(entries: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Places and lengths as two arrays."""
    both = np.array(entries, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


@given(units=st.integers(0, 150), steps=STEPS, longest=st.integers(1, 12))
def test_places_are_those_of_the_twin(
    units: int, steps: list[tuple[int, list[int]]], longest: int
) -> None:
    """Entries of any lengths get the places of the twin, and its runs, in rings of any length."""
    ring, words = ring_of(units)
    twin = ReferenceByteRing(units)
    key = 0
    for n_leaving, lengths in steps:
        for _ in range(min(n_leaving, len(twin.entries))):
            ring.leave(twin.leave())
        for length in lengths:
            n = min(length, longest)
            key += 1
            runs = twin.runs
            place = twin.take(n)
            assert ring.take(n, key) == (-1 if place is None else place)
            if len(twin.runs) > len(runs):
                assert words[[EXTENT, RUN_PLACE, RUN_KEY]].tolist() == [ring.extent, place, key]
        assert (ring.runs, ring.extent) == (twin.runs, twin.extent)
        assert words[EXTENT] == ring.extent <= units
        taken = [place + k for place, n in twin.entries for k in range(n)]
        assert len(taken) == len(set(taken)) == ring.living


@given(units=st.integers(1, 100), steps=STEPS, more=STEPS)
def test_derived_runs_go_on_as_the_old_ones(
    units: int, steps: list[tuple[int, list[int]]], more: list[tuple[int, list[int]]]
) -> None:
    """A ring that is derived from living entries takes the places that the old ring would take.

    It has forgotten the units that were used before and are free behind the last entry.
    """
    ring, _ = ring_of(units)
    twin = ReferenceByteRing(units)
    for n_leaving, lengths in steps:
        for _ in range(min(n_leaving, len(twin.entries))):
            ring.leave(twin.leave())
        for length in lengths:
            twin.take(length)
            ring.take(length, 0)
    derived, words = ring_of(units)
    derived.take(1, 5)
    derived.derive(*arrays(twin.entries))
    twin.extent = max((place + n for place, n in twin.entries), default=0)
    assert (derived.runs, derived.extent) == (twin.runs, twin.extent)
    newest = twin.runs[-1][0] if twin.entries else 0
    assert words[[EXTENT, RUN_PLACE, RUN_KEY]].tolist() == [twin.extent, newest, -1]
    for n_leaving, lengths in more:
        for _ in range(min(n_leaving, len(twin.entries))):
            derived.leave(twin.leave())
        for length in lengths:
            place = twin.take(length)
            assert derived.take(length, 0) == (-1 if place is None else place)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(0, 2), (1, 2)], "two entries of a ring lie at 1"),
        ([(4, 2), (0, 2), (4, 1)], "two entries of a ring lie at 4"),
        ([(0, 0)], "an entry of 0 units at 0 is outside"),
        ([(9, 2)], "an entry of 2 units at 9 is outside"),
        ([(-1, 2)], "an entry of 2 units at -1 is outside"),
        ([(2**62, 2**62)], "outside"),
        ([(1, -(2**62))], "outside"),
    ],
)
def test_damaged_places_are_refused(entries: list[tuple[int, int]], words: str) -> None:
    """Entries that cannot be are refused, and the ring keeps its own."""
    ring, memory = ring_of(10)
    ring.take(3, 7)
    before = memory.copy()
    with pytest.raises(ValueError, match=words):
        ring.derive(*arrays(entries))
    assert ring.runs == [(0, 3)]
    np.testing.assert_array_equal(memory, before)


def test_a_run_begins_right_behind_an_older_one() -> None:
    """Two runs with another one between them in time may look like one run by their places."""
    ring, _ = ring_of(40)
    twin = ReferenceByteRing(40)

    def both(n_leaving: int, n: int) -> list[int | None]:
        for _ in range(n_leaving):
            ring.leave(twin.leave())
        places = [twin.take(1) for _ in range(n)]
        assert [ring.take(1, 0) for _ in range(n)] == places
        return places

    both(0, 16)
    assert both(2, 2) == [0, 1]
    assert both(0, 1) == [16]  # no gap
    assert both(6, 2) == [2, 3]  # behind the run before the last one
    assert ring.runs == twin.runs == [(8, 16), (0, 2), (16, 17), (2, 4)]
    derived, _ = ring_of(40)
    derived.derive(*arrays(twin.entries))
    assert derived.runs == ring.runs


def test_too_many_runs_are_refused() -> None:
    """Runs that no rule could make are a damage too, and the lengths need one for each place."""
    ring, _ = ring_of(1000)
    ring.derive(*arrays([(2 * k, 1) for k in range(64)]))
    assert len(ring.runs) == 64
    with pytest.raises(ValueError, match="more than 64 runs"):
        ring.derive(*arrays([(2 * k, 1) for k in range(65)]))
    with pytest.raises(ValueError, match="expected 1 lengths"):
        ring.derive(np.zeros(1, np.int64), np.zeros(0, np.int64))


def test_a_ring_with_the_most_runs_waits_for_the_oldest() -> None:
    """Without a place for another run there is no place, until the oldest run has left."""
    ring, _ = ring_of(1000)
    ring.derive(*arrays([(4 * k, 1) for k in reversed(range(64))]))
    assert ring.take(3, 0) == 1  # behind the newest
    assert ring.take(1, 0) == -1
    ring.leave(1)
    assert ring.take(1, 0) == 249  # behind the last entry that is left


def test_wrong_arguments_are_refused() -> None:
    """An entry without units, units that do not live, and words of a wrong length."""
    ring, _ = ring_of(10)
    with pytest.raises(ValueError, match="at least 1 unit, got 0"):
        ring.take(0, 0)
    with pytest.raises(ValueError, match="at most the 0 living units, got 1"):
        ring.leave(1)
    with pytest.raises(ValueError, match="expected 8 words"):
        ByteRing(10, np.zeros(3, np.int64))


def extent_and_runs(lengths: Iterable[int], capacity: int) -> tuple[float, int]:
    """Extent of a ring by its most living units, and its most runs: an entry ends each episode."""
    ring, _ = ring_of(2 * capacity)
    rows: deque[int] = deque()
    row = most_living = most_runs = 0
    for length in lengths:
        row += int(length)
        while rows and rows[0] < row - capacity:
            rows.popleft()
            ring.leave(1)
        assert ring.take(1, row) >= 0
        rows.append(row)
        most_living = max(most_living, len(rows))
        most_runs = max(most_runs, len(ring.runs))
    return (ring.extent - 2) / most_living, most_runs


def lognormal(mean: float, n: int, factor: float = 1.0) -> np.ndarray:
    """Lengths of episodes that get ``factor`` times longer on the way."""
    draws = np.random.default_rng(0).lognormal(mean, 0.8, n)
    return np.maximum(1, draws * np.geomspace(1, factor, n)).astype(np.int64)


@pytest.mark.parametrize(
    "lengths",
    [
        lognormal(5.0, 20_000),
        lognormal(4.0, 20_000, 10.0),
        lognormal(6.3, 20_000, 0.1),
        np.where(np.arange(20_000) // 2000 % 2, 30, 1000),
        np.ones(20_000, np.int64),
        np.repeat(np.random.default_rng(1).integers(1, 50, 40), 500),
    ],
    ids=["even", "longer", "shorter", "bursts", "each row", "other lengths"],
)
def test_the_extent_stays_near_the_most_living_units(lengths: np.ndarray) -> None:
    """Over many turns of the ring, the extent is at most a quarter above the most living units."""
    extent, n_runs = extent_and_runs(lengths, 100_000)
    assert extent <= 1.25
    assert n_runs <= 6


def test_random_histories_have_few_runs_and_a_small_extent() -> None:
    """Densities of entries that change at random, in small rings, whose eighth is a few units."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        capacity = int(rng.integers(50, 1000))
        densities = np.repeat(rng.integers(1, 60, 20), rng.integers(1, 200, 20))
        extent, n_runs = extent_and_runs(rng.integers(1, 1 + densities), capacity)
        assert extent <= 1.4
        assert n_runs <= 12
