"""The segment trees: against the twin, at the edges of float64, and in proportion."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference_tree import ReferenceTree
from tree_cases import (
    Trees,
    assert_nodes_are_those_of,
    chi_square_excess,
    edge_targets,
    floats,
    indexes,
    twin_of,
)

from cpprb_like import NotEnoughDataError

CAPACITIES = [*range(1, 71), 511, 512, 513, 4095, 4096, 4097]
ROUNDING = Fraction(1, 2**47)  # of the total: more than all roundings of a descent together

# ---- against the twin ----------------------------------------------------------------------


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_nodes_follow_from_the_leaves(capacity: int, rng: np.random.Generator) -> None:
    """However the leaves were set, each node is its children's sum to the last bit, or a bound."""
    trees, twin = Trees(capacity), ReferenceTree(capacity)
    for _ in range(8):
        n = int(rng.integers(1, 2 * capacity + 2))
        slots = rng.integers(0, capacity, n)
        values = rng.random(n) * 10.0 ** rng.integers(-12, 12, n) * (rng.random(n) < 0.8)
        trees.sum.set(indexes(slots), values)
        twin.set(slots.tolist(), values.tolist())

        assert_nodes_are_those_of(twin, trees)
        np.testing.assert_array_equal(trees.sum.get(np.arange(capacity)), twin.weights)
        assert trees.min.min == twin.min


@pytest.mark.once
@pytest.mark.parametrize("capacity", range(1, 71))
def test_search_finds_the_interval_of_the_running_sum(
    capacity: int, rng: np.random.Generator
) -> None:
    """With exact sums, every target is found where a linear scan finds it."""
    for nonzero in (1.0, 0.5, 0.1):
        weights = rng.integers(1, 9, capacity) * (rng.random(capacity) < nonzero)
        weights[rng.integers(capacity)] += 1
        trees, twin = Trees(capacity, weights), twin_of(weights)
        targets = np.arange(0, int(weights.sum()) + 0.5, 0.5)

        found = trees.sum.find(targets)

        assert found.tolist() == [twin.find(target) for target in targets.tolist()]


@pytest.mark.parametrize("capacity", [511, 512, 513, 4097, 100_003])
def test_search_in_deep_trees(capacity: int, rng: np.random.Generator) -> None:
    """With exact sums, a search agrees with NumPy's in the running sum."""
    weights = rng.integers(0, 9, capacity)
    weights[rng.integers(capacity)] += 1
    targets = rng.integers(0, weights.sum(), 5000).astype(np.float64)

    found = Trees(capacity, weights).sum.find(targets)

    np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(weights), targets, "right"))


@pytest.mark.parametrize("capacity", [1, 5, 8, 9, 64, 65, 513])
def test_a_range_is_set_like_its_slots(capacity: int, rng: np.random.Generator) -> None:
    """``set_range`` leaves what ``set`` of the same slots leaves, wherever the range lies."""
    old = rng.random(capacity)
    for _ in range(20):
        first, last = sorted(rng.integers(0, capacity + 1, 2).tolist())
        values = rng.random(last - first)
        one, other = Trees(capacity, old), Trees(capacity, old)

        one.sum.set_range(first, values)
        other.sum.set(np.arange(first, last), values)

        assert one.nodes.tobytes() == other.nodes.tobytes()
        assert one.min.min == other.min.min


weights_of_any_size = st.one_of(
    st.just(0.0),
    st.integers(1, 9).map(float),
    st.floats(0, 2.0**1010),
    st.sampled_from([5e-324, 2.3e-308, 1e-300, 1.0, 1e300]),
)


