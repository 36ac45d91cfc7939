"""Works by calls that this package and cpprb share, as both take the same names."""

from __future__ import annotations

from typing import Any

from data import BETA, one_step, random_steps
from measure import Work, statement

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
