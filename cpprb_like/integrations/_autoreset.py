"""Autoreset modes of an environment, and its final observations.

The modes are Gymnasium's: after an episode end the environment resets in the following step
(NEXT_STEP), in the same step (SAME_STEP), or only by a call of ``reset`` (DISABLED).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.vector import AutoresetMode

from cpprb_like._arguments.arrays import Flags

if TYPE_CHECKING:
    from cpprb_like.integrations._nests import Array, Tree


def mode_of(env: object, given: AutoresetMode | str | None) -> AutoresetMode:
    """The autoreset mode of an environment: ``given``, or else that of its metadata.

    Raises ``ValueError`` if a vector environment declares none, or an unknown one.
    """
    if given is not None:
        return _parsed(given)
    if not hasattr(env, "num_envs"):
        return AutoresetMode.DISABLED
    metadata = getattr(env, "metadata", None) or {}
    mode = metadata.get("autoreset_mode")
    base = getattr(env, "unwrapped", env)
    if getattr(base, "metadata", None) is metadata:
        # Vector environments of Gymnasium 1.1 share the metadata of their environments' class,
        # where the last one built leaves its mode. Their own attribute stays right.
        mode = getattr(base, "autoreset_mode", mode)
    if mode is None:
        raise ValueError(
            "the vector environment does not say how it resets: its metadata has no "
            "'autoreset_mode'; give autoreset_mode='NEXT_STEP', 'SAME_STEP' or 'DISABLED'"
        )
    return _parsed(mode)


def final_observations(
    info: object, ended: Flags, tree: Tree, n_rows: int | None
) -> dict[int, list[Array]]:
    """Return the final observations in ``info``, by environment and leaf of the space.

    ``info`` is a dict, or one dict for each environment. A vector environment holds them under
    ``final_obs``: as an array of objects, None where there is none, or batched like observations.
    """
    if n_rows is not None and isinstance(info, Mapping):
        values = info.get("final_obs")
        if values is None:
            return {}
        if not (isinstance(values, np.ndarray) and values.dtype == object):
            columns = list(tree.collect(values, "final_obs", n_rows))
            present = np.flatnonzero(info.get("_final_obs", ended)).tolist()
            return {env: [column[env, ...] for column in columns] for env in present}
    else:
        infos = [info] if n_rows is None else info
        if not isinstance(infos, (list, tuple)) or not all(isinstance(i, Mapping) for i in infos):
            raise ValueError(f"info: expected a dict, got {type(info).__name__}")
        values = [one.get("final_obs") for one in infos]
    if len(values) != ended.size:
        raise ValueError(f"info: expected {ended.size} environments, got {len(values)}")
    return {
        env: list(tree.collect(value, "final_obs", None))
        for env, value in enumerate(values)
        if value is not None
    }


def with_final(columns: list[Array], final: dict[int, list[Array]]) -> list[Array]:
    """Return batched observations, those of some environments replaced by their final ones."""
    replaced = []
    for number, column in enumerate(columns):
        parts = {env: leaves[number] for env, leaves in final.items()}
        column = column.astype(np.result_type(column, *parts.values()))
        for env, part in parts.items():
            column[env] = part[()]
        replaced.append(column)
    return replaced


def _parsed(mode: object) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if str(mode).replace("_", "").lower() == known.value.lower():
            return known
    names = [known.name for known in AutoresetMode]
    raise ValueError(f"autoreset_mode: expected one of {names}, got {mode!r}")
