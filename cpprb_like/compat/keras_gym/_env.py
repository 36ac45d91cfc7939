"""Common parts of keras-gym's classes: errors, and the actions of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like import NotEnoughDataError
from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.field import Field
from cpprb_like.checkpoint import Checkpointed

MOST_IN_TABLE = 64  # one-hot actions that are computed once


class KerasGymError(Exception):
    """Base class of keras-gym's errors."""


class InsufficientCacheError(KerasGymError, NotEnoughDataError):
    """Error for too few stored steps."""


class EpisodeDoneError(KerasGymError):
    """Error for a step added after the end of an episode that is still in the cache."""


class InconsistentCacheInputError(KerasGymError):
    """Error that is never raised; the name is for ``except`` clauses of programs."""


class NumpyArrayCheckError(KerasGymError):
    """Error for an array with the wrong axes."""


class SpaceError(KerasGymError):
    """Error for a space of the wrong kind."""


class ActionSpaceError(SpaceError):
    """Error for an action space of the wrong kind."""


class ForEnv(Checkpointed):
    """Base class with the actions of an environment, whose action space is Discrete or a Box.

    Spaces of Gymnasium and gym are recognized by the name of their class. Other spaces are
    recognized by their attributes: ``n``, or ``shape`` and ``dtype``.
    """

    NOT_SAVED = ("env",)

    def __init__(self, env: Any) -> None:
        self.env = env
        space = env.action_space
        self.action_space_is_discrete = _is(space, "Discrete", "n")
        self.action_space_is_box = not self.action_space_is_discrete
        self._first = 0
        if self.action_space_is_discrete:
            n = as_int("env.action_space.n", space.n, 1)
            self.action_field = Field("a", np.dtype(np.float64), (n,))
            self._first = int(getattr(space, "start", 0))
            self._one_hots = np.eye(min(n, MOST_IN_TABLE), n)[:, np.newaxis]
        elif _is(space, "Box", "shape", "dtype"):
            self.action_field = Field("a", np.dtype(space.dtype), tuple(space.shape))
        else:
            raise ActionSpaceError(f"env.action_space: expected Discrete or Box, got {space!r}")

    @property
    def num_actions(self) -> int:
        """Number of actions; ``ActionSpaceError`` unless the space is Discrete."""
        if not self.action_space_is_discrete:
            raise ActionSpaceError(f"num_actions: {self.env.action_space!r} is not Discrete")
        return self.action_field.shape[0]

    @property
    def actions_ndim(self) -> int:
        """Number of axes of an action, at least 1; ``ActionSpaceError`` unless it is a Box."""
        if self.action_space_is_discrete:
            raise ActionSpaceError(f"actions_ndim: {self.env.action_space!r} is no Box")
        return len(self.action_field.shape) or 1

    def read_action(self, a: Any) -> Array:
        """An action as a row to store, with a leading axis of 1: one-hot if the space is Discrete.

        The array may be shared, so callers do not write to it.
        """
        if self.action_space_is_discrete:
            if isinstance(a, (int, np.integer)):
                return self._one_hot(int(a))
            try:
                given = np.asarray(a)
            except ValueError as error:  # a list of lists of several lengths
                raise ValueError(f"a: {error}") from None
            n = self.action_field.shape
            if given.ndim == 0 and given.dtype.kind in "iub":
                return self._one_hot(int(given))
            if given.shape != n:
                raise TypeError(
                    f"a: expected the number of an action, or an array of shape {n}, got {a!r}"
                )
        action = self.action_field.convert(a, 1)
        if len(action) != 1:
            raise ValueError(f"a: expected one action, got {len(action)}")
        return action

    def _one_hot(self, a: int) -> Array:
        n, place = self.num_actions, a - self._first
        if not 0 <= place < n:
            raise ValueError(f"a: expected {self._first} to {self._first + n - 1}, got {a}")
        if place < MOST_IN_TABLE:  # saves a third of the time of ``add``
            return self._one_hots[place]  # type: ignore[no-any-return]
        return np.eye(1, n, place)


def _is(space: Any, name: str, *attributes: str) -> bool:
    names = {kind.__name__ for kind in type(space).__mro__}
    if "Space" in names:
        return name in names
    return all(hasattr(space, attribute) for attribute in attributes)
