"""The same work done by other libraries, each called as its own documentation does."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from cases import ADD, Group, filled, random_steps
from floor import ENV_DICT
from measure import Effort, Row, Work, interleave, statement

__all__ = ["PEERS", "cpprb", "stable_baselines3"]

BATCH = 256


def cpprb(effort: Effort, library: Path) -> Iterator[Row]:
    """Its ``ReplayBuffer`` with the same fields and dtypes."""
    del library
    own_env_dict = {name: dict(spec) for name, spec in ENV_DICT.items()}  # it writes into them
    theirs = import_module("cpprb").ReplayBuffer(effort.rows, own_env_dict)
    theirs.add(**random_steps(effort.rows))
    row = {name: column[0] for name, column in random_steps(1).items()}
    yield from _compare(
        effort,
        "cpprb",
        statement(ADD, target=theirs, **row),
        theirs,
        (100, 10),
    )


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


PEERS: dict[str, Group] = {"cpprb": cpprb, "stable_baselines3": stable_baselines3}
