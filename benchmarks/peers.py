"""The same work done by other libraries, each called as its own documentation does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from cases import ADD, Group, filled, random_steps
from floor import ENV_DICT
from measure import Effort, Row, Work, interleave, statement
from readings import (
    GAME,
    NSTEP,
    PAIRS,
    SEQUENCES,
    STACKED,
    STACKED_ENV_DICT,
    game,
    long_episodes,
    stacked_steps,
)
from weighted import (
    BATCH,
    BATCHES,
    WEIGHTING,
    CycleInputs,
    TreeInputs,
    our_cycle,
    our_tree,
    prioritized_steps,
    taking_turns,
)

__all__ = ["PEERS", "cpprb", "stable_baselines3", "tianshou", "torchrl"]


def cpprb(effort: Effort, library: Path) -> Iterator[Row]:
    """Its ``ReplayBuffer`` with the same fields and dtypes."""
    del library
    theirs = import_module("cpprb").ReplayBuffer(effort.rows, _copied(ENV_DICT))
    theirs.add(**random_steps(effort.rows))
    row = {name: column[0] for name, column in random_steps(1).items()}
    yield from _compare(
        effort,
        "cpprb",
        statement(ADD, target=theirs, **row),
        theirs,
        (100, 10),
    )
    del theirs
    inputs = CycleInputs(effort.leaves)
    theirs = import_module("cpprb").PrioritizedReplayBuffer(
        effort.leaves, _copied(ENV_DICT), alpha=WEIGHTING.alpha, eps=WEIGHTING.eps
    )
    theirs.add(priorities=inputs.first, **random_steps(effort.leaves))
    yield _compare_cycles(effort, "cpprb", inputs, our_cycle(theirs, inputs), 8)
    theirs = import_module("cpprb").ReplayBuffer(
        effort.rows, _copied(ENV_DICT), Nstep=NSTEP | {"rew": ["rew"], "next": ["next_obs"]}
    )
    theirs.add(**random_steps(effort.rows))  # it sums when steps are added
    yield _compare_nstep(effort, "cpprb", theirs)
    theirs = import_module("cpprb").ReplayBuffer(
        effort.image_pairs, _copied(STACKED_ENV_DICT), **STACKED
    )
    rng = np.random.default_rng(0)
    while theirs.get_stored_size() < effort.image_pairs:
        theirs.add(**game(rng, min(GAME, effort.image_pairs)))
        theirs.on_episode_end()
    yield _compare_stacks(effort, "cpprb", theirs)
    yield _compare_stacks(effort, "cpprb", theirs, contiguous=True)


def _copied(env_dict: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For cpprb, which writes into the dicts of fields."""
    return {name: dict(spec) for name, spec in env_dict.items()}


def stable_baselines3(effort: Effort, library: Path) -> Iterator[Row]:
    """Its ``ReplayBuffer`` on the CPU; batches are tensors, as its algorithms get them."""
    del library
    spaces = import_module("gymnasium.spaces")
    theirs = import_module("stable_baselines3.common.buffers").ReplayBuffer(
        effort.rows, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(4), device="cpu"
    )
    steps = random_steps(effort.rows)
    theirs.observations[:, 0], theirs.next_observations[:, 0] = steps["obs"], steps["next_obs"]
    theirs.full = True
    row = random_steps(1)
    add = statement(
        "target.add(obs, next_obs, action, reward, done, infos)",
        target=theirs,
        obs=row["obs"],
        next_obs=row["next_obs"],
        action=row["act"],
        reward=row["rew"],
        done=row["done"],
        infos=[{}],
    )
    yield from _compare(effort, "stable-baselines3", add, theirs, (20, None))
    theirs = import_module("stable_baselines3.common.buffers").NStepReplayBuffer(
        effort.rows,
        spaces.Box(-1, 1, (4,), np.float32),
        spaces.Discrete(4),
        device="cpu",
        n_steps=NSTEP["size"],
        gamma=NSTEP["gamma"],
    )
    theirs.observations[:, 0], theirs.next_observations[:, 0] = steps["obs"], steps["next_obs"]
    theirs.rewards[:, 0], theirs.dones[:, 0] = steps["rew"], steps["done"]
    theirs.full = True
    yield _compare_nstep(effort, "stable-baselines3", theirs)


