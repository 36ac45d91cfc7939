"""The front for ReAgent's replay memory against ReAgent's rules, written plainly in NumPy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from cases import Group
from measure import Effort, Row, interleave, statement

__all__ = ["REAGENT", "PlainMemory", "PlainSumTree"]

BATCH = 256
STACKED_BATCH = 32
HORIZON = 3
EPISODE = 50
FRAME = (84, 84)
DEPTH = 4
FRAMES = 2000  # steps of frames, few of which are drawn from a cache
FIELDS = ("observation", "action", "reward", "terminal")


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

    def __init__(self, capacity: int) -> None:
        depth = (capacity - 1).bit_length()
        self.nodes = [np.zeros(1 << level) for level in range(depth + 1)]

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


def sum_tree(effort: Effort, library: Path) -> Iterator[Row]:
    """Draws from the tree alone, and changes of one priority."""
    del library
    from cpprb_like.compat.reagent import SumTree  # noqa: PLC0415 (its group only)

    ours, plain = SumTree(effort.leaves), PlainSumTree(effort.leaves)
    priorities = np.random.default_rng(0).random(effort.leaves)
    ours.set_many(np.arange(effort.leaves), priorities)
    plain.nodes[-1][: effort.leaves] = priorities
    for level in range(len(plain.nodes) - 1, 0, -1):
        plain.nodes[level - 1][:] = plain.nodes[level].reshape(-1, 2).sum(axis=1)
    draw, change = f"tree.stratified_sample({BATCH})", "tree.set(77, 0.5)"
    works = [statement(text, tree=tree) for text in (draw, change) for tree in (ours, plain)]
    ours_draw, plain_draw, ours_set, plain_set = interleave(effort, *works)
    what = f"ReAgent's SumTree of {effort.leaves:.0e}"
    yield Row.faster(f"{what}, stratified_sample({BATCH})", ours_draw, plain_draw, 30.0)
    yield Row.faster(f"{what}, set", ours_set, plain_set)


def transitions(effort: Effort, library: Path) -> Iterator[Row]:
    """Batches of small steps out of many, and of stacked frames; single steps that are added."""
    del library
    if not find_spec("torch"):
        return
    small = {"observation": np.ones(8, np.float32), "action": 1, "reward": 1.0}
    frames = {"observation": np.ones(FRAME, np.uint8), "action": 1, "reward": 1.0}
    pixels = min(FRAMES, effort.rows)
    for what, step, capacity, depth, n in (
        (f"of {effort.rows:.0e} steps", small, effort.rows, 1, BATCH),
        (f"of {DEPTH} frames", frames, pixels, DEPTH, STACKED_BATCH),
    ):
        ours = _filled(step, capacity, depth)
        store = {name: column.numpy() for name, column in ours._store.items()}
        plain = PlainMemory(store, ours._is_index_valid.numpy(), depth, HORIZON)
        batch, together, single = interleave(
            effort,
            statement(f"rb.sample_transition_batch({n})", rb=ours),
            statement(f"rb.sample({n})", rb=plain),
            statement(f"rb.sample_one_by_one({n})", rb=plain),
        )
        name = f"ReAgent's sample_transition_batch({n}) {what}"
        yield Row.faster(f"{name}, against whole batches in NumPy", batch, together)
        yield Row.faster(f"{name}, against a loop over them", batch, single, 5.0)
        text = "rb.add(observation=obs, action=1, reward=1.0, terminal=False)"
        (added,) = interleave(effort, statement(text, rb=ours, obs=step["observation"]))
        yield Row(f"ReAgent's add, {what}", added)


def _filled(step: dict[str, Any], capacity: int, depth: int) -> Any:
    """A full buffer."""
    from cpprb_like.compat.reagent import ReplayBuffer  # noqa: PLC0415 (its group only)

    rb = ReplayBuffer(
        stack_size=depth, replay_capacity=capacity, batch_size=BATCH, update_horizon=HORIZON
    )
    added = 0
    while not rb.is_full():
        added += 1
        rb.add(**step, terminal=added % EPISODE == 0)
    return rb


REAGENT: dict[str, Group] = {"reagent_tree": sum_tree, "reagent": transitions}
