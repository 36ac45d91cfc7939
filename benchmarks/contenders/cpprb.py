"""cpprb: its buffers with the same fields and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
from contender import MEASURED_SMALL, Cannot, Contender, Shelf
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from data import (
    ALPHA,
    BETA,
    EPS,
    GAME,
    GAMMA,
    KINDS,
    Batch,
    CycleInputs,
    filling,
    game,
    one_step,
    random_steps,
    taking_turns,
    trajectory,
)
from loop import loop_cases
from measure import Work, statement

from .common import first_batch, importing, nbytes_of_row, saving_and_loading

__all__ = ["theirs"]

ADD = "rb.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)"
BATCH = 256
DRAW = f"batch = rb.sample({BATCH}, beta={BETA})"

theirs = Contender(
    "cpprb",
    "Its buffers with the same fields and dtypes; many steps go into one call of add, as its "
    "documentation advises. Batches are NumPy arrays.",
)
theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("record", "it leaves to the program which observation came before a step")
theirs.cannot("tree_find tree_set tree_set_both", "its trees are inside its compiled module")
theirs.cannot("sequences frame_sequences", "it draws single steps")
theirs.cannot("sample_tensors", "its batches are NumPy arrays")
shelf = Shelf()


def env_dict(kind: str) -> dict[str, dict[str, Any]]:
    """The fields of such steps; a number has one axis of length 1, as it has no other."""
    fields = KINDS[kind].fields.items()
    return {
        name: {"shape": shape or 1, "dtype": np.dtype(dtype)} for name, (shape, dtype) in fields
    }


def fill(rb: Any, chunk: Batch, **options: Any) -> Any:
    """Add these steps, an episode of their own, until the ring is full."""
    while rb.get_stored_size() < rb.get_buffer_size():
        rb.add(**chunk, **options)
        rb.on_episode_end()
    return rb


def filled(kind: str, rows: int) -> Any:
    """A full buffer."""
    chunk = filling(rows, kind)
    return fill(ReplayBuffer(rows, env_dict(kind)), chunk)


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add`` of a step."""
    return statement(ADD, rb=shelf.get(filled, kind, rows), **one_step(kind))


