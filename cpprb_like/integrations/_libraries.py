"""Shared parts of adapters: errors of missing packages, and detection of resets without an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array
from cpprb_like._fields.entries import check_counts, check_ranges, read_entries
from cpprb_like.buffers import ReplayBuffer


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """The error of a module whose package is missing. It names the extra that installs it."""
    return ImportError(f"{module} needs {package} (pip install 'cpprb_like[{extra}]'): {error}")


class Resets:
    """Finds environments that were reset although no step ended their episode.

    After such a reset, the observation of a step is not the next observation of the step before.
    Observations are compared byte for byte.
    """

    def __init__(self, n_envs: int) -> None:
        self._n_envs = n_envs
        self._last: dict[str, Array] = {}  # expected bytes of each environment, by field

    def remember(self, following: Mapping[str, Array]) -> None:
        """Store copies of the values that the next step should begin with, by its fields."""
        self._last = {name: self._bytes_of(value).copy() for name, value in following.items()}

    def find(self, step: Mapping[str, Array]) -> list[int]:
        """The environments in which a step does not begin with the remembered values."""
        changed = np.zeros(self._n_envs, np.bool_)
        for name, expected in self._last.items():
            if name in step:
                found = self._bytes_of(step[name])
                is_other = found.shape != expected.shape
                changed |= True if is_other else (found != expected).any(axis=1)
        found_envs: list[int] = np.flatnonzero(changed).tolist()
        return found_envs

    def _bytes_of(self, value: Array) -> Array:
        return np.ascontiguousarray(value).reshape(self._n_envs, -1).view(np.uint8)


def refuse_bad(buffer: ReplayBuffer, step: Mapping[str, Any]) -> None:
    """Raise the error that ``add`` would raise for a step, before its reset ends an episode.

    The step may lack fields. That items have room is not checked.
    """
    fields = [field for field in buffer.schema.declared if field.name in step]
    entries = {}
    for field in fields:
        if field.is_ragged:
            entries[field.name] = read_entries(field, step[field.name], buffer.n_envs)
        else:
            field.convert(step[field.name], buffer.n_envs)
    counts = check_counts(entries, buffer.schema.axes)
    for field in fields:
        if field.name in entries and field.counts in counts:
            check_ranges(field, entries[field.name], counts[field.counts])
