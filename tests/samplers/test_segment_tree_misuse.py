"""The segment trees: what they refuse, the memory they are given, and several threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tree_cases import Trees, assert_nodes_are_those_of, edge_targets, floats, indexes, twin_of

from cpprb_like import NotEnoughDataError
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size

# ---- bad input --------------------------------------------------------------------------------

two = indexes([0, 1])
ones = np.ones(2)


@pytest.mark.parametrize(
    ("slots", "values", "error", "words"),
    [
        (two, floats([1, np.nan]), ValueError, r"values\[1\].*nan"),
        (two, floats([np.inf, 1]), ValueError, r"values\[0\].*inf"),
        (two, floats([1, -1e-320]), ValueError, r"values\[1\].*-1e-320"),
        (two, np.ones(3), ValueError, "values: expected 2, got 3"),
        (two, np.ones(0), ValueError, "values: expected 2, got 0"),
        (indexes([0, 10]), ones, IndexError, "expected 0 to 9, got 0 to 10"),
        (indexes([0, -1]), ones, IndexError, "expected 0 to 9, got -1 to 0"),
        (indexes([0, 2**62]), ones, IndexError, "expected 0 to 9"),
        (floats([0, 1]), ones, TypeError, "indexes: .* intp, got a 1-d one of float64"),
        (two.astype(np.int32), ones, TypeError, "intp, got a 1-d one of int32"),
        (two.astype(np.uint64), ones, TypeError, "intp, got a 1-d one of uint64"),
        (np.array([True, False]), ones, TypeError, "bool"),
        (two.reshape(1, 2), ones, TypeError, "2-d"),
        (np.arange(4)[::2], ones, TypeError, "strided"),
        (np.array(0), np.array(1.0), TypeError, "0-d"),
        ([0, 1], ones, TypeError, "indexes: expected an array of intp, got list"),
        (None, ones, TypeError, "NoneType"),
        (two, ones.astype(np.float32), TypeError, "values: .* float64, got a 1-d one of float32"),
        (two, ones.astype(">f8"), TypeError, "float64, got a 1-d one of >f8"),
        (two, np.ones(4)[::2], TypeError, "strided"),
        (two, [1.0, 1.0], TypeError, "values: expected an array of float64, got list"),
        (two, None, TypeError, "NoneType"),
    ],
)
def test_bad_sets_change_nothing(
    slots: Any, values: Any, error: type[Exception], words: str
) -> None:
    """Bad slots or weights raise before the first write."""
    trees = Trees(10, range(10))
    before = trees.bytes()
    with pytest.raises(error, match=words):
        trees.sum.set(slots, values)
    assert trees.bytes() == before


@pytest.mark.parametrize(
    ("first", "values", "error"),
    [
        (0, np.ones(11), IndexError),
        (9, ones, IndexError),
        (-1, ones, IndexError),
        (11, np.ones(0), IndexError),
        (2**62, ones, IndexError),
        (0, floats([1, np.nan]), ValueError),
        (0, floats([1, -1]), ValueError),
        (0, np.ones(2, np.float32), TypeError),
        (0, [1.0], TypeError),
        (0.5, ones, TypeError),
        (None, ones, TypeError),
    ],
)
def test_bad_ranges_change_nothing(first: Any, values: Any, error: type[Exception]) -> None:
    """A range that does not fit, or bad weights, raise before the first write."""
    trees = Trees(10, range(10))
    before = trees.bytes()
    with pytest.raises(error):
        trees.sum.set_range(first, values)
    assert trees.bytes() == before


@pytest.mark.parametrize("bad", [np.nan, -1e-320, np.nextafter(45, 46), np.inf])
def test_bad_targets(bad: float) -> None:
    """A target outside the weights is refused, wherever it stands in the batch."""
    tree = Trees(10, range(10)).sum
    for place in (0, 99):
        targets = np.ones(100)
        targets[place] = bad
        with pytest.raises(ValueError, match=rf"targets\[{place}\]: expected 0 to the total of 45"):
            tree.find(targets)
    with pytest.raises(TypeError, match="targets: expected"):
        tree.find(np.ones(3, np.float32))


def test_bad_reads() -> None:
    """Slots that do not exist are refused."""
    tree = Trees(10, range(10)).sum
    for slots in (indexes([10]), indexes([-1])):
        with pytest.raises(IndexError, match="expected 0 to 9"):
            tree.get(slots)
    with pytest.raises(TypeError, match="intp"):
        tree.get(floats([1]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n: expected 0 or more, got -1"):
        tree.draw(-1, np.random.default_rng())
    half: Any = 2.5
    with pytest.raises(TypeError, match="integer"):
        tree.draw(half, np.random.default_rng())


def test_nothing_to_draw() -> None:
    """While all weights are zero there is nothing to find or draw; the generator is not used."""
    tree = Trees(10, np.zeros(10)).sum
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    with pytest.raises(NotEnoughDataError, match="all weights are zero"):
        tree.find(np.zeros(1))
    for n in (0, 3):
        with pytest.raises(NotEnoughDataError, match="there are no rows, or all weights are zero"):
            tree.draw(n, rng)
    assert rng.random() == same.random()
    assert tree.total == 0


def test_empty_batches() -> None:
    """Nothing to set, get, find or draw is no error, on an empty tree but for the draw."""
    trees = Trees(10)
    none, no_slots = np.ones(0), np.zeros(0, np.intp)
    for weight in (0.0, 1.0):
        trees.sum.set_range(3, floats([weight]))
        before = trees.bytes()
        trees.sum.set(no_slots, none)
        trees.sum.set_range(0, none)
        trees.sum.set_range(10, none)
        assert trees.sum.get(no_slots).shape == (0,)
        assert trees.sum.find(none).shape == (0,)
        assert trees.bytes() == before
    drawn, values = trees.sum.draw(0, np.random.default_rng())
    assert drawn.shape == values.shape == (0,)
    assert drawn.dtype == np.intp
    assert values.dtype == np.float64


def test_minus_zero_is_zero() -> None:
    """A weight of -0.0 is accepted and stored as 0.0."""
    trees = Trees(10, range(10))
    trees.sum.set(indexes([3]), floats([-0.0]))
    trees.sum.set_range(4, floats([-0.0]))
    assert not np.signbit(trees.nodes).any()
    assert trees.sum.total == 38
    assert trees.min.min == 1


def test_arguments_are_left_alone_and_results_are_the_callers() -> None:
    """No call writes to its arguments, which may be read-only; results own their memory."""
    tree = Trees(10, range(10)).sum
    slots, values = indexes([3, 4, 3]), floats([5, 6, 7])
    targets = floats([0, 30])
    for array in (slots, values, targets):
        array.flags.writeable = False
    tree.set(slots, values)
    results = [tree.get(slots), tree.find(targets), *tree.draw(5, np.random.default_rng(1))]
    copies = [result.copy() for result in results]
    tree.clear()
    for result, copy in zip(results, copies, strict=True):
        assert result.flags.owndata
        assert result.flags.writeable
        np.testing.assert_array_equal(result, copy)
    assert results[0].tolist() == [7, 6, 7]


# ---- memory -----------------------------------------------------------------------------------


def test_sizes() -> None:
    """A level has an eighth of the nodes of the one below it; bounds begin at the third level."""
    assert [tree_size(n) for n in (1, 8, 9, 64, 65)] == [17, 17, 25, 73, 97]
    assert [min_tree_size(n) for n in (1, 64, 65, 512, 513)] == [1, 1, 9, 9, 25]
    assert tree_size(2**20) == 1198377
    for size in (tree_size, min_tree_size):
        for capacity in (0, -1, 2**56 + 1):
            with pytest.raises(ValueError, match="capacity: expected 1 to"):
                size(capacity)


def test_a_tree_goes_on_where_another_left_off(rng: np.random.Generator) -> None:
    """The arrays are all there is: another tree over them, or a copy of them, is the same."""
    trees = Trees(70, rng.random(70))
    copy = Trees(70)
    copy.nodes[:], copy.minima[:] = trees.nodes, trees.minima
    again = SumTree(trees.nodes, 70)
    for other in (copy.sum, again):
        assert other.total == trees.sum.total
    assert copy.min.min == trees.min.min
    targets = edge_targets(trees.sum.total)
    np.testing.assert_array_equal(trees.sum.find(targets), copy.sum.find(targets))


def test_any_alignment_will_do(rng: np.random.Generator) -> None:
    """Arrays need not begin with a cache line."""
    weights = rng.random(70)
    for shift in range(8):
        memory = np.zeros(tree_size(70) + shift)
        tree = SumTree(memory[shift:], 70)
        tree.set_range(0, weights)
        np.testing.assert_array_equal(memory[shift:], twin_of(weights).sum_nodes())


def test_bad_memory() -> None:
    """Memory of the wrong size or kind, or a second tree of a kind, is refused."""
    good = np.zeros(tree_size(10))
    cases: list[tuple[Any, str]] = [
        (np.zeros(tree_size(10) + 1), "nodes: expected 25, got 26"),
        (np.zeros(0), "nodes: expected 25, got 0"),
        (np.zeros(tree_size(10), np.float32), "mismatch"),
        (np.zeros(2 * tree_size(10))[::2], "contiguous"),
        (np.broadcast_to(0.0, tree_size(10)), "read-only|contiguous"),
    ]
    for bad, words in cases:
        with pytest.raises(ValueError, match=words):
            SumTree(bad, 10)
    with pytest.raises(ValueError, match="capacity: expected 1 to"):
        SumTree(good, 0)
    kinds: tuple[Any, ...] = (SumTree, MinTree)
    for kind in kinds:
        with pytest.raises(TypeError):
            kind.__new__(kind)
    with pytest.raises(TypeError):
        SumTree(None, 10)  # type: ignore[arg-type]
    tree = SumTree(good, 10)
    with pytest.raises(ValueError, match="nodes: expected 1, got 10"):
        MinTree(np.zeros(10), tree)
    first = MinTree(np.zeros(1), tree)
    with pytest.raises(ValueError, match="has a MinTree already"):
        MinTree(np.zeros(1), tree)
    assert isinstance(first, MinTree)


def test_rebuilding_refuses_what_is_no_weight() -> None:
    """Leaves that are no weights are found when a tree is rebuilt, and no node is computed."""
    trees = Trees(10, range(10))
    for bad in (np.nan, np.inf, -1.0):
        trees.nodes[4] = bad
        with pytest.raises(ValueError, match=r"values\[4\]: expected a weight"):
            trees.sum.rebuild()
        assert trees.sum.total == 45


def test_trees_keep_their_memory_alive() -> None:
    """The caller may drop the arrays; no reference is held."""
    nodes = np.zeros(tree_size(1000))
    before = sys.getrefcount(nodes)
    tree = SumTree(nodes, 1000)
    assert sys.getrefcount(nodes) > before
    tree.set_range(0, np.ones(1000))
    del tree
    assert sys.getrefcount(nodes) == before
    assert nodes[-1] == 1000


# ---- threads ----------------------------------------------------------------------------------


SPECK = 1000.0  # the weight of one slot, whatever the others have


def test_calls_of_several_threads_are_whole() -> None:
    """Large calls, which run side by side with Python, and small ones never mix."""
    capacity, rounds = 2**18, 6
    trees = Trees(capacity, np.ones(capacity))
    everything, few = np.arange(capacity), indexes([0, capacity // 2, capacity - 1])
    failures: list[object] = []

    def write(value: float) -> None:
        for _ in range(rounds):
            trees.sum.set(everything, np.full(capacity, value))
            trees.sum.set(indexes([7]), floats([SPECK]))
            trees.sum.set_range(0, np.full(capacity, value + 1))
            trees.sum.rebuild()
            trees.sum.clear()

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for n in [10, 20, 30, 6000] * 10 * rounds:
            seen = [trees.sum.get(few)]
            seen += [trees.sum.get(everything)] if n == 6000 else []
            with suppress(NotEnoughDataError):
                seen.append(trees.sum.draw(n, generator)[1])
                assert seen[-1].min() > 0
            for weights in seen:
                assert len(set(weights.tolist()) - {SPECK}) <= 1

    def reporting(work: Callable[[Any], None], argument: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work(argument)
            except BaseException as error:
                failures.append(error)

        return run

    jobs = [(write, 3.0), (write, 30.0), (read, 1), (read, 2)]
    threads = [threading.Thread(target=reporting(*job)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert_nodes_are_those_of(twin_of(trees.sum.get(everything)), trees)
