"""Infos of a recorder. ``InfoFields`` are values that it stores, such as masks of actions.

An info describes the observation that it came with. Not here: final observations (``gymnasium``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Flags

Values = dict[str, Any]


class InfoFields:
    """Reads fields from infos: ``keys`` maps the name of a field to its key of an info.

    ``now`` has the values that came with the present observations. ``nexts`` are the fields whose
    next values the buffer has. ``n_rows`` is the length of the leading axis, None without one.
    """

    def __init__(self, keys: Mapping[str, str], taken: Sequence[str], n_rows: int | None) -> None:
        for name in (*keys, *keys.values()):
            if not isinstance(name, str):
                raise TypeError(f"info_fields: expected names of fields and keys, got {name!r}")
        for name in keys:
            if not {name, f"next_{name}"}.isdisjoint(taken) or f"next_{name}" in keys:
                raise ValueError(
                    f"info_fields: {name!r} or 'next_{name}' is another field of the recorder"
                )
        self.keys, self._n_rows = dict(keys), n_rows
        self._all: Flags = np.ones(() if n_rows is None else n_rows, np.bool_)
        self.nexts: list[str] = []
        self.now: Values = {}

    def begin(self, info: object, chosen: Flags) -> Values:
        """The values of an info of ``reset`` for the chosen environments, else those of ``now``."""
        values = self._read(info, chosen)
        return self._merged(chosen, values, self.now) if self.now else values

    def step(self, info: Any, final: Flags) -> tuple[Values, Values]:
        """Values of an info of ``step``: those of its next observations, and those to act on.

        They differ for ``final`` environments, which have reset in this step.
        """
        after = self._read(info, self._all)
        if not final.any():
            return after, after
        if self._n_rows is None or isinstance(info, Mapping):
            ends = info.get("final_info", {})
        else:
            ends = [one.get("final_info") for one in info]
        return self._merged(final, self._read(ends, final, "final_info"), after), after

    def with_fields(self, extra: Values, following: Values) -> Values:
        """The further fields of a step, and those of infos that the buffer has."""
        values = self.now | {f"next_{name}": following[name] for name in self.nexts}
        twice = sorted(extra.keys() & values.keys())
        if twice:
            raise TypeError(f"fields {twice}: expected no values, as info_fields names them")
        return extra | self.as_given(values)

    def as_given(self, values: Values) -> Values:
        """Values as ``add`` takes them: Python objects of several environments are a list."""
        if self._n_rows is None:
            return values
        return {name: list(one) if one.dtype.hasobject else one for name, one in values.items()}

    def _read(self, info: Any, wanted: Flags, where: str = "info") -> Values:
        """Copies of the values in an info. Environments that are not ``wanted`` may lack theirs."""
        infos = [info] if self._n_rows is None else info
        if not isinstance(infos, Mapping):
            is_many = isinstance(infos, (list, tuple, np.ndarray))
            infos = [{} if one is None else one for one in infos] if is_many else []
            if len(infos) != wanted.size or not all(isinstance(one, Mapping) for one in infos):
                raise ValueError(f"{where}: expected a dict, got {type(info).__name__}")
        return {
            name: self._value(infos, name, key, wanted, where) for name, key in self.keys.items()
        }

    def _value(self, infos: Any, name: str, key: str, wanted: Flags, where: str) -> Any:
        if isinstance(infos, Mapping):
            lacking = wanted & ~np.asarray(infos.get(f"_{key}", key in infos), np.bool_)
        else:
            lacking = wanted & np.reshape([one.get(key) is None for one in infos], wanted.shape)
        if lacking.any():
            raise ValueError(
                f"field {name!r}: {where} has no {key!r} of environments "
                f"{np.flatnonzero(lacking).tolist()}; wrap the environment so that the value is a "
                "part of a Dict observation"
            )
        if self._n_rows is None:
            return copy.deepcopy(infos[0][key])
        if not isinstance(infos, Mapping):
            return np.fromiter((copy.deepcopy(one.get(key)) for one in infos), object, wanted.size)
        values = copy.deepcopy(np.asarray(infos[key]))
        if values.shape[:1] != wanted.shape:
            raise ValueError(
                f"field {name!r}: expected {wanted.size} values of {key!r} in {where}, one of each "
                f"environment, got shape {values.shape}"
            )
        return values

    def _merged(self, chosen: Flags, new: Values, old: Values) -> Values:
        """The new values of the chosen environments, and the old ones of the others."""
        if self._n_rows is None:
            return new if chosen else old
        return {
            name: _by_env(f"field {name!r}", chosen, values, old[name])
            for name, values in new.items()
        }


def copied(info: Any) -> Any:
    """A copy of an info, with copies of its dicts and arrays. Other values are the same objects."""
    if isinstance(info, Mapping):
        return {key: copied(value) for key, value in info.items()}
    return info.copy() if isinstance(info, np.ndarray) else info


def with_first(info: Mapping[str, Any], first: Mapping[str, Any], ended: Flags) -> Values:
    """The info of a vector step, with entries of the reset of the ``ended`` environments.

    Gymnasium names the environments that have an entry by the mask ``_key``. The others have 0 or
    None there. Without a mask the entry is of all environments, of which ``ended`` were reset.
    """
    merged = {**info, **first}
    for key in info.keys() & first.keys():
        old, new = info[key], first[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            merged[key] = with_first(old, new, ended)
        elif isinstance(old, np.ndarray) and np.shape(new)[:1] == ended.shape:
            is_mask = key[:1] == "_" and key[1:] in first
            present = first.get(f"_{key}", new if is_mask else ended)
            merged[key] = _by_env(f"info {key!r}", present, new, old)
    return merged


def _by_env(what: str, chosen: Flags, new: Any, old: Any) -> Any:
    """Arrays by environment: the new values of those chosen, and the old ones of the others."""
    if new.shape != old.shape:
        raise ValueError(
            f"{what}: expected shape {old.shape}, as of the values before, got {new.shape}"
        )
    return np.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
