"""Draws of different slots: the distribution of successive draws, and a tree that is left alone."""

from __future__ import annotations

import doctest
import sys
import threading
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from reference_tree import Floats
from tree_cases import Trees, chi_square_excess, floats, twin_of

from cpprb_like import NotEnoughDataError
from cpprb_like._segment_tree import SumTree, tree_size


def probability(order: tuple[int, ...], weights: Floats) -> float:
    """That successive draws, each among the slots that are left, come in this order."""
    left, result = weights.sum(), 1.0
    for slot in order:
        result *= weights[slot] / left
        left -= weights[slot]
    return float(result)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "weights", [[1, 1, 1, 1], [1, 2, 3, 4], [8, 1, 0, 1, 1], [100, 1, 2, 0, 3]], ids=str
)
def test_every_order_has_the_probability_of_successive_draws(n: int, weights: list[int]) -> None:
    """Counts of all ordered draws fit their exact probabilities."""
    tree = Trees(len(weights), weights).sum
    rng = np.random.default_rng([n, *weights])
    orders = list(permutations(range(len(weights)), n))
    places = {order: place for place, order in enumerate(orders)}
    chances = np.array([probability(order, floats(weights)) for order in orders])
    drawn = [tuple(tree.draw_distinct(n, rng)[0].tolist()) for _ in range(40_000)]

    counts = np.bincount([places[order] for order in drawn], minlength=len(orders))

    assert chi_square_excess(counts, chances) < 1


