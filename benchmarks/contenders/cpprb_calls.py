"""Works by calls that this package and cpprb share, as both take the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from contender import Contender
from data import BETA, CycleInputs, one_step, random_steps, taking_turns
from measure import Work, statement

__all__ = ["ADD", "BATCH", "adding", "adding_many", "drawing", "priority_cases"]

ADD = "rb.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)"
BATCH = 256
DRAW = f"batch = rb.sample({BATCH}, beta={BETA})"


def adding(rb: Any, kind: str = "small") -> Work:
    """``add`` of a step; its numbers are Python's, as in an agent."""
    return statement(ADD, rb=rb, **one_step(kind))


def adding_many(rb: Any, n: int, kind: str = "small") -> Work:
    """``add`` of several steps, or of one of each environment."""
    return statement(ADD, rb=rb, **random_steps(n, kind))


def drawing(rb: Any, n: int = BATCH) -> Work:
    """``sample``."""
    return statement(f"batch = rb.sample({n})", rb=rb)


def updating(held: tuple[Any, CycleInputs]) -> Work:
    """``update_priorities`` of the rows of many batches in turn."""
    rb, inputs = held
    drawn = np.array([rb.sample(BATCH, beta=BETA)["indexes"] for _ in inputs.fresh])
    return statement(
        "indexes, priorities = fresh()\nrb.update_priorities(indexes, priorities)",
        rb=rb,
        fresh=taking_turns(drawn, inputs.fresh),
    )


def drawing_and_updating(held: tuple[Any, CycleInputs]) -> Work:
    """A batch with importance-sampling weights, and new priorities for its rows."""
    return statement(
        f"{DRAW}\nrb.update_priorities(batch['indexes'], fresh())",
        rb=held[0],
        fresh=taking_turns(held[1].fresh),
    )


def priority_cases(
    contender: Contender, prioritized: Callable[[int], tuple[Any, CycleInputs]]
) -> None:
    """All operations on a full buffer with priorities."""
    contender.works_on(
        prioritized,
        prioritized_add=lambda held: adding(held[0]),
        prioritized_draw=lambda held: statement(DRAW, rb=held[0]),
        prioritized_update=updating,
        prioritized_cycle=drawing_and_updating,
    )
