"""This package and its floors: the bare tree of weights, and prioritized replay."""

from __future__ import annotations

import numpy as np
from budgets import PLAIN
from contender import Contender, Shelf
from data import (
    ALPHA,
    BETA,
    EPS,
    CycleInputs,
    TreeInputs,
    one_step,
    random_steps,
    taking_turns,
)
from floors import tree as in_c
from measure import Work, compiled, statement

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size

from .uniform import ADD, env_dict, filled, floor, ours, shelf

__all__ = ["plain"]

BATCH = 256
DRAW = f"batch = rb.sample({BATCH}, beta={BETA})"

plain = Contender(PLAIN, "ReplayBuffer(rows, env_dict), without what the case is about.")
trees = Shelf()


def our_tree(leaves: int, n: int, with_minima: bool) -> tuple[SumTree, TreeInputs]:
    """A tree in memory like that of a buffer, and what is done to it."""
    inputs = TreeInputs(leaves, n)
    tree = SumTree(allocate_floats(tree_size(leaves)), leaves)
    if with_minima:
        MinTree(allocate_floats(min_tree_size(leaves)), tree)
    tree.set_range(0, inputs.weights)
    return tree, inputs


def our_set(leaves: int, n: int, with_minima: bool) -> Work:
    """Random leaves, other ones with every call."""
    tree, inputs = trees.get(our_tree, leaves, n, with_minima)
    fresh = taking_turns(inputs.slots, inputs.values)
    return statement("slots, values = fresh()\ntree.set(slots, values)", tree=tree, fresh=fresh)


def floor_set(leaves: int, n: int, with_minima: bool) -> Work:
    """A tree in C."""
    inputs = TreeInputs(leaves, n)
    tree = in_c.TreeFloor(inputs.weights)
    return compiled(tree.set(inputs.slots, inputs.values, with_minima=with_minima))


@ours.does("tree_set")
def tree_set(leaves: int, n: int) -> Work:
    """``SumTree.set``."""
    return our_set(leaves, n, with_minima=False)


@floor.does("tree_set")
def tree_set_floor(leaves: int, n: int) -> Work:
    """Sums alone."""
    return floor_set(leaves, n, with_minima=False)


@ours.does("tree_set_both")
def tree_set_both(leaves: int, n: int) -> Work:
    """``SumTree.set`` with a ``MinTree`` above the same leaves."""
    return our_set(leaves, n, with_minima=True)


@floor.does("tree_set_both")
def tree_set_both_floor(leaves: int, n: int) -> Work:
    """Sums and least weights."""
    return floor_set(leaves, n, with_minima=True)


@ours.does("tree_find")
def tree_find(leaves: int, n: int) -> Work:
    """``SumTree.find`` of random targets, other ones with every call."""
    tree, inputs = trees.get(our_tree, leaves, n, False)
    return statement(
        "targets = fresh()\ntree.find(targets)", tree=tree, fresh=taking_turns(inputs.targets)
    )


@floor.does("tree_find")
def tree_find_floor(leaves: int, n: int) -> Work:
    """A tree in C."""
    inputs = TreeInputs(leaves, n)
    return compiled(in_c.TreeFloor(inputs.weights).find(inputs.targets))


def prioritized(rows: int) -> tuple[PrioritizedReplayBuffer, CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    trees.clear()
    inputs = CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(rows, env_dict("small"), alpha=ALPHA, eps=EPS, seed=0)
    rb.add(priorities=inputs.first, **random_steps(rows))
    return rb, inputs


@ours.does("prioritized_add")
def prioritized_add(rows: int) -> Work:
    """New steps get the greatest priority."""
    rb, _ = shelf.get(prioritized, rows)
    return statement(ADD, target=rb, **one_step("small"))


@plain.does("prioritized_add")
def prioritized_add_plain(rows: int) -> Work:
    """To a uniform buffer."""
    return statement(ADD, target=filled("small", rows), **one_step("small"))


@ours.does("prioritized_add_given")
def prioritized_add_given(rows: int) -> Work:
    """The step brings its priority."""
    rb, _ = shelf.get(prioritized, rows)
    add = ADD.replace("(", "(priorities=priority, ")
    return statement(add, target=rb, priority=0.5, **one_step("small"))


@ours.does("prioritized_draw")
def prioritized_draw(rows: int) -> Work:
    """``sample`` with importance weights, of a tree that is up to date."""
    return statement(DRAW, rb=shelf.get(prioritized, rows)[0])


@ours.does("prioritized_update")
def prioritized_update(rows: int) -> Work:
    """``update_priorities`` of the steps of many batches in turn."""
    rb, inputs = shelf.get(prioritized, rows)
    drawn = np.array([rb.sample(BATCH)["indexes"] for _ in inputs.fresh])
    return statement(
        "indexes, priorities = fresh()\nrb.update_priorities(indexes, priorities)",
        rb=rb,
        fresh=taking_turns(drawn, inputs.fresh),
    )


@ours.does("prioritized_cycle")
def prioritized_cycle(rows: int) -> Work:
    """A batch, and new priorities for its steps."""
    rb, inputs = shelf.get(prioritized, rows)
    return statement(
        f"{DRAW}\nrb.update_priorities(batch['indexes'], fresh())",
        rb=rb,
        fresh=taking_turns(inputs.fresh),
    )


@floor.does("prioritized_cycle")
def prioritized_cycle_floor(rows: int) -> Work:
    """The same over the same records, with a tree of its own."""
    rb, inputs = shelf.get(prioritized, rows)
    batch = rb.sample(BATCH, beta=BETA)
    return compiled(in_c.cycle(rb, inputs.weights, batch, inputs.fresh))