@pytest.mark.parametrize("capacity", [100, 700])
def test_the_first_draws_of_many_fit_as_well(capacity: int) -> None:
    """In a draw of everything, in many rounds, heavy slots come as early as they must."""
    rng = np.random.default_rng(capacity)
    weights = rng.random(capacity) ** 4 + 1e-3
    tree = Trees(capacity, weights).sum
    drawn = np.array([tree.draw_distinct(capacity, rng)[0] for _ in range(4000)])
    # Successive draws are the order in which exponential clocks of these rates ring.
    rings = np.argsort(rng.exponential(size=drawn.shape) / weights, axis=1)

    assert chi_square_excess(np.bincount(drawn[:, 0], minlength=capacity), weights) < 1
    for where in (capacity // 2, -1):
        seen, expected = weights[drawn[:, where]], weights[rings[:, where]]
        spread = np.hypot(seen.std(), expected.std()) / len(drawn) ** 0.5
        assert abs(seen.mean() - expected.mean()) < 5 * spread


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 64, 70, 200])
@pytest.mark.parametrize("power", [0, 1, 8])
def test_draws_are_those_of_the_twin(capacity: int, power: int) -> None:
    """With exact sums, the rounds are the documented ones, to the last random number."""
    weights = np.random.default_rng(capacity).integers(0, 9, capacity).astype(np.float64) ** power
    trees, twin = Trees(capacity, weights), twin_of(weights)
    before = trees.bytes()
    for n in (0, 1, capacity // 3, int(np.count_nonzero(weights))):
        rng, same = np.random.default_rng(n), np.random.default_rng(n)

        drawn, values = trees.sum.draw_distinct(n, rng)

        assert drawn.tolist() == twin.draw_distinct(n, same)
        assert values.tolist() == weights[drawn].tolist()
        assert rng.random() == same.random()
        assert trees.bytes() == before


@pytest.mark.parametrize("capacity", [2, 9, 70, 513, 5000])
def test_all_slots_with_a_weight(capacity: int, rng: np.random.Generator) -> None:
    """As many as have a weight are all of them, and the tree is as before, bit for bit."""
    weights = rng.random(capacity) * 10.0 ** rng.integers(-12, 12, capacity)
    weights *= rng.random(capacity) < 0.7
    weights[-1] = 1
    trees = Trees(capacity, weights)
    before = trees.bytes()
    there = np.flatnonzero(weights)

    drawn, values = trees.sum.draw_distinct(there.size, rng)

    np.testing.assert_array_equal(np.sort(drawn), there)
    np.testing.assert_array_equal(values, weights[drawn])
    assert trees.bytes() == before


@pytest.mark.parametrize("place", [0, 40, 99])
def test_a_dominant_weight_does_not_hide_the_others(place: int) -> None:
    """1e300 among 1e-300 comes first; then the others, all alike."""
    weights = np.full(100, 1e-300)
    weights[place] = 1e300
    trees = Trees(100, weights)
    before = trees.bytes()
    rng = np.random.default_rng(place)
    drawn = np.array([trees.sum.draw_distinct(5, rng)[0] for _ in range(5000)])

    assert (drawn[:, 0] == place).all()
    for column in drawn[:, 1:].T:
        assert chi_square_excess(np.bincount(column, minlength=100), weights % 1e300) < 1
    assert trees.bytes() == before


def test_weights_that_each_dwarf_the_next() -> None:
    """Where every round finds one slot or two, there are as many rounds, not more."""
    weights = 10.0 ** np.arange(300, -320, -20)
    trees = Trees(weights.size, weights)
    before = trees.bytes()
    drawn, _ = trees.sum.draw_distinct(weights.size, np.random.default_rng(1))
    assert drawn.tolist() == list(range(weights.size))
    assert trees.bytes() == before


@pytest.mark.parametrize("capacity", [8, 70, 4097])
@pytest.mark.parametrize("there", [0, 1, 5])
def test_too_few_weights(capacity: int, there: int, rng: np.random.Generator) -> None:
    """Fewer weights than draws are refused at once: the tree and the generator are untouched."""
    weights = np.zeros(capacity)
    weights[rng.choice(capacity, there, replace=False)] = 5e-324
    trees = Trees(capacity, weights)
    before = trees.bytes()
    generator, same = np.random.default_rng(1), np.random.default_rng(1)
    for n in (there + 1, capacity, capacity + 1, 10**6):
        if n > there:
            words = f"cannot draw {n} distinct slots: {there} have a weight"
            with pytest.raises(NotEnoughDataError, match=words):
                trees.sum.draw_distinct(n, generator)
    assert generator.random() == same.random()
    assert trees.bytes() == before
    assert (
        sorted(trees.sum.draw_distinct(there, rng)[0].tolist()) == np.flatnonzero(weights).tolist()
    )


def test_bad_numbers() -> None:
    """What is no number of slots is refused."""
    tree = Trees(10, range(10)).sum
    with pytest.raises(ValueError, match="n: expected 0 or more, got -1"):
        tree.draw_distinct(-1, np.random.default_rng())
    half: Any = 2.5
    with pytest.raises(TypeError, match="integer"):
        tree.draw_distinct(half, np.random.default_rng())


@pytest.mark.parametrize("content", [np.nan, np.inf, -1.0, 0.0, "random"])
def test_memory_with_other_content_is_harmless(content: Any, rng: np.random.Generator) -> None:
    """Whatever stands in the nodes, a draw ends, with slots or an exception."""
    trees = Trees(70)
    for _ in range(20):
        trees.nodes[:] = rng.normal(size=trees.nodes.size) if content == "random" else content
        trees.nodes[-1] = 9
        for n in (1, 20, 70):
            try:
                drawn = trees.sum.draw_distinct(n, rng)[0]
            except NotEnoughDataError:
                continue
            assert len(set(drawn.tolist())) == n
            assert drawn.min() >= 0
            assert drawn.max() < 70


def test_nodes_that_contradict_the_leaves_do_not_trap_a_draw() -> None:
    """Where every search ends at a leaf of zero, the draw gives up."""
    trees = Trees(70, [1, 1])
    trees.nodes[[73, 88, 96]] = 1e9  # above leaves 8 to 15, which are zero
    with pytest.raises(NotEnoughDataError):
        trees.sum.draw_distinct(2, np.random.default_rng(1))
    assert trees.nodes[:8].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("what", ["total", "least", "weights"])
def test_other_threads_never_see_a_draw_under_way(what: str) -> None:
    """A draw of thousands, which puts weights aside, is one step for other threads."""
    capacity = 2**15
    trees = Trees(capacity, np.ones(capacity))
    trees.sum.set(np.arange(2), floats([0.5, 1.5]))
    few = np.arange(1000, capacity, 1000)
    looks: dict[str, Callable[[], bool]] = {
        "total": lambda: trees.sum.total == capacity,
        "least": lambda: trees.min.min == 0.5,
        "weights": lambda: bool((trees.sum.get(few) == 1).all()),
    }
    seen: list[bool] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(looks[what]())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for seed in range(20):
            trees.sum.draw_distinct(capacity, np.random.default_rng(seed))
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)

    assert len(seen) > 20
    assert all(seen)


def test_the_example_is_right() -> None:
    """What the docstring shows is what happens."""
    text = SumTree.draw_distinct.__doc__
    assert text is not None
    example = doctest.DocTestParser().get_doctest(text, {}, "draw_distinct", None, None)
    runner = doctest.DocTestRunner()
    assert example.examples
    assert runner.run(example).failed == 0


def test_golden_values() -> None:
    """The slots of a draw are the same on every platform."""
    tree = SumTree(np.zeros(tree_size(100)), 100)
    tree.set_range(0, np.sqrt(np.arange(100.0)) / 3)
    drawn = tree.draw_distinct(20, np.random.default_rng(12))[0]
    assert drawn.tolist() == GOLDEN


GOLDEN = [40, 96, 33, 32, 49, 37, 76, 24, 92, 90, 2, 66, 22, 56, 59, 60, 95, 75, 97, 93]