class TreesAgainstTwin(RuleBasedStateMachine):
    """Any history of calls; every fact is compared after each."""

    trees: Trees
    twin: ReferenceTree

    @initialize(capacity=st.integers(1, 700))
    def create(self, capacity: int) -> None:
        self.trees = Trees(capacity)
        self.twin = ReferenceTree(capacity)

    @rule(data=st.data(), n=st.integers(0, 40))
    def set(self, data: st.DataObject, n: int) -> None:
        slot = st.integers(0, len(self.twin.weights) - 1)
        slots = data.draw(st.lists(slot, min_size=n, max_size=n))
        values = data.draw(st.lists(weights_of_any_size, min_size=n, max_size=n))
        self.trees.sum.set(indexes(slots), floats(values))
        self.twin.set(slots, values)

    @rule(data=st.data(), values=st.lists(weights_of_any_size, max_size=40))
    def set_range(self, data: st.DataObject, values: list[float]) -> None:
        values = values[: len(self.twin.weights)]
        first = data.draw(st.integers(0, len(self.twin.weights) - len(values)))
        self.trees.sum.set_range(first, floats(values))
        self.twin.set(list(range(first, first + len(values))), values)

    @rule()
    def clear(self) -> None:
        self.trees.sum.clear()
        self.twin.weights[:] = 0

    @rule()
    def load(self) -> None:
        """Only the leaves are carried over."""
        capacity = len(self.twin.weights)
        self.trees.nodes[capacity:] = np.nan
        self.trees.minima[:] = np.nan
        self.trees.sum.rebuild()

    @rule(seed=st.integers(0, 9), data=st.data())
    def draw_distinct(self, seed: int, data: st.DataObject) -> None:
        """Leaves no trace; the invariant sees to that."""
        there = int(np.count_nonzero(self.twin.weights))
        n = data.draw(st.integers(0, there))
        drawn, values = self.trees.sum.draw_distinct(n, np.random.default_rng(seed))
        assert len(set(drawn.tolist())) == n
        assert (values > 0).all()
        np.testing.assert_array_equal(values, self.twin.weights[drawn])

    @rule(bad=st.sampled_from([np.nan, np.inf, -1.0, -5e-324]), where=st.integers(0, 3))
    def refused(self, bad: float, where: int) -> None:
        values = np.ones(4)
        values[where] = bad
        with pytest.raises(ValueError, match=rf"values\[{where}\]"):
            self.trees.sum.set(np.zeros(4, np.intp), values)

    @rule()
    def ask_for_the_least(self) -> None:
        """Bounds that it finds left behind become exact."""
        assert self.trees.min.min == self.twin.min

    def teardown(self) -> None:
        if hasattr(self, "trees"):
            self.ask_for_the_least()

    @invariant()
    def same(self) -> None:
        assert_nodes_are_those_of(self.twin, self.trees)
        total = self.trees.sum.total
        if total == 0:
            return
        for target, slot in zip(
            (targets := edge_targets(total)[:12]).tolist(),
            self.trees.sum.find(targets).tolist(),
            strict=True,
        ):
            assert self.twin.weights[slot] > 0
            assert self.twin.distance(slot, target) <= Fraction(total) * ROUNDING


TestTreesAgainstTwin = TreesAgainstTwin.TestCase


# ---- never a slot without weight --------------------------------------------------------------


