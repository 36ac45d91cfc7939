"""This package and its floors: the bare tree of weights, and prioritized replay."""

from __future__ import annotations

from functools import partial
from typing import Any

from budgets import PLAIN
from contender import Contender
from data import ALPHA, BETA, EPS, CycleInputs, TreeInputs, one_step, random_steps
from floors import tree as in_c
from measure import Work, compiled, statement

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size

from .common import priority_cases, tree_cases
from .cpprb_calls import ADD, BATCH, DRAW, adding
from .uniform import env_dict, filled, floor, ours

Held = tuple[PrioritizedReplayBuffer, CycleInputs]

plain = Contender(PLAIN, "ReplayBuffer(rows, env_dict), without what the case is about.")


def our_tree(leaves: int, n: int, with_minima: bool = False) -> tuple[dict[str, Any], TreeInputs]:
    """A tree in memory like that of a buffer, and inputs of calls."""
    inputs = TreeInputs(leaves, n)
    tree = SumTree(allocate_floats(tree_size(leaves)), leaves)
    if with_minima:
        MinTree(allocate_floats(min_tree_size(leaves)), tree)
    tree.set_range(0, inputs.weights)
    return {"tree": tree}, inputs


def setting_in_c(with_minima: bool, leaves: int, n: int) -> Work:
    """The same in C."""
    inputs = TreeInputs(leaves, n)
    tree = in_c.TreeFloor(inputs.weights)
    return compiled(tree.set(inputs.slots, inputs.values, with_minima=with_minima))


def finding_in_c(leaves: int, n: int) -> Work:
    """The same in C."""
    inputs = TreeInputs(leaves, n)
    return compiled(in_c.TreeFloor(inputs.weights).find(inputs.targets))


def prioritized(rows: int) -> Held:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(rows, env_dict("small"), alpha=ALPHA, eps=EPS, seed=0)
    rb.add(priorities=inputs.first, **random_steps(rows))
    return rb, inputs


def adding_given(held: Held) -> Work:
    """``add`` of a step with its priority."""
    add = ADD.replace("(", "(priorities=priority, ")
    return statement(add, rb=held[0], priority=0.5, **one_step("small"))


def cycle_in_c(held: Held) -> Work:
    """A batch and new priorities over the same records, with a tree of its own."""
    rb, inputs = held
    batch = rb.sample(BATCH, beta=BETA)
    return compiled(in_c.cycle(rb, inputs.weights, batch, inputs.fresh))


tree_cases(ours, our_tree, tree_set="tree.set(slots, values)", tree_find="tree.find(targets)")
tree_cases(ours, partial(our_tree, with_minima=True), tree_set_both="tree.set(slots, values)")
floor.does("tree_set")(partial(setting_in_c, False))
floor.does("tree_set_both")(partial(setting_in_c, True))
floor.does("tree_find")(finding_in_c)
priority_cases(ours, prioritized, adding, DRAW, "batch['indexes']", "rb.update_priorities")
ours.works_on(prioritized, prioritized_add_given=adding_given)
floor.works_on(prioritized, prioritized_cycle=cycle_in_c)
plain.works_on(filled, prioritized_add=adding)
