"""ReAgent's module ``utils``: a buffer as a table of logged steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like.compat.reagent._buffer import ReplayBuffer
from cpprb_like.compat.reagent._elements import InputError, need

__all__ = ["DEFAULT_DS", "replay_buffer_to_pre_timeline_df"]

DEFAULT_DS = "2019-01-01"
LOGGED = ("mdp_id", "sequence_number", "log_prob")
POSSIBLE = ("possible_actions_mask", "possible_actions")


def replay_buffer_to_pre_timeline_df(
    is_discrete_action: bool, replay_buffer: ReplayBuffer, *, n_actions: int | None = None
) -> Any:
    """All transitions that can be drawn as a table, each once, in the order of their slots.

    Parameters
    ----------
    is_discrete_action : bool
        Actions are numbers, given out as texts; otherwise vectors, given out as dicts.
    replay_buffer : ReplayBuffer
        Its states and actions are vectors, or a number; it has the fields ``mdp_id``,
        ``sequence_number`` and ``log_prob``.
    n_actions : int, optional
        The possible discrete actions are 0 to ``n_actions - 1``; by default those that occur.

    Returns
    -------
    pandas.DataFrame
        Columns ``ds, state_features, action, mdp_id, sequence_number, action_probability, reward,
        metrics``; with discrete actions ``possible_actions_mask`` and ``possible_actions``, empty
        lists for terminal steps; otherwise these two if they are fields of the buffer.

    Raises
    ------
    NotEnoughDataError
        Nothing was ever added.
    InputError
        A field is missing, or of another shape; or an action is none of ``n_actions``.
    ImportError
        There is no pandas.

    Examples
    --------
    >>> from cpprb_like.compat.reagent import ReplayBuffer, replay_buffer_to_pre_timeline_df
    >>> rb = ReplayBuffer(replay_capacity=10)
    >>> for t in range(2):
    ...     rb.add(observation=[0.5], action=t, reward=1.0, terminal=t == 1,
    ...            mdp_id=7, sequence_number=t, log_prob=0.0)
    >>> table = replay_buffer_to_pre_timeline_df(True, rb)
    >>> table["action"].tolist(), table["possible_actions"].tolist()
    (['0', '1'], [['0', '1'], []])
    """
    pandas = need("pandas")
    batch = replay_buffer.sample_all_valid_transitions()
    missing = [name for name in LOGGED if name not in batch._fields]
    if missing:
        raise InputError(
            f"replay_buffer: expected the fields {list(LOGGED)}, {missing} are missing"
        )
    if isinstance(batch.reward, list):
        raise InputError("replay_buffer: expected one without return_as_timeline_format")
    n = len(batch.indices)
    actions = _rows("action", batch.action)
    terminal = _column("terminal", batch.terminal)
    reward = _column("reward", batch.reward)
    table: dict[str, Any] = {
        "ds": [DEFAULT_DS] * n,
        "state_features": list(map(_sparse, _rows("state", batch.state))),
        "action": list(map(_sparse, actions)),
        "mdp_id": list(map(str, _column("mdp_id", batch.mdp_id))),
        "sequence_number": _column("sequence_number", batch.sequence_number),
        "action_probability": np.exp(_column("log_prob", batch.log_prob)).tolist(),
        "reward": reward,
        "metrics": [{"reward": amount} for amount in reward],
    }
    if is_discrete_action:
        chosen = _column("action", batch.action)
        table["action"] = list(map(str, chosen))
        possible: Iterable[Any] = sorted(set(chosen))
        if n_actions is not None:
            possible = range(as_int("n_actions", n_actions, 1))
            other = [action for action in chosen if action not in possible]
            if other:
                raise InputError(f"n_actions: expected more than {other[0]}, got {n_actions}")
        names = list(map(str, possible))
        table["possible_actions_mask"] = [[] if end else [1] * len(names) for end in terminal]
        table["possible_actions"] = [[] if end else list(names) for end in terminal]
    else:
        table |= {name: getattr(batch, name).tolist() for name in POSSIBLE if hasattr(batch, name)}
    return pandas.DataFrame(table)


def _rows(name: str, values: Any) -> list[list[float]]:
    """A tensor of two dimensions as lists."""
    if values.ndim != 2:
        raise InputError(
            f"{name}: expected one vector for each step, got shape {tuple(values.shape)}"
        )
    rows: list[list[float]] = values.tolist()
    return rows


def _column(name: str, values: Any) -> list[Any]:
    """A tensor of shape (n, 1) as a list."""
    if values.ndim != 2 or values.shape[1] != 1:
        raise InputError(
            f"{name}: expected one number for each step, got shape {tuple(values.shape)}"
        )
    column: list[Any] = values[:, 0].tolist()
    return column


def _sparse(row: list[float]) -> dict[int, float]:
    return dict(enumerate(row))