@given(
    capacity=st.integers(1, 300),
    exponent=st.sampled_from([-1074, -1060, -1022, -996, 0, 52, 996]),
    spread=st.sampled_from([0, 1, 30, 60]),
    nonzero=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_search_ends_where_there_is_no_weight(
    capacity: int, exponent: int, spread: int, nonzero: float, seed: int
) -> None:
    """Totals from the least number to 1e300: what is found has weight, and lies at the target."""
    rng = np.random.default_rng(seed)
    weights = np.ldexp(rng.random(capacity), exponent - rng.integers(0, spread + 1, capacity))
    weights *= rng.random(capacity) < nonzero
    weights[rng.integers(capacity)] = np.ldexp(1.0, exponent)
    tree, twin = Trees(capacity, weights).sum, twin_of(weights)
    targets = edge_targets(tree.total)

    found = tree.find(targets)
    drawn, values = tree.draw(50, rng)

    assert (weights[found] > 0).all()
    assert (values > 0).all()
    np.testing.assert_array_equal(values, weights[drawn])
    for slot, target in zip(found[:10].tolist(), targets[:10].tolist(), strict=True):
        assert twin.distance(slot, target) <= Fraction(tree.total) * ROUNDING


@pytest.mark.parametrize("capacity", [2, 8, 9, 64, 70, 513, 4097])
@pytest.mark.parametrize("large", [1.0, 1e16, 1e300])
@pytest.mark.parametrize("small", [0.0, 5e-324, 1e-300, 0.3])
def test_one_dominant_weight(capacity: int, large: float, small: float) -> None:
    """Beside one weight that swallows the others' sum, no slot without weight is found."""
    for place in sorted({0, 1, capacity // 2, capacity - 1}):
        weights = np.full(capacity, small)
        weights[[0, -1]] = 0
        weights[place] = large
        tree = Trees(capacity, weights).sum
        found = tree.find(edge_targets(tree.total))
        assert (weights[found] > 0).all()
        if small < 1e-200:
            assert set(found[6:-1].tolist()) == {place} or tree.total > large
        drawn, values = tree.draw(300, np.random.default_rng(1))
        assert (values > 0).all()
        np.testing.assert_array_equal(values, weights[drawn])


@pytest.mark.parametrize("capacity", [1, 8, 9, 70, 513])
def test_the_only_weight_is_always_found(capacity: int) -> None:
    """Zeros on both sides, up to the borders, are never found."""
    for place in range(capacity):
        weights = np.zeros(capacity)
        weights[place] = 0.1
        tree = Trees(capacity, weights).sum
        assert set(tree.find(edge_targets(0.1)).tolist()) == {place}
        assert set(tree.draw(9, np.random.default_rng(place))[0].tolist()) == {place}


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 9, 70, 513, 2**20])
def test_no_sum_overflows(capacity: int) -> None:
    """As many as there are of the largest weight have a finite sum; anything above is refused."""
    trees = Trees(capacity)
    largest = trees.sum.largest
    assert capacity > 2**20 or largest > 1e300
    trees.sum.set_range(0, np.full(capacity, largest))
    assert np.isfinite(trees.sum.total)
    assert trees.sum.find(floats([0, trees.sum.total])).tolist() == [0, capacity - 1]
    with pytest.raises(ValueError, match="expected a weight"):
        trees.sum.set(indexes([0]), floats([np.nextafter(largest, np.inf)]))


@pytest.mark.parametrize("content", [np.nan, np.inf, -1.0, "random"])
def test_memory_with_other_content_is_harmless(content: Any, rng: np.random.Generator) -> None:
    """Whatever stands in the nodes, a search returns slots or raises."""
    trees = Trees(70)
    for _ in range(20):
        trees.nodes[:] = rng.normal(size=trees.nodes.size) if content == "random" else content
        if rng.random() < 0.8:
            trees.nodes[-1] = rng.random() * 9
        try:
            drawn = trees.sum.draw(100, rng)[0]
        except NotEnoughDataError:
            continue
        assert drawn.min() >= 0
        assert drawn.max() < 70


# ---- no drift ---------------------------------------------------------------------------------


def test_a_million_sets_leave_no_drift() -> None:
    """After 10^6 sets of all magnitudes, all nodes are those of a tree built from the leaves."""
    rng = np.random.default_rng(3)
    trees, twin = Trees(1000), ReferenceTree(1000)
    for _ in range(4000):
        slots = rng.integers(0, 1000, 250)
        trees.sum.set(slots, rng.random(250) * 10.0 ** rng.integers(-30, 30, 250))
    twin.weights[:] = trees.sum.get(np.arange(1000))

    assert_nodes_are_those_of(twin, trees)
    trees.sum.set_range(0, np.ones(1000))
    assert trees.sum.total == 1000


# ---- drawing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bit_generator", ["PCG64", "MT19937", "Philox", "SFC64"])
@pytest.mark.parametrize("n", [0, 1, 3, 64, 65, 300])
def test_draws_use_one_number_each(bit_generator: str, n: int) -> None:
    """Draws are searches for the documented targets, from the doubles of the generator."""
    weights = np.random.default_rng(5).random(100)
    tree = Trees(100, weights).sum
    rng, same = (np.random.Generator(getattr(np.random, bit_generator)(7)) for _ in range(2))

    strata, strata_values = tree.draw(n, rng)
    free, free_values = tree.draw(n, rng, stratified=False)

    expected = (np.arange(n) + same.random(n)) / max(n, 1) * tree.total
    np.testing.assert_array_equal(strata, tree.find(expected))
    np.testing.assert_array_equal(free, tree.find(same.random(n) * tree.total))
    np.testing.assert_array_equal(strata_values, weights[strata])
    np.testing.assert_array_equal(free_values, weights[free])
    assert rng.random() == same.random()


@pytest.mark.parametrize("capacity", [2, 7, 8, 9, 70, 513])
@pytest.mark.parametrize("stratified", [True, False])
def test_draws_are_in_proportion_to_the_weights(capacity: int, stratified: bool) -> None:
    """Counts of drawn slots fit the weights, after updates as well."""
    rng = np.random.default_rng(capacity)
    trees = Trees(capacity, rng.random(capacity))
    for _ in range(2):
        slots = rng.integers(0, capacity, capacity)
        trees.sum.set(slots, rng.random(capacity) * (rng.random(capacity) < 0.9) + 1e-3)
        weights = trees.sum.get(np.arange(capacity))
        drawn = [trees.sum.draw(100, rng, stratified)[0] for _ in range(20 * capacity)]
        counts = np.bincount(np.concatenate(drawn), minlength=capacity)
        assert chi_square_excess(counts, weights) < 1


def test_independent_draws_are_independent() -> None:
    """Two draws that follow each other fit the product of the weights."""
    weights = np.arange(6.0)
    tree = Trees(6, weights).sum
    drawn = tree.draw(100_000, np.random.default_rng(2), stratified=False)[0].reshape(-1, 2)
    counts = np.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36)
    assert chi_square_excess(counts, np.outer(weights, weights).ravel()) < 1


@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_strata_have_one_draw_each(n: int, rng: np.random.Generator) -> None:
    """Slot i is drawn as often as its share of n says, give or take less than two."""
    weights = rng.random(40)
    drawn = Trees(40, weights).sum.draw(n, rng)[0]
    share = weights / weights.sum() * n
    counts = np.bincount(drawn, minlength=40)
    assert (np.diff(drawn) >= 0).all()
    assert (abs(counts - share) < 2).all()


def test_golden_values() -> None:
    """The bits of a total and the slots of two draws are the same on every platform."""
    weights = np.sqrt(np.arange(100.0)) / 3
    tree = Trees(100, weights).sum
    rng = np.random.default_rng(12)
    assert tree.total.hex() == GOLDEN_TOTAL
    assert tree.draw(12, rng)[0].tolist() == GOLDEN_STRATA
    assert tree.draw(12, rng, stratified=False)[0].tolist() == GOLDEN_FREE


GOLDEN_TOTAL = "0x1.b8f9ad225d32cp+7"
GOLDEN_STRATA = [8, 30, 32, 41, 51, 57, 67, 70, 82, 87, 88, 97]
GOLDEN_FREE = [22, 40, 56, 59, 60, 95, 40, 33, 76, 96, 94, 91]