def _compare(
    effort: Effort, who: str, add: Work, theirs: Any, budgets: tuple[float, float | None]
) -> Iterator[Row]:
    ours = filled(effort.rows)
    row = {name: column[0] for name, column in random_steps(1).items()}
    own, other = interleave(effort, statement(ADD, target=ours, **row), add)
    yield Row.faster(f"add 1 step, {who}", own, other, budgets[0])
    sample = f"batch = rb.sample({BATCH})"
    own, other = interleave(effort, statement(sample, rb=ours), statement(sample, rb=theirs))
    yield Row.faster(f"sample({BATCH}) of {effort.rows:.0e} rows, {who}", own, other, budgets[1])


def tianshou(effort: Effort, library: Path) -> Iterator[Row]:
    """Its ``PrioritizedReplayBuffer``, and its ``SegmentTree``, which Numba compiles.

    A search overwrites its targets there, so it gets a copy.
    """
    del library
    data = import_module("tianshou.data")
    inputs = CycleInputs(effort.leaves)
    theirs = data.PrioritizedReplayBuffer(effort.leaves, alpha=WEIGHTING.alpha, beta=WEIGHTING.beta)
    steps = random_steps(effort.leaves)
    columns = {
        "obs": steps["obs"],
        "act": steps["act"],
        "rew": steps["rew"],
        "terminated": steps["done"],
        "truncated": np.zeros_like(steps["done"]),
        "obs_next": steps["next_obs"],
    }
    theirs.add(data.Batch({name: column[0] for name, column in columns.items()}))
    for name, column in columns.items():  # one by one it would take minutes
        theirs._meta[name][:] = column
    theirs._size = effort.leaves
    theirs.update_weight(np.arange(effort.leaves), inputs.first)
    cycle = statement(
        f"batch, indexes = rb.sample({BATCH})\nrb.update_weight(indexes, fresh())",
        rb=theirs,
        fresh=taking_turns(inputs.fresh),
    )
    yield _compare_cycles(effort, "tianshou", inputs, cycle, 6)
    del theirs
    yield from _compare_trees(
        effort,
        "tianshou",
        data.SegmentTree,
        "tree[slots] = values",
        "tree.get_prefix_sum_idx(targets.copy())",
    )
    theirs = data.ReplayBuffer(
        effort.image_pairs, stack_num=4, ignore_obs_next=True, save_only_last_obs=True
    )
    rng = np.random.default_rng(0)
    while len(theirs) < effort.image_pairs:
        steps = game(rng, frames_first=True)
        steps |= {"terminated": steps.pop("done"), "truncated": np.zeros(GAME, np.bool_)}
        steps["obs_next"] = steps.pop("next_obs")
        for k in range(GAME):
            theirs.add(data.Batch({name: column[k] for name, column in steps.items()}))
    yield _compare_stacks(effort, "tianshou", theirs, frames_first=True)


def torchrl(effort: Effort, library: Path) -> Iterator[Row]:
    """Its segment trees in C++, by NumPy arrays: with tensors they take longer. Its sequences."""
    del library
    try:
        trees = import_module("torchrl._torchrl")
    except ImportError as error:  # built for another release of torch
        print(f"torchrl is left out: {error}", file=sys.stderr)
        return
    yield from _compare_trees(
        effort,
        "torchrl",
        trees.SumSegmentTreeFp64,
        "tree[slots] = values",
        "tree.scan_lower_bound(targets)",
        trees.MinSegmentTreeFp64,
    )
    yield _compare_sequences(effort)


def _compare_sequences(effort: Effort) -> Row:
    """Its ``SliceSampler``; it may remember where episodes end, as nothing is added meanwhile."""
    torch, data = import_module("torch"), import_module("torchrl.data")
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it writes to where the rows go
    n, length = SEQUENCES
    ours = long_episodes(effort.rows)
    steps = {name: torch.from_numpy(column) for name, column in ours.get_all_transitions().items()}
    theirs = data.ReplayBuffer(
        storage=data.LazyTensorStorage(effort.rows),
        sampler=data.SliceSampler(slice_len=length, end_key="done", cache_values=True),
        batch_size=n * length,
    )
    tensordict = import_module("tensordict").TensorDict(steps, [effort.rows])
    theirs.extend(tensordict)
    own, other = interleave(
        effort,
        statement(f"batch = rb.sample_sequences({n}, {length})", rb=ours),
        statement("batch = rb.sample()", rb=theirs),
    )
    return Row.faster(f"sequences of steps, {n} x {length}, torchrl", own, other)