@theirs.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """``add`` of several steps."""
    return statement(ADD, rb=shelf.get(filled, kind, rows), **random_steps(n, kind))


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``add`` of several steps: it knows of no environments, and rows of one lie apart."""
    return add_many(kind, rows, envs)


@theirs.does("sample")
def sample(kind: str, rows: int, n: int) -> Work:
    """``sample``."""
    return statement(f"batch = rb.sample({n})", rb=shelf.get(filled, kind, rows))


def prioritized(rows: int) -> tuple[Any, CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(rows, env_dict("small"), alpha=ALPHA, eps=EPS)
    return fill(rb, random_steps(rows), priorities=inputs.first), inputs


@theirs.does("prioritized_add")
def prioritized_add(rows: int) -> Work:
    """New steps get the greatest priority."""
    return statement(ADD, rb=shelf.get(prioritized, rows)[0], **one_step("small"))


@theirs.does("prioritized_draw")
def prioritized_draw(rows: int) -> Work:
    """``sample`` with importance weights, of trees that are up to date."""
    return statement(DRAW, rb=shelf.get(prioritized, rows)[0])


@theirs.does("prioritized_update")
def prioritized_update(rows: int) -> Work:
    """``update_priorities`` writes leaves alone: what is above them is left to the next draw."""
    rb, inputs = shelf.get(prioritized, rows)
    drawn = np.array([rb.sample(BATCH, beta=BETA)["indexes"] for _ in inputs.fresh])
    return statement(
        "indexes, priorities = fresh()\nrb.update_priorities(indexes, priorities)",
        rb=rb,
        fresh=taking_turns(drawn, inputs.fresh),
    )


@theirs.does("prioritized_cycle")
def prioritized_cycle(rows: int) -> Work:
    """A batch, and new priorities for its steps."""
    rb, inputs = shelf.get(prioritized, rows)
    return statement(
        f"{DRAW}\nrb.update_priorities(batch['indexes'], fresh())",
        rb=rb,
        fresh=taking_turns(inputs.fresh),
    )


def summing(rows: int) -> Any:
    """A full buffer of three-step sums; all in one call, as it changes the rewards it is given."""
    nstep = {"size": 3, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
    return fill(ReplayBuffer(rows, env_dict("small"), Nstep=nstep), random_steps(rows))


@theirs.does("nstep_add")
def nstep_add(rows: int) -> Work:
    """Rewards are summed when steps are added."""
    return statement(ADD, rb=shelf.get(summing, rows), **one_step("small"))


@theirs.does("nstep_sample")
def nstep_sample(rows: int) -> Work:
    """``sample`` of sums that are there."""
    return statement(f"batch = rb.sample({BATCH})", rb=shelf.get(summing, rows))


def compact(kind: str, rows: int) -> Any:
    """An empty buffer of which each row stores one observation, or one frame of it."""
    fields = env_dict(kind)
    del fields["next_obs"]
    stacks = {"stack_compress": "obs"} if kind == "images" else {}
    return ReplayBuffer(rows, fields, next_of="obs", **stacks)


def stacked(rows: int) -> Any:
    """A full buffer of stacks of which only frames are stored."""
    return fill(compact("images", rows), game(np.random.default_rng(0), min(GAME, rows)))


def stacks(rows: int, frames_first: bool) -> Any:
    """The full buffer of stacks. Raises Cannot if frames are to be the first axis."""
    if frames_first:
        raise Cannot("frames are the last axis of its stacks")
    return shelf.get(stacked, rows)


@theirs.does("stacked_add")
def stacked_add(rows: int, frames_first: bool) -> Work:
    """Stacks that slide, an episode again and again; it is told where episodes end."""
    rb = stacks(rows, frames_first)
    steps = game(np.random.default_rng(1))
    return statement(
        f"{', '.join(steps)} = fresh()\n{ADD}\nif done: rb.on_episode_end()",
        rb=rb,
        fresh=taking_turns(*steps.values()),
    )


@theirs.does("stacked_sample")
def stacked_sample(rows: int, frames_first: bool, n: int) -> Work:
    """Of a stack the frames lie one behind another, whatever the order of the axes."""
    return statement(f"batch = rb.sample({n})", rb=stacks(rows, frames_first))


@theirs.does("stacked_sample_contiguous")
def stacked_sample_contiguous(rows: int, frames_first: bool, n: int) -> Work:
    """``sample``, and then NumPy."""
    return statement(
        f"batch = rb.sample({n})\n"
        "for name in ('obs', 'next_obs'): batch[name] = contiguous(batch[name])",
        rb=stacks(rows, frames_first),
        contiguous=np.ascontiguousarray,
    )


@theirs.does("stacked_nbytes")
def stacked_nbytes(rows: int, frames_first: bool) -> float:
    """Memory in use: its arrays cannot be reached."""
    stacks(rows, frames_first)
    shelf.clear()
    return nbytes_of_row(lambda: stacked(rows), rows)


@theirs.does_all("save", "save_synchronised", "load")
def files(rows: int) -> tuple[Work, Work, Work]:
    """``save_transitions``, which always compresses, and ``load_transitions``."""
    rb = shelf.get(filled, "small", rows)
    return saving_and_loading(rb.save_transitions, rb.load_transitions)


@theirs.does("import_time")
def import_time() -> Work:
    """The package, and NumPy with it."""
    return importing("cpprb")


@theirs.does("first_batch_time")
def first_batch_time() -> Work:
    """The package, a buffer, a step and a batch."""
    return importing("cpprb", first_batch("cpprb"))


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows), rows)


@theirs.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """``next_of``, and ``stack_compress`` of images."""
    shelf.clear()
    steps = trajectory(min(GAME, rows), kind)
    return nbytes_of_row(lambda: fill(compact(kind, rows), steps), rows)


class Replay:
    """Its buffer as the training loop wants it."""

    def __init__(self, capacity: int) -> None:
        self.rb = ReplayBuffer(capacity, env_dict("small"))

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add``, and the end of an episode, as its documentation asks for."""
        self.rb.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)
        if done or truncated:
            self.rb.on_episode_end()

    def sample(self, n: int) -> Batch:
        """Numbers without their axis of length 1."""
        batch: Batch = self.rb.sample(n)
        for name in ("act", "rew", "done"):
            batch[name] = batch[name].reshape(-1)
        return batch


loop_cases(theirs, Replay)
