"""What is measured of drawing by weight: the bare tree, and a training loop with priorities."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from cases import ADD, Group, filled, random_steps
from floor import ENV_DICT
from floor_tree import Floats, Indexes, Prioritized, TreeFloor
from measure import Effort, Row, Work, compiled, interleave, statement
from numpy.typing import NDArray

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like.storage import allocate_floats

__all__ = [
    "WEIGHTED",
    "CycleInputs",
    "TreeInputs",
    "our_cycle",
    "our_tree",
    "prioritized_steps",
    "taking_turns",
]

BATCH = 256
BATCHES = (32, 256, 1024)
TOUCHED = 1 << 16  # leaves that one round of inputs touches: more than the second cache holds
WEIGHTING = Prioritized()


class TreeInputs:
    """Weights for all leaves; and slots, weights and targets, a row for each call."""

    def __init__(self, leaves: int, n: int) -> None:
        rng = np.random.default_rng(n)
        sets = max(1, TOUCHED // n)
        self.weights: Floats = rng.random(leaves) + 0.01
        self.slots: Indexes = rng.integers(0, leaves, (sets, n), np.intp)
        self.values: Floats = rng.random((sets, n)) + 0.01
        self.targets: Floats = rng.random((sets, n)) * (self.weights.sum() * (1 - 1e-9))


def taking_turns(*inputs: NDArray[Any]) -> Any:
    """A function that returns the rows of an array, or of several in a tuple, one after another."""
    rows = list(inputs[0]) if len(inputs) == 1 else list(zip(*inputs, strict=True))
    return cycle(rows).__next__


def our_tree(weights: Floats, *, with_minima: bool = False) -> SumTree:
    """A tree with these weights, in memory like that of a buffer."""
    tree = SumTree(allocate_floats(tree_size(weights.size)), weights.size)
    if with_minima:
        MinTree(allocate_floats(min_tree_size(weights.size)), tree)
    tree.set_range(0, weights)
    return tree


def trees(effort: Effort, library: Path) -> Iterator[Row]:
    """The bare tree: setting and searching random leaves, which change with every call."""
    for n in BATCHES:
        inputs = TreeInputs(effort.leaves, n)
        floor = TreeFloor(library, inputs.weights)
        for what, with_minima in (("sums", False), ("sums and least", True)):
            tree = our_tree(inputs.weights, with_minima=with_minima)
            ours, in_c = interleave(
                effort,
                statement(
                    "tree.set(*fresh())", tree=tree, fresh=taking_turns(inputs.slots, inputs.values)
                ),
                compiled(floor.set(inputs.slots, inputs.values, with_minima=with_minima)),
            )
            yield Row.of(f"set {n} of {effort.leaves:.0e} leaves, {what}", ours, in_c)
        tree, floor = our_tree(inputs.weights), TreeFloor(library, inputs.weights)
        ours, in_c = interleave(
            effort,
            statement("tree.find(fresh())", tree=tree, fresh=taking_turns(inputs.targets)),
            compiled(floor.find(inputs.targets)),
        )
        yield Row.of(f"search for {n} in {effort.leaves:.0e} leaves", ours, in_c)


class CycleInputs:
    """Priorities for all rows, and those of the batches to come."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(1)
        self.first: Floats = rng.random(rows)
        self.fresh: Floats = rng.random((TOUCHED // BATCH, BATCH))

    @property
    def weights(self) -> Floats:
        """What the first priorities become."""
        weights: Floats = (self.first + WEIGHTING.eps) ** WEIGHTING.alpha
        return weights


def prioritized_steps(inputs: CycleInputs) -> PrioritizedReplayBuffer:
    """A full buffer of small steps with these priorities."""
    rows = inputs.first.size
    rb = PrioritizedReplayBuffer(rows, ENV_DICT, alpha=WEIGHTING.alpha, eps=WEIGHTING.eps, seed=0)
    rb.add(priorities=inputs.first, **random_steps(rows))
    return rb


def our_cycle(rb: PrioritizedReplayBuffer, inputs: CycleInputs) -> Work:
    """Draws a batch and gives its steps new priorities."""
    return statement(
        f"batch = rb.sample({BATCH}, beta={WEIGHTING.beta})\n"
        "rb.update_priorities(batch['indexes'], fresh())",
        rb=rb,
        fresh=taking_turns(inputs.fresh),
    )


def prioritized(effort: Effort, library: Path) -> Iterator[Row]:
    """The loop of a training program against C, and adding against a uniform buffer."""
    inputs = CycleInputs(effort.leaves)
    rb = prioritized_steps(inputs)
    batch = rb.sample(BATCH, beta=WEIGHTING.beta)
    ours, in_c = interleave(
        effort,
        our_cycle(rb, inputs),
        compiled(WEIGHTING.cycle(library, rb, inputs.weights, batch, inputs.fresh)),
    )
    what = f"sample({BATCH}) and update_priorities, {effort.leaves:.0e} rows"
    yield Row.of(what, ours, in_c, 2.0)
    uniform = filled(effort.leaves)
    row = {name: column[0] for name, column in random_steps(1).items()}
    with_priority = ADD.replace("(", "(priorities=priority, ")
    plain, ours, explicit = interleave(
        effort,
        statement(ADD, target=uniform, **row),
        statement(ADD, target=rb, **row),
        statement(with_priority, target=rb, priority=0.5, **row),
    )
    yield Row.of("add 1 step, prioritized, against uniform", ours, plain, 1.2)
    yield Row.of("add 1 step with its priority, against uniform", explicit, plain)


WEIGHTED: dict[str, Group] = {"trees": trees, "prioritized": prioritized}
