"""ReAgent's sum tree: numbers, draws, and the random numbers they take."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.reagent import SumTree


def found(leaves: list[float], target: float) -> int:
    """The leaf at a distance along all leaves; at most the last one with a weight."""
    for leaf, weight in enumerate(leaves):
        if target < weight:
            return leaf
        target -= weight
    return max(leaf for leaf, weight in enumerate(leaves) if weight)


def filled(leaves: list[float]) -> SumTree:
    """A tree of these leaves."""
    tree = SumTree(len(leaves))
    for slot, value in enumerate(leaves):
        tree.set(slot, value)
    return tree


wholes = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=70).filter(any)


@given(leaves=wholes, seed=st.integers(0, 999), n=st.integers(0, 40))
def test_draws_are_repeated_by_a_seed_and_stratified(
    leaves: list[float], seed: int, n: int
) -> None:
    """``random.seed`` decides; the k-th slot of a stratified draw comes from the k-th part."""
    tree, total = filled(leaves), sum(leaves)
    random.seed(seed)
    drawn = tree.stratified_sample(n)
    last = tree.sample()
    random.seed(seed)
    assert tree.stratified_sample(n) == drawn
    assert tree.sample() == last == found(leaves, last_number(seed, n) * total)
    for part, slot in enumerate(drawn):
        first, end = (tree.sample((part + k) / n) for k in (0, 1))
        assert first <= slot <= end
    assert all(type(slot) is int for slot in [*drawn, last])


def last_number(seed: int, n: int) -> float:
    """The number that ``random.random`` gives after a stratified draw."""
    random.seed(seed)
    random.randbytes(8 * n)
    return random.random()


@given(leaves=wholes, queries=st.lists(st.floats(0, 1), min_size=1))
def test_queries_find_the_leaf_of_the_running_sum(
    leaves: list[float], queries: list[float]
) -> None:
    """A query is a part of the sum, and never finds a leaf without a weight."""
    tree = filled(leaves)
    for query in queries:
        slot = tree.sample(query_value=query)
        assert slot == found(leaves, query * sum(leaves))
        assert tree.sample(np.float32(query)) == tree.sample(float(np.float32(query)))
        assert tree.get(slot) > 0


@given(
    changes=st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1e9)), max_size=60),
)
def test_levels_are_sums_of_the_leaves(changes: list[tuple[int, float]]) -> None:
    """Each node is exactly the sum of the two below, after any changes."""
    tree, leaves = SumTree(13), np.zeros(16)
    for slot, value in changes:
        tree.set(slot, value)
        leaves[slot] = value
    levels = tree.nodes
    assert [len(level) for level in levels] == [1, 2, 4, 8, 16]
    np.testing.assert_array_equal(levels[-1], leaves)
    for above, below in itertools.pairwise(levels):
        np.testing.assert_array_equal(above, below[::2] + below[1::2])
    assert tree._total_priority() == pytest.approx(leaves.sum())
    assert tree.max_recorded_priority == max([1.0, *(value for _, value in changes)])
    with pytest.raises(ValueError, match="read-only"):
        levels[0][0] = 1.0


def test_sums_do_not_drift() -> None:
    """A subtree that is set to zero again has a sum of zero, whatever it was before."""
    tree = SumTree(64)
    rng = np.random.default_rng(0)
    for _ in range(5000):
        tree.set(int(rng.integers(64)), float(10 ** rng.uniform(-9, 9)))
    for slot in range(64):
        tree.set(slot, 0.0)
    assert all((level == 0).all() for level in tree.nodes)
    with pytest.raises(NotEnoughDataError):
        tree.sample()


def test_equal_leaves_are_each_drawn_once() -> None:
    """As many parts as leaves of the same weight: one from each."""
    tree = SumTree(100)
    for slot in range(32):
        tree.set(slot, 1)
    assert tree.stratified_sample(32) == list(range(32))


@pytest.mark.parametrize("capacity", [1, 2, 3, 100])
def test_the_ends_of_the_range(capacity: int) -> None:
    """A query of 1 finds the last leaf that has a weight, though there are leaves behind it."""
    tree = SumTree(capacity=capacity)
    tree.set(0, 1.5)
    assert (tree.get(0), tree.sample(1.0), tree.sample(0.0)) == (1.5, 0, 0)
    assert len(tree.nodes) == (capacity - 1).bit_length() + 1


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e308])
def test_what_is_no_priority_is_refused(value: float) -> None:
    """Negative, not finite, or too large to add up; then nothing has changed."""
    tree = filled([1.0, 2.0])
    with pytest.raises(ValueError):
        tree.set(1, value)
    assert (tree.get(1), tree.max_recorded_priority, tree._total_priority()) == (2.0, 2.0, 3.0)


@pytest.mark.parametrize("slot", [-1, 5, 7, 8, 1000])
def test_what_is_no_slot_is_refused(slot: int) -> None:
    """Slots up to the next power of two are none, and negative ones do not count from the end."""
    tree = SumTree(5)
    with pytest.raises(IndexError):
        tree.set(slot, 1.0)
    with pytest.raises(IndexError):
        tree.get(slot)
    with pytest.raises(TypeError):
        tree.get(1.5)  # type: ignore[arg-type]
    assert tree._total_priority() == 0


@pytest.mark.parametrize("capacity", [0, -1, 2.0, "3", None])
def test_what_is_no_capacity_is_refused(capacity: Any) -> None:
    """A positive integer is expected."""
    with pytest.raises(AssertionError):
        SumTree(capacity)
    with pytest.raises(ValueError):
        SumTree(capacity)


def test_a_tree_that_no_machine_can_hold() -> None:
    """The message says how much it would take."""
    with pytest.raises(MemoryError, match="a tree of 100000000000000 weights needs"):
        SumTree(10**14)


def test_draws_that_are_refused() -> None:
    """Empty trees, queries out of range, and a negative number of draws take no random number."""
    random.seed(3)
    state = random.getstate()
    with pytest.raises(RuntimeError):
        SumTree(4).sample()
    with pytest.raises(RuntimeError):
        SumTree(4).stratified_sample(5)
    tree = filled([1.0, 2.0])
    for query in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError):
            tree.sample(query)
    with pytest.raises(ValueError):
        tree.stratified_sample(-1)
    assert random.getstate() == state


def test_copies() -> None:
    """A pickled or copied tree is another one with the same leaves."""
    tree = filled([1.0, 2.0, 5.0])
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), copy.copy(tree)):
        assert [other.get(slot) for slot in range(3)] == [1, 2, 5]
        assert other.max_recorded_priority == 5
        other.set(0, 9.0)
        assert repr(other) == "SumTree(capacity=3, total=16)"
    assert tree.get(0) == 1
