"""The front for ReAgent's replay memory against ReAgent's rules, written plainly in NumPy.

It needs torch, so it is measured where a peer has it.
"""

from __future__ import annotations

import random
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from contender import Contender
from data import FRAME, TreeInputs
from measure import Work, statement

from cpprb_like.compat.reagent import ReplayBuffer, SumTree

from .originals import original, side_by_side
from .uniform import shelf
from .with_torch import ours

__all__ = ["PlainMemory", "PlainSumTree", "one_by_one"]

BATCH = 256
HORIZON = 3
EPISODE = 50
FIELDS = ("observation", "action", "reward", "terminal")
ADD = "rb.add(observation=observation, action=1, reward=1.0, terminal=False)"

one_by_one = Contender(
    "original, one by one",
    "The original's rule as a loop over the transitions of a batch, as ReAgent had it before 2020.",
)


class PlainMemory:
    """Slots that hold steps, and ReAgent's rule for a batch of transitions.

    It looks through all flags for the valid slots, draws from these, and puts each field together
    by an index of all slots of all stacks: whole batches at once, as ReAgent has it since 2020. As
    ``one_by_one`` it goes through a batch step by step, as Dopamine does and ReAgent did before.
    """

    def __init__(self, store: dict[str, Any], valid: Any, depth: int, horizon: int) -> None:
        self.store = store
        self.valid = valid
        self.capacity = len(valid)
        self.back = np.arange(1 - depth, 1)
        self.ahead = np.arange(horizon)
        self.powers = 0.99 ** np.arange(horizon)

    def draw(self, n: int) -> Any:
        """Slots of n transitions."""
        valid = np.flatnonzero(self.valid)
        return valid[np.random.randint(len(valid), size=n)]

    def stack(self, name: str, slots: Any) -> Any:
        """The stacks of a field that end at these slots."""
        values = self.store[name][(slots[:, np.newaxis] + self.back) % self.capacity]
        return np.moveaxis(values, 1, -1)

    def sample(self, n: int) -> dict[str, Any]:
        """A batch, all its transitions together."""
        slots = self.draw(n)
        window = (slots[:, np.newaxis] + self.ahead) % self.capacity
        ends = self.store["terminal"][window]
        ends[:, -1] = True
        steps = ends.argmax(axis=1) + 1
        following = (slots + steps) % self.capacity
        within = self.ahead < steps[:, np.newaxis]
        batch = {f"next_{name}": self.stack(name, following) for name in FIELDS[:3]}
        batch |= {name: self.stack(name, slots) for name in FIELDS[:2]}
        batch["reward"] = (self.store["reward"][window] * self.powers * within).sum(axis=1)
        batch["terminal"] = self.store["terminal"][(slots + steps - 1) % self.capacity]
        return batch | {"indices": slots, "step": steps}

    def sample_one_by_one(self, n: int) -> dict[str, Any]:
        """A batch, transition by transition."""
        slots = self.draw(n)
        batch = {
            f"{prefix}{name}": np.empty(
                (n, *self.store[name].shape[1:], len(self.back)), self.store[name].dtype
            )
            for prefix in ("", "next_")
            for name in FIELDS[:3]
        }
        batch["reward"] = np.empty(n, np.float32)
        batch["terminal"] = np.empty(n, np.bool_)
        batch["step"] = np.empty(n, np.int64)
        for place, slot in enumerate(slots):
            for name, value in self._transition(slot).items():
                batch[name][place] = value
        return batch | {"indices": slots}

    def _transition(self, slot: Any) -> dict[str, Any]:
        window = (slot + self.ahead) % self.capacity
        ends = self.store["terminal"][window]
        steps = int(ends.argmax()) + 1 if ends.any() else len(window)
        stacks = {"": (slot + self.back) % self.capacity}
        stacks["next_"] = (stacks[""] + steps) % self.capacity
        transition = {
            f"{prefix}{name}": np.moveaxis(self.store[name][stack], 0, -1)
            for prefix, stack in stacks.items()
            for name in FIELDS[:3]
        }
        transition["reward"] = self.store["reward"][window[:steps]] @ self.powers[:steps]
        return transition | {"terminal": self.store["terminal"][window[steps - 1]], "step": steps}


