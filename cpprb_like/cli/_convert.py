"""cpprb's files as a buffer: its fields are those of the file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import Transitions, describe_transitions

__all__ = ["read"]


def read(
    file: Path,
    size: int | None = None,
    *,
    nstep: int | None = None,
    gamma: float = 0.99,
    reward: str | None = None,
) -> tuple[ReplayBuffer, Transitions, list[str]]:
    """The rows of a file in a new buffer, what the file says, and warnings.

    Parameters
    ----------
    file : Path
        Of cpprb's ``save_transitions``.
    size : int, optional
        Of the buffer; as many as there are rows.
    nstep, gamma, reward
        The options of n-step returns, which no file says: steps, discount factor and the field of
        rewards. ``ValueError`` if the file needs them, or does not.
    """
    found = describe_transitions(file)
    if found.is_nstep and nstep is None:
        raise ValueError(
            f"{file}: its rows sum several steps, and no file says how many: give --nstep and "
            "--gamma of the buffer that it was saved from"
        )
    if not found.is_nstep and nstep is not None:
        raise ValueError(f"{file}: it was saved without Nstep, so --nstep is not for it")
    fields: dict[str, Any] = {
        name: {"shape": shape, "dtype": dtype} for name, (dtype, shape) in found.fields.items()
    }
    options: dict[str, Any] = {}
    if found.next_of:
        options["next_of"] = list(found.next_of)
    if nstep is not None:
        rewards = reward_field(list(fields), reward)
        if rewards is None:
            raise ValueError(f"{file}: which of {list(fields)} has the rewards? give --reward")
        following = [name for name in fields if name.startswith("next_")]
        options["Nstep"] = {"size": nstep, "gamma": gamma, "rew": rewards, "next": following}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        buffer = ReplayBuffer(max(1, found.rows) if size is None else size, fields, **options)
        buffer.load_transitions(file)
    return buffer, found, [str(warning.message) for warning in warned]


def reward_field(names: list[str], given: str | None) -> str | None:
    """The field of rewards: that which is given, or one that is called so, or None."""
    if given is not None:
        return given
    return next((name for name in ("rew", "reward", "rewards") if name in names), None)