def _compare_nstep(effort: Effort, who: str, theirs: Any) -> Row:
    sample = f"batch = rb.sample({BATCH})"
    ours = filled(effort.rows, NSTEP)
    own, other = interleave(effort, statement(sample, rb=ours), statement(sample, rb=theirs))
    return Row.faster(f"sample({BATCH}) of {effort.rows:.0e} rows, 3-step, {who}", own, other)


def _compare_stacks(
    effort: Effort, who: str, theirs: Any, *, frames_first: bool = False, contiguous: bool = False
) -> Row:
    """With ``contiguous``, the frames of a stack are to lie in memory in the order of its axes."""
    ours = stacked_steps(effort.image_pairs, frames_first=frames_first)
    sample = f"batch = rb.sample({PAIRS})"
    order = "frames first" if frames_first else "frames last"
    if contiguous:
        sample += "\nfor name in batch: batch[name] = np.ascontiguousarray(batch[name])"
        order += ", contiguous"
    own, other = interleave(
        effort, statement(sample, rb=ours, np=np), statement(sample, rb=theirs, np=np)
    )
    return Row.faster(f"sample({PAIRS}) of stacked pairs, {order}, {who}", own, other)


def _compare_cycles(
    effort: Effort, who: str, inputs: CycleInputs, cycle: Work, budget: float
) -> Row:
    own, other = interleave(effort, our_cycle(prioritized_steps(inputs), inputs), cycle)
    what = f"sample({BATCH}) and new priorities, {effort.leaves:.0e} rows, {who}"
    return Row.faster(what, own, other, budget)


def _compare_trees(
    effort: Effort,
    who: str,
    sum_tree: Callable[[int], Any],
    set_leaves: str,
    search: str,
    min_tree: Callable[[int], Any] | None = None,
) -> Iterator[Row]:
    for n in BATCHES:
        inputs = TreeInputs(effort.leaves, n)
        sums, least = sum_tree(effort.leaves), min_tree and min_tree(effort.leaves)
        everything = np.arange(effort.leaves)
        sums[everything] = inputs.weights
        ours = our_tree(inputs.weights)
        own, other = interleave(
            effort,
            statement("tree.find(fresh())", tree=ours, fresh=taking_turns(inputs.targets)),
            statement(
                f"targets = fresh()\n{search}", tree=sums, fresh=taking_turns(inputs.targets)
            ),
        )
        yield Row.faster(f"search for {n} in {effort.leaves:.0e} leaves, {who}", own, other, 2.5)
        own, other = interleave(
            effort,
            _setting("tree.set(slots, values)", inputs, tree=ours),
            _setting(set_leaves, inputs, tree=sums),
        )
        yield Row.faster(f"set {n} of {effort.leaves:.0e} leaves, {who}", own, other, 2.5)
        if least is None:
            continue
        least[everything] = inputs.weights
        own, other = interleave(
            effort,
            _setting(
                "tree.set(slots, values)", inputs, tree=our_tree(inputs.weights, with_minima=True)
            ),
            _setting(f"{set_leaves}; least[slots] = values", inputs, tree=sums, least=least),
        )
        what = f"set {n} of {effort.leaves:.0e} leaves, sums and least, {who}"
        yield Row.faster(what, own, other, 2.5)


def _setting(call: str, inputs: TreeInputs, **trees: Any) -> Work:
    fresh = taking_turns(inputs.slots, inputs.values)
    return statement(f"slots, values = fresh()\n{call}", fresh=fresh, **trees)


PEERS: dict[str, Group] = {
    "cpprb": cpprb,
    "stable_baselines3": stable_baselines3,
    "tianshou": tianshou,
    "torchrl": torchrl,
}