class PlainSumTree:
    """ReAgent's sum tree: a list of arrays, root first; one descent for each draw."""

    def __init__(self, priorities: Any) -> None:
        depth = (len(priorities) - 1).bit_length()
        self.nodes = [np.zeros(1 << level) for level in range(depth + 1)]
        self.nodes[-1][: len(priorities)] = priorities
        for level in range(depth, 0, -1):
            self.nodes[level - 1][:] = self.nodes[level].reshape(-1, 2).sum(axis=1)

    def set(self, slot: int, value: float) -> None:
        """Set a leaf, and add the change to all nodes above it."""
        change = value - self.nodes[-1][slot]
        for level in reversed(self.nodes):
            level[slot] += change
            slot //= 2

    def sample(self, query: float) -> int:
        """The leaf so far along the sum."""
        query *= self.nodes[0][0]
        node = 0
        for level in self.nodes[1:]:
            node *= 2
            left = level[node]
            if query >= left:
                query -= left
                node += 1
        return node

    def stratified_sample(self, n: int) -> list[int]:
        """A leaf from each of n equal parts."""
        bounds = np.linspace(0.0, 1.0, n + 1)
        queries = [random.uniform(bounds[i], bounds[i + 1]) for i in range(n)]
        return [self.sample(query) for query in queries]


class Trees(NamedTuple):
    """The front's tree and the plain one, of the same priorities; and changes to come."""

    front: SumTree
    plain: PlainSumTree
    inputs: TreeInputs


def trees(leaves: int) -> Trees:
    """Trees without a priority of 0."""
    inputs = TreeInputs(leaves, BATCH)
    front = SumTree(leaves)
    front.set_many(np.arange(leaves), inputs.weights)
    return Trees(front, PlainSumTree(inputs.weights), inputs)


@side_by_side("reagent_tree_draw", ours, original)
def tree_draw(place: int, leaves: int) -> Work:
    """A leaf from each of 256 parts of the sum."""
    draw = f"tree.stratified_sample({BATCH})"
    return statement(draw, tree=shelf.get(trees, leaves)[place])


@side_by_side("reagent_tree_set", ours, original)
def tree_set(place: int, leaves: int) -> Work:
    """A single leaf, another one at each call."""
    made = shelf.get(trees, leaves)
    slots, values = (column.ravel().tolist() for column in (made.inputs.slots, made.inputs.values))
    changes = cycle(list(zip(slots, values, strict=True)))
    return statement("tree.set(*change())", tree=made[place], change=changes.__next__)


def step(depth: int) -> dict[str, Any]:
    """Some numbers; of stacks, a frame."""
    observation = np.ones(8, np.float32) if depth == 1 else np.ones(FRAME, np.uint8)
    return {"observation": observation, "action": 1, "reward": 1.0}


def filled(depth: int, rows: int) -> tuple[ReplayBuffer, PlainMemory]:
    """The front, full; and the plain rule for what it holds."""
    rb = ReplayBuffer(
        stack_size=depth, replay_capacity=rows, batch_size=BATCH, update_horizon=HORIZON
    )
    added = 0
    while not rb.is_full():
        added += 1
        rb.add(**step(depth), terminal=added % EPISODE == 0)
    store = {name: column.numpy() for name, column in rb._store.items()}
    return rb, PlainMemory(store, rb._is_index_valid.numpy(), depth, HORIZON)


@side_by_side("reagent_sample", ours, original, one_by_one)
def reagent_sample(place: int, depth: int, rows: int, n: int) -> Work:
    """Ours in tensors, the others in arrays, which takes less."""
    front, plain = shelf.get(filled, depth, rows)
    sample = (front.sample_transition_batch, plain.sample, plain.sample_one_by_one)[place]
    return statement(f"batch = sample({n})", sample=sample)


@ours.does("reagent_add")
def reagent_add(depth: int, rows: int) -> Work:
    """One step of an episode that does not end."""
    rb, _ = shelf.get(filled, depth, rows)
    return statement(ADD, rb=rb, observation=step(depth)["observation"])
