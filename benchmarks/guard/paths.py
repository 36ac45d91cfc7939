"""The hot paths whose instructions are counted: what a training program calls at every step.

They are the works of our contender. Buffers are small, for a count does not depend on what is in a
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from contenders import any_length  # noqa: F401 (adds its operations to ``ours``)
from contenders.cpprb_calls import ADD
from contenders.readings import adding_stacks, stacked
from contenders.uniform import env_dict, numpy_step, ours
from contenders.weighted import prioritized
from data import BETA, GAME, GAMMA, Batch, game, random_steps
from items import GRAPHS, REASONING
from measure import Work, statement
from numpy.typing import NDArray

from cpprb_like import Hindsight, ReplayBuffer
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Prioritized, Sampler
from cpprb_like.typing import FieldSpec
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences
from guard.runner import SetUp, run

Column = NDArray[Any]

ROWS = 1 << 14
WEIGHTS = 1 << 16
STACKS = 100
BATCH = 256
SMALL = {"kind": "small", "rows": ROWS}
MOLECULES = {"kind": GRAPHS, "rows": 1000}
TREE = {"leaves": WEIGHTS, "n": BATCH}
GOALS: dict[str, FieldSpec] = {
    **{name: {"shape": 3} for name in ("achieved_goal", "next_achieved_goal", "desired_goal")},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": np.bool_},
}
EPISODE = 50  # steps
NO_REWARDS = np.zeros(BATCH)
TD_ERRORS = np.linspace(0.1, 1.0, BATCH)
UPDATE = "learner.update_priorities(batch['indexes'], td)"


def work(operation: str, **parameters: Any) -> SetUp:
    """An operation of our contender."""

    def set_up() -> Work:
        made = ours.prepare(operation, parameters)
        assert callable(made)
        return made

    return set_up


def add_and_draw() -> Work:
    """Adds to a prioritized buffer, and draws, for which the tree takes in the new rows."""
    rb, _ = prioritized(WEIGHTS)
    return statement(f"{ADD}\nbatch = rb.sample({BATCH}, beta={BETA})", rb=rb, **random_steps(64))


def shared(call: str, *, writers: int = 1, sampler: Sampler | None = None) -> Work:
    """Calls an actor of a full replay that processes share, or a learner, with a batch of it."""
    replay = SharedReplay(ROWS, env_dict("small"), writers=writers)
    for number in range(writers):
        actor = replay.actor(number)
        actor.add(**random_steps(ROWS // writers, "small"))
    learner = replay.learner(sampler, seed=0)
    batch = learner.sample(BATCH)
    step = numpy_step("small")
    return statement(call, rb=actor, learner=learner, batch=batch, td=TD_ERRORS, **step)


def add_stacks(*, frames_first: bool) -> Work:
    """Adds pairs of stacks, one by one."""
    steps = game(np.random.default_rng(1), STACKS, frames_first=frames_first)
    return adding_stacks(stacked(STACKS, frames_first), steps)


def no_reward(achieved: Column, goal: Column, rows: Mapping[str, Column]) -> Column:
    """A reward that takes next to nothing to compute."""
    del goal, rows
    return NO_REWARDS[: len(achieved)]


def goals() -> Batch:
    """Steps with goals."""
    positions = np.random.default_rng(0).random((ROWS, 3), np.float32)
    return {
        **dict.fromkeys(GOALS.keys() - {"rew", "done"}, positions),
        "rew": np.zeros(ROWS, np.float32),
        "done": np.arange(1, ROWS + 1) % EPISODE == 0,
    }


def long_episodes() -> Batch:
    """Small steps in episodes that are much longer than the sequences."""
    return random_steps(ROWS) | {"done": np.arange(1, ROWS + 1) % GAME == 0}


def view(
    layer: Layer,
    n: int = BATCH,
    *,
    shards: int,
    fields: Mapping[str, FieldSpec] = env_dict("small"),
    steps: Callable[[], Batch] = lambda: random_steps(ROWS),
) -> Work:
    """Draws from a view of a full buffer, or of a learner of this number of shards."""
    source: ReplayBuffer | Learner = ReplayBuffer(ROWS, fields, seed=0)
    writers: list[Any] = [source]
    if shards:
        replay = SharedReplay(ROWS, fields, writers=shards)
        writers = [replay.actor(number) for number in range(shards)]
        source = replay.learner(seed=0)
    parts = {name: np.array_split(column, len(writers)) for name, column in steps().items()}
    for number, writer in enumerate(writers):
        writer.add(**{name: columns[number] for name, columns in parts.items()})
    return statement(f"batch = view.sample({n})", view=source.view(layer), writers=writers)


# Draws from views: of a buffer with ``shards=0``, else of a learner.
VIEWS: dict[str, Callable[..., Work]] = {
    "3-step view: sample(256)": partial(view, NStep(3, GAMMA)),
    "frame stacks: sample(256)": partial(view, FrameStacks({"obs": 4})),
    "sequences, 64 x 80": partial(view, Sequences(80), 64, steps=long_episodes),
    "Hindsight: sample(256)": partial(view, Hindsight(no_reward), fields=GOALS, steps=goals),
}


PATHS: dict[str, SetUp] = {
    "add 1 step, Python scalars": work("add_one", **SMALL),
    "add 1 step, NumPy scalars": work("add_one_numpy", **SMALL),
    "add 1 step, float64 to convert": work("add_one_double", **SMALL),
    "add 64 steps": work("add_many", **SMALL, n=64),
    "add 1024 steps": work("add_many", **SMALL, n=1024),
    "add 1 step of 16 environments": work("add_envs", **SMALL, envs=16, n=16),
    "sample(0)": work("sample_none", **SMALL),
    "sample(32)": work("sample", **SMALL, n=32),
    "sample(256)": work("sample", **SMALL, n=256),
    "sample(16384)": work("sample", **SMALL, n=16384),
    "sample(256, replace=False)": work("sample_distinct", **SMALL, n=256),
    "sample(256, out=batch)": work("sample_into", **SMALL, n=256),
    "sample(256), 3-step": work("nstep_sample", rows=ROWS),
    "sample(32) of image pairs": work("sample", kind="images", rows=STACKS, n=32),
    "prioritized: add 1 step": work("prioritized_add", rows=WEIGHTS),
    "prioritized: add 1 step with its priority": work("prioritized_add_given", rows=WEIGHTS),
    "prioritized: sample(256)": work("prioritized_draw", rows=WEIGHTS),
    "prioritized: update_priorities(256)": work("prioritized_update", rows=WEIGHTS),
    "prioritized: add(64), sample(256)": add_and_draw,
    "tree: set 256 weights": work("tree_set_both", **TREE),
    "tree: search for 256": work("tree_find", **TREE),
    "stacked pairs, frames last: sample(32)": work(
        "stacked_sample", rows=STACKS, frames_first=False, n=32
    ),
    "stacked pairs, frames first: sample(32)": work(
        "stacked_sample", rows=STACKS, frames_first=True, n=32
    ),
    "stacked pairs, frames last: add 1 step": lambda: add_stacks(frames_first=False),
    "stacked pairs, frames first: add 1 step": lambda: add_stacks(frames_first=True),
    "add 1 graph": work("item_add_graph", **MOLECULES),
    "add 1 answer of 4,096 tokens": work("item_add_answer", kind=REASONING, rows=100, length=4096),
    "packed graphs: sample(256)": work("item_packed", **MOLECULES, n=BATCH),
    "padded graphs: sample(256)": work("item_padded", **MOLECULES, n=BATCH),
    **{name: partial(draw, shards=0) for name, draw in VIEWS.items()},
    "shared: add 1 step, NumPy scalars": lambda: shared(ADD),
    "shared: sample(256) of 4 shards": lambda: shared(f"learner.sample({BATCH})", writers=4),
    "shared, prioritized: sample(256) of 4 shards": lambda: shared(
        f"learner.sample({BATCH})", writers=4, sampler=Prioritized()
    ),
    "shared, prioritized: update_priorities(256) of 4 shards": lambda: shared(
        UPDATE, writers=4, sampler=Prioritized()
    ),
    **{f"shared, {name} of 4 shards": partial(draw, shards=4) for name, draw in VIEWS.items()},
}

# Draws from a learner of four shards, and the same draws from a buffer of as many rows.
PAIRS = {f"shared, {name} of 4 shards": name for name in VIEWS} | {
    "shared: sample(256) of 4 shards": "sample(256)"
}

if __name__ == "__main__":
    run(PATHS)
