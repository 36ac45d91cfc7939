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
        Whether actions are numbers, returned as strings. Otherwise they are vectors, returned as
        dicts.
    replay_buffer : ReplayBuffer
        Buffer whose states and actions are vectors or numbers. It has the fields ``mdp_id``,
        ``sequence_number`` and ``log_prob``.
    n_actions : int, optional
        Number of discrete actions, which are 0 to ``n_actions - 1``. By default the possible
        actions are the actions that occur.

    Returns
    -------
    pandas.DataFrame
        Columns ``ds, state_features, action, mdp_id, sequence_number, action_probability, reward,
        metrics``. With discrete actions also ``possible_actions_mask`` and ``possible_actions``,
        empty lists for terminal steps. Otherwise these two if they are fields of the buffer.

    Raises
    ------
    NotEnoughDataError, InputError, ImportError
        Nothing was ever added (``NotEnoughDataError``). A field is missing or has another shape, or
        an action is not among the ``n_actions`` (``InputError``). pandas is not installed.

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

    def rows(name: str, width: int | None = None) -> Any:
        """The values of a field: a vector for each step, or with ``width`` 1 a number."""
        values = getattr(batch, name).numpy()
        if values.ndim != 2 or width not in (None, values.shape[1]):
            kind = "vector" if width is None else "number"
            raise InputError(f"{name}: expected one {kind} for each step, got {values.shape}")
        return values if width is None else values[:, 0]

    def sparse(name: str) -> list[dict[int, float]]:
        return [dict(enumerate(row)) for row in rows(name).tolist()]

    reward, terminal = rows("reward", 1).tolist(), rows("terminal", 1).tolist()
    table: dict[str, Any] = {
        "ds": [DEFAULT_DS] * len(reward),
        "state_features": sparse("state"),
        "action": sparse("action"),
        "mdp_id": list(map(str, rows("mdp_id", 1).tolist())),
        "sequence_number": rows("sequence_number", 1).tolist(),
        "action_probability": np.exp(rows("log_prob", 1)).tolist(),
        "reward": reward,
        "metrics": [{"reward": amount} for amount in reward],
    }
    if is_discrete_action:
        chosen = rows("action", 1).tolist()
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
