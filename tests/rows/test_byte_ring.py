"""Places of entries in a byte ring, against the slow twin, and how far a ring gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import pytest
from byte_rings import MOST_RUNS, ByteRing, Run
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceByteRing

# How many entries leave, and the lengths of those that come.
STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(1, 12), max_size=9)), max_size=60
)


@given(units=st.integers(0, 150), steps=STEPS, longest=st.integers(1, 12))
def test_places_are_those_of_the_twin(
    units: int, steps: list[tuple[int, list[int]]], longest: int
) -> None:
    """Entries of any lengths get the places of the twin, and its runs, in rings of any length."""
    ring = ByteRing(units)
    twin = ReferenceByteRing(units)
    for n_leaving, lengths in steps:
        for _ in range(min(n_leaving, len(twin.entries))):
            ring.leave(twin.leave())
        for length in lengths:
            n = min(length, longest)
            place = twin.take(n)
            assert ring.take(n) == (-1 if place is None else place)
        assert (ring.runs, ring.extent) == (twin.runs, twin.extent)
        assert ring.extent <= units
        taken = [place + k for place, n in twin.entries for k in range(n)]
        assert len(taken) == len(set(taken))


def test_a_run_begins_right_behind_an_older_one() -> None:
    """Two runs with another one between them in time may look like one run by their places."""
    ring = ByteRing(40)
    twin = ReferenceByteRing(40)

    def both(n_leaving: int, n: int) -> list[int | None]:
        for _ in range(n_leaving):
            ring.leave(twin.leave())
        places = [twin.take(1) for _ in range(n)]
        assert [ring.take(1) for _ in range(n)] == places
        return places

    both(0, 16)
    assert both(2, 2) == [0, 1]
    assert both(0, 1) == [16]  # no gap
    assert both(6, 2) == [2, 3]  # behind the run before the last one
    assert ring.runs == twin.runs == [(8, 16), (0, 2), (16, 17), (2, 4)]


def test_a_full_table_of_runs() -> None:
    """An entry that would begin one more run than the table has gets no place until a run ends.

    Nothing changes then. An entry right behind the newest one gets its place.
    """
    ring = ByteRing(4 * MOST_RUNS)
    runs = [(4 * k, 4 * k + 2) for k in range(MOST_RUNS)]  # each has a gap of two units behind it
    ring.places.n_runs, ring.places.extent = MOST_RUNS, ring.places.units
    ring.places.runs[:] = [Run(*run) for run in runs]
    assert ring.take(1) == runs[-1][1]
    runs[-1] = runs[-1][0], runs[-1][1] + 1
    before = bytes(ring.places)
    assert ring.take(2) == -1
    assert bytes(ring.places) == before

    ring.leave(2)
    assert ring.take(2) == 0
    assert ring.runs == [*runs[1:], (0, 2)]


def extent_and_runs(lengths: Iterable[int], capacity: int) -> tuple[float, int]:
    """Extent of a ring by its most living units, and its most runs: an entry ends each episode."""
    ring = ByteRing(2 * capacity)
    rows: deque[int] = deque()
    row = most_living = most_runs = 0
    for length in lengths:
        row += int(length)
        while rows and rows[0] < row - capacity:
            rows.popleft()
            ring.leave(1)
        assert ring.take(1) >= 0
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
