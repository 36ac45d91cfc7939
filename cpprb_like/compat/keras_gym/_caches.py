"""keras-gym's caches of an open episode, which make n-step transitions or returns of its steps."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_discount, as_whole
from cpprb_like.compat.keras_gym._env import EpisodeDoneError, ForEnv, InsufficientCacheError

Transitions = tuple[Array, Array, Array, Array, Array, Array]


class _Cache(ForEnv):
    """Steps of one episode, stored until ``pop`` removes them."""

    OF_ROWS: ClassVar[tuple[str, ...]] = ("gamma", "action_field")

    def __init__(self, env: Any, gamma: float) -> None:
        super().__init__(env)
        self.gamma = as_discount("gamma", gamma)
        self.reset()

    def reset(self) -> None:
        """Delete all steps."""
        self._steps: deque[tuple[Array, Array, float]] = deque()
        self._done = False

    def add(self, s: Any, a: Any, r: float, done: bool) -> None:
        """Add a step, as ``ExperienceReplayBuffer.add`` does; the state is copied.

        Raises ``EpisodeDoneError`` if the cache still holds steps of an episode that is done.
        Any error leaves the cache unchanged.
        """
        if self._done and self._steps:
            raise EpisodeDoneError(
                f"cannot add: the episode is done and {len(self)} of its steps are still held; "
                "flush or reset first"
            )
        try:
            reward = float(r)
        except (TypeError, ValueError) as error:
            raise type(error)(f"r: expected a number, got {r!r}") from None
        step, done = (np.array([s]), self.read_action(a).copy(), reward), bool(done)
        self._steps.append(step)
        self._done = done

    def pop(self) -> tuple[Array, ...]:
        """Remove a step, and return its transition or its return."""
        raise NotImplementedError

    def flush(self) -> tuple[Array, ...]:
        """Call ``pop`` until the cache is false, and return the results as one batch."""
        popped = [self.pop()]
        while self:
            popped.append(self.pop())
        return tuple(np.concatenate(arrays) for arrays in zip(*popped, strict=True))

    def __len__(self) -> int:
        """Number of stored steps."""
        return len(self._steps)


class NStepCache(_Cache):
    """keras-gym's cache that makes n-step transitions while an episode goes on.

    ``ExperienceReplayBuffer`` describes the parameters. ``len`` is the number of stored steps. The
    cache is true when a transition can be popped. Then it stores more than ``n`` steps, or the
    episode is done.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from cpprb_like.compat.keras_gym import NStepCache
    >>> cache = NStepCache(SimpleNamespace(action_space=SimpleNamespace(n=2)), n=2, gamma=0.5)
    >>> for s in range(4):
    ...     cache.add(s, a=0, r=1.0, done=s == 3)
    >>> S, A, Rn, In, S_next, A_next = cache.flush()
    >>> S.tolist(), Rn.tolist()
    ([0, 1, 2, 3], [1.5, 1.5, 1.5, 1.0])
    >>> In.tolist(), S_next.tolist()
    ([0.25, 0.25, 0.0, 0.0], [2, 3, 2, 3])
    """

    OF_ROWS = ("n", "gamma", "action_field")

    def __init__(self, env: Any, n: int, gamma: float) -> None:
        super().__init__(env, gamma)
        self.n = as_whole("n", n, 1)

    def pop(self) -> Transitions:
        """Remove the oldest transition and return its S, A, Rn, In, S_next, A_next.

        The arrays are as from ``ExperienceReplayBuffer.sample``, for one transition. Where the
        episode ended before there was a next state, In is 0, and the next state and action are S
        and A. Raises ``InsufficientCacheError`` if the cache is not true.
        """
        if not self:
            raise InsufficientCacheError(
                f"cannot pop: expected more than {self.n} steps or a done one, got {len(self)}"
            )
        reward = 0.0
        for k, (_, _, r) in zip(range(self.n), self._steps, strict=False):
            reward += self.gamma**k * r
        s, a, _ = self._steps.popleft()
        s_next, a_next, factor = s, a, 0.0
        if len(self._steps) >= self.n:
            s_next, a_next, _ = self._steps[self.n - 1]
            factor = self.gamma**self.n
        sums = np.array([reward]), np.array([factor])
        return s.copy(), a.copy(), *sums, s_next.copy(), a_next.copy()

    def __bool__(self) -> bool:
        return len(self) > (0 if self._done else self.n)


class MonteCarloCache(_Cache):
    """keras-gym's cache that gives the returns of an episode once it is done, last step first.

    ``ExperienceReplayBuffer`` describes the parameters. ``len`` is the number of stored steps. The
    cache is true when it stores steps and the episode is done.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from cpprb_like.compat.keras_gym import MonteCarloCache
    >>> cache = MonteCarloCache(SimpleNamespace(action_space=SimpleNamespace(n=2)), gamma=0.5)
    >>> for s in range(3):
    ...     cache.add(s, a=0, r=1.0, done=s == 2)
    >>> S, A, G = cache.flush()
    >>> S.tolist(), G.tolist()
    ([2, 1, 0], [1.0, 1.5, 1.75])
    """

    def reset(self) -> None:
        """Delete all steps."""
        super().reset()
        self._return = 0.0  # return of the step that was popped last, in this episode

    def pop(self) -> tuple[Array, Array, Array]:
        """Remove the newest step and return its S, A, G.

        G is the return, a float64: the discounted sum of the rewards from this step on.
        Raises ``InsufficientCacheError`` if the cache is not true.
        """
        if not self:
            raise InsufficientCacheError(
                f"cannot pop: expected an episode that is done, got {len(self)} steps"
            )
        s, a, r = self._steps.pop()
        returned = r + self.gamma * self._return
        self._return = returned if self._steps else 0.0
        return s, a, np.array([returned])

    def __bool__(self) -> bool:
        return len(self) > 0 and self._done
