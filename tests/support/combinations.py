"""What goes with what: each sampler, each set of layers and each option, and the few that cannot.

The page docs/combinations.md is made of this, and tests/views/test_combinations.py tries each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from own_layers import ReturnsToGo

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.samplers import (
    LegacyUniform,
    Prioritized,
    PrioritySampler,
    RankBased,
    Recency,
    Reverse,
    Sampler,
    Uniform,
)
from cpprb_like.views import (
    Advantages,
    Among,
    FrameStacks,
    Hindsight,
    Layer,
    NStep,
    Offsets,
    Packed,
    Padded,
    Sequences,
)

__all__ = [
    "CHOSEN",
    "GAMMA",
    "OPTIONS",
    "SAMPLERS",
    "UNORDERED",
    "VIEWS",
    "Cell",
    "build",
    "reason",
    "reward",
]

Array = npt.NDArray[Any]
GAMMA = 0.5
CAPACITY = 60

CELL = {"shape": (), "dtype": "f8"}
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (2,), "dtype": "f4"},
    "rew": CELL,
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
    "achieved": CELL,
    "goal": CELL,
}
TOKENS = {"tokens": {"shape": ("T",), "dtype": "i4"}}  # of views with a layout of items
COMPRESSED = {"stacked": {"shape": (3, 2), "dtype": "f4"}}

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "Uniform": Uniform,
    "Prioritized": lambda: Prioritized(check_for_update=True),
    "RankBased": lambda: RankBased(check_for_update=True),
    "Recency": lambda: Recency(least=30),
    "Reverse": lambda: Reverse(3),
    "LegacyUniform": LegacyUniform,
}


def reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
    """Tells which step was asked for which goal."""
    found: Array = achieved * 1000.0 + goal + rows["id"] / 128
    return found


def reaches(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
    """Whether a step reaches its goal."""
    del rows
    found: Array = achieved == goal
    return found


N_STEP, RANDOM_STEPS = NStep(3, GAMMA, discount=True), NStep((1, 3), GAMMA, discount=True)
WITHIN, ACROSS = Sequences(4, burn_in=1), Sequences(5, across_episodes=True)
STRIDED = Sequences(3, stride=2, first_only="obs")
STACKS = FrameStacks({"obs": 3})
GOALS = Hindsight(
    reward,
    goal="goal",
    achieved="achieved",
    terminated_func=reaches,
    relabelled=True,
    relabel_ratio=0.7,
)


def is_chosen(rows: Mapping[str, Array]) -> Array:
    """The condition of the view of some rows."""
    found: Array = rows["id"] % 3 != 0
    return found


CHOSEN = Among(is_chosen, "id")
PADDED, PACKED = Padded(side="left", length=4), Packed(segments=True)
# Fields of which the next one goes on with the first one, and one that ends with the step.
WINDOWS = Offsets({"obs": (-2, 0), "next_obs": (-2, 0, 1), "goal": range(2)})
BLANK = Offsets({"obs": (1, -1), "next_obs": (-3, 0)}, padding="zeros")
CHUNKS = Offsets({"obs": (-1, 0, 2)})
GAINS = Advantages(GAMMA, 0.5, value="achieved")
RETURNS: Layer = ReturnsToGo(GAMMA, 4)  # a layer of the caller

VIEWS: dict[str, tuple[Layer, ...]] = {
    "rows": (),
    "NStep": (N_STEP,),
    "NStep, drawn n": (RANDOM_STEPS,),
    "Sequences": (WITHIN,),
    "Sequences, strided": (STRIDED,),
    "Sequences, across": (ACROSS,),
    "FrameStacks": (STACKS,),
    "Hindsight": (GOALS,),
    "Sequences + NStep": (WITHIN, N_STEP),
    "Sequences, across + NStep, drawn n": (RANDOM_STEPS, ACROSS),
    "FrameStacks + NStep": (N_STEP, STACKS),
    "FrameStacks + Sequences": (STACKS, WITHIN),
    "Hindsight + NStep": (GOALS, N_STEP),
    "Hindsight + Sequences": (WITHIN, GOALS),
    "Hindsight + Sequences, across": (ACROSS, GOALS),
    "Hindsight + FrameStacks": (STACKS, GOALS),
    "Hindsight + FrameStacks + Sequences": (WITHIN, GOALS, STACKS),
    "Hindsight + Sequences + NStep": (N_STEP, WITHIN, GOALS),
    "Hindsight + FrameStacks + NStep": (GOALS, STACKS, N_STEP),
    "FrameStacks + Sequences + NStep": (STRIDED, STACKS, N_STEP),
    "Among": (CHOSEN,),
    "Among + NStep": (CHOSEN, N_STEP),
    "Among + FrameStacks + Sequences": (STACKS, CHOSEN, WITHIN),
    "Padded": (PADDED,),
    "Padded + Hindsight + FrameStacks + Sequences": (PADDED, GOALS, STACKS, WITHIN),
    "Packed": (PACKED,),
    "Packed + NStep": (PACKED, N_STEP),
    "Packed + Sequences": (WITHIN, PACKED),
    "Packed + Among + Sequences, strided": (STRIDED, CHOSEN, PACKED),
    "Offsets": (WINDOWS,),
    "Offsets + NStep, drawn n": (WINDOWS, RANDOM_STEPS),
    "Offsets + Sequences, across + NStep": (ACROSS, BLANK, N_STEP),
    "Offsets + Among + Sequences": (WITHIN, WINDOWS, CHOSEN),
    "Offsets + Hindsight + Packed": (PACKED, CHUNKS, GOALS),
    "Advantages": (GAINS,),
    "Advantages + FrameStacks + NStep": (GAINS, STACKS, N_STEP),
    "Advantages + Offsets + Sequences": (GAINS, BLANK, WITHIN),
    "all four": (GOALS, STACKS, RANDOM_STEPS, ACROSS),
    "a layer of your own": (RETURNS,),
    "a layer of your own + Sequences": (WITHIN, RETURNS),
    "a layer of your own + Sequences, across + NStep, drawn n": (RANDOM_STEPS, RETURNS, ACROSS),
    "a layer of your own + FrameStacks + Sequences + NStep": (RETURNS, STRIDED, STACKS, N_STEP),
}

OPTIONS: dict[str, str] = {
    "sample": "`sample(n)`",
    "replace": "`sample(n, replace=False)`",
    "out": "`sample(n, out=...)`",
    "indexes": "`sample(n, indexes=True)`",
    "fields": "`sample(n, fields=...)`",
    "beta": "`sample(n, beta=...)`",
    "updates": "`update_priorities`",
    "batches": "`batches(n)`",
    "epoch": "`epoch(n)`",
    "n_envs": "several environments, `add_where`",
    "next_of": "`next_of`",
    "stack_compress": "`stack_compress`",
    "Nstep": "a buffer with `Nstep`",
    "Mixture": "`Mixture` of two",
    "shared": "a learner of a `SharedReplay`",
    "pickle": "pickled and copied",
}

NO_WEIGHTS = (
    "its draws do not depend on priorities: there is no `P(i)` that an importance-sampling weight "
    "`(N P(i)) ** -beta` could correct for, and none to update"
)
NOT_RANDOM = (
    "its rows follow from the stride, so a batch of them that comes round to a row again has no "
    "other row to draw in its place; the call works as long as none does"
)


NO_ORDER = (
    "the rows of several processes have no common order of age or rank, and a draw of its own is "
    "not known there: a `SharedReplay` draws with `Uniform` or `Prioritized`"
)


UNORDERED = ("RankBased", "Recency", "Reverse", "LegacyUniform")  # samplers that no learner takes


@dataclass(frozen=True)
class Cell:
    """One combination."""

    sampler: str
    view: str
    option: str


def reason(cell: Cell) -> str | None:
    """Why a cell is refused; None if it works."""
    by_priority = isinstance(SAMPLERS[cell.sampler](), PrioritySampler)
    if cell.option in ("beta", "updates") and not by_priority:
        return NO_WEIGHTS
    if cell.option == "replace" and cell.sampler == "Reverse":
        return NOT_RANDOM
    if cell.option == "shared" and cell.sampler in UNORDERED:
        return NO_ORDER
    return None


def has_items(cell: Cell) -> bool:
    """Whether the view of the cell says how values of any length look."""
    return any(layer.item_layout() is not None for layer in VIEWS[cell.view])


def build(cell: Cell, seed: int = 0) -> ReplayBuffer:
    """An empty buffer for the cell."""
    options: dict[str, Any] = {"seed": seed, "sampler": SAMPLERS[cell.sampler]()}
    fields = dict(FIELDS)
    if has_items(cell):
        fields |= TOKENS
        options["room"] = {"T": 4 * CAPACITY}
    if cell.option == "n_envs":
        options["n_envs"] = 2
    if cell.option == "next_of":
        options["next_of"] = ("obs", "achieved")
    else:
        fields |= {"next_obs": FIELDS["obs"], "next_achieved": CELL}
    if cell.option == "stack_compress":
        fields |= COMPRESSED
        options["stack_compress"] = {"stacked": 0}
    if cell.option == "Nstep":
        options["Nstep"] = {"size": 2, "gamma": GAMMA, "discount": True}
    kind: type[ReplayBuffer] = ReplayBuffer
    if isinstance(options["sampler"], PrioritySampler):
        kind = PrioritizedReplayBuffer
    return kind(CAPACITY, fields, **options)


def step(number: int, end: str | None, first: bool, stack: Array) -> dict[str, Any]:
    """A step: its ``id`` says which; ``stack`` is the one before, and is moved on."""
    del first
    obs = np.array([number, number / 2], np.float32)
    return {
        "id": number,
        "obs": obs,
        "rew": number / 8,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        "achieved": float(number % 7),
        "next_obs": np.array([number + 0.5, number / 2 + 0.25], np.float32),
        "next_achieved": float((number + 1) % 7),
        "goal": -1.0,
        "stacked": np.concatenate([stack[1:], obs[np.newaxis]]),
        "tokens": np.arange(number + 1, number + 1 + number % 5 % 4, dtype=np.int32),
    }
