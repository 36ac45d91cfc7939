"""cpprb's ``HindsightReplayBuffer``: each step stored several times, with different goals.

For programs written for that class and its sizes. Not here: steps that are stored once and get
other goals when a batch is drawn (``views._hindsight``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_whole
from cpprb_like._fields.schema import read_env_dict
from cpprb_like.buffers import Batch, ReplayBuffer, create_buffer
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.schedules import Schedule
from cpprb_like.typing import FieldSpec, PrioritizedOptions
from cpprb_like.views._hindsight import (
    Strategy,
    alike,
    check_callable,
    column_of,
    finite_column,
    is_goal,
    kind,
    read_field,
    read_strategy,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HindsightReplayBuffer(Checkpointed):
    """cpprb's buffer of episodes stored several times, with the agent's goal and with other goals.

    ``Hindsight`` does the same and stores every step once. New programs should use ``Hindsight``.

    Parameters
    ----------
    size : int
        Number of rows to store, copies included.
    env_dict : dict
        Fields of a step, as for ``ReplayBuffer``. The buffer adds ``rew``, shape ``(1,)`` and
        float32, and ``goal``, of the dtype of the state. Leave out other fields of the goal, such
        as ``next_goal`` or ``obs.desired_goal``, which would be wrong in the copies.
    max_episode_len : int
        Greatest number of steps in an episode.
    reward_func : callable
        ``reward_func(next_state, action, goal)`` returns the rewards of n steps, shape ``(n,)`` or
        ``(n, 1)``, from arrays of n rows.
    goal_func : callable, optional
        ``goal_func(next_state)`` returns the goals that n states reach. By default goals are
        states.
    goal_shape : int or tuple, optional
        Shape of a goal, by default the shape of the state.
    state, action, next_state : str
        Names of fields.
    strategy : {"future", "episode", "final", "random"}
        Source of the other goals. ``"future"`` takes next states of the same and later steps of the
        episode. ``"episode"`` takes next states of any step of the episode, and ``"final"`` of its
        last step. ``"random"`` takes next states of any row, earlier episodes included.
    additional_goals : int
        Number of copies of each step, at least 0. With ``"final"`` there is always one copy.
    prioritized : bool
        Draw by priority, as ``PrioritizedReplayBuffer`` does. Otherwise draw uniformly.
    **options
        Options of the buffer: ``alpha``, ``eps``, ``seed``, ``default_dtype``, ``next_of`` and so
        on. ``Nstep`` requires ``"final"``, whose copies have one goal throughout. ``n_envs`` must
        be 1.

    Notes
    -----
    The buffer stores copies as whole episodes, each in the order of time with its own end. One
    generator (``seed=``) draws goals and batches. A parameter of a wrong type or value raises
    ``TypeError`` or ``ValueError``, which names the parameter.

    Source: Andrychowicz et al. (2017), "Hindsight Experience Replay", algorithm 1.

    Examples
    --------
    >>> from cpprb_like import HindsightReplayBuffer
    >>> number = {"shape": ()}
    >>> fields = {"obs": {"shape": 2}, "act": number, "next_obs": {"shape": 2}, "done": number}
    >>> def reward(next_state, action, goal):
    ...     return (next_state == goal).all(axis=1) - 1.0
    >>> rb = HindsightReplayBuffer(1000, fields, 50, reward, additional_goals=4, seed=0)
    >>> for i in range(4):
    ...     rb.add(obs=[i, i], act=1, next_obs=[i + 1, i + 1], done=i == 3)
    >>> rb.get_stored_size()
    0
    >>> rb.on_episode_end(goal=[9, 9])
    >>> rb.get_stored_size()
    20
    >>> batch = rb.sample(32, beta=0.4)
    >>> batch["goal"].shape, batch["rew"].shape
    ((32, 2), (32, 1))
    """

    OF_ROWS = ("strategy", "max_episode_len", "additional_goals", "prioritized")

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, FieldSpec],
        max_episode_len: int,
        reward_func: Callable[[Array, Array, Array], ArrayLike],
        *,
        goal_func: Callable[[Array], ArrayLike] | None = None,
        goal_shape: int | tuple[int, ...] | None = None,
        state: str = "obs",
        action: str = "act",
        next_state: str = "next_obs",
        strategy: Strategy = "future",
        additional_goals: int = 4,
        prioritized: bool = True,
        **options: Unpack[PrioritizedOptions],
    ) -> None:
        read_env_dict(env_dict, None)
        taken = [name for name in ("rew", "goal") if name in env_dict]
        if taken:
            raise ValueError(f"env_dict: {taken} are added by HindsightReplayBuffer")
        stale = [name for name in env_dict if is_goal(name)]
        if stale:
            raise ValueError(
                f"env_dict: {stale} would keep the old goal in copies that have another one; leave "
                "them out, for the goal comes with on_episode_end(goal), as the field 'goal'"
            )
        if options.get("n_envs", 1) != 1:
            raise ValueError("n_envs: expected one environment; Hindsight works with many")
        self.strategy = read_strategy(strategy)
        if options.get("Nstep") is not None and strategy != "final":
            raise ValueError("Nstep: expected with strategy='final' only, for goals differ by step")
        check_callable("reward_func", reward_func)
        check_callable("goal_func", goal_func, optional=True)
        self.max_episode_len = as_whole("max_episode_len", max_episode_len, 1)
        wanted = as_whole("additional_goals", additional_goals, 0)
        self.additional_goals = 1 if self.strategy == "final" else wanted
        if state not in env_dict:
            raise ValueError(f"state: expected one of {list(env_dict)}, got {state!r}")
        goal: FieldSpec = {**env_dict[state]}
        if goal_shape is not None:
            goal["shape"] = goal_shape
        fields: dict[str, FieldSpec] = {**env_dict, "rew": {"dtype": np.float32}, "goal": goal}
        self.prioritized = bool(prioritized)
        self._rows = create_buffer(size, fields, prioritized=self.prioritized, **options)
        # The open episode is never sampled; its fixed seed leaves NumPy's global state alone.
        self._episode = ReplayBuffer(
            self.max_episode_len,
            env_dict,
            seed=0,
            default_dtype=options.get("default_dtype"),
            next_of=options.get("next_of"),
        )
        known = {field.name: field for field in self._episode.schema.fields}
        self._state = read_field("next_state", next_state, known)
        self._action = read_field("action", action, known)
        known = {field.name: field for field in self._rows.schema.fields}
        self._goal, self._reward = known["goal"], known["rew"]
        if goal_func is None and not alike(self._state, self._goal):
            raise ValueError(
                f"goal_func: expected one that makes goals, {kind(self._goal)}, of "
                f"{next_state!r}, {kind(self._state)}"
            )
        self.reward_func = reward_func
        self.goal_func = goal_func

    # ------------------------------------------------------------------ adding

    def add(self, **fields: Any) -> None:
        """Add one or several steps of the present episode, without reward and goal.

        Raises ``TypeError`` or ``ValueError`` as ``ReplayBuffer.add`` does. Raises ``ValueError``
        if the episode would be longer than ``max_episode_len``. Then nothing has changed.
        """
        before, n = len(self._episode), self._count(fields)
        if before + n > self.max_episode_len:
            raise ValueError(
                f"an episode has at most max_episode_len={self.max_episode_len} steps: there are "
                f"{before}, and {n} came; call on_episode_end(goal) at its end"
            )
        self._episode.add(**fields)

    def _count(self, fields: dict[str, Any]) -> int:
        """Number of steps in a call of ``add``."""
        schema = self._episode.schema
        field = schema.fields[0]
        value = fields.get(field.name)
        if isinstance(value, np.ndarray) and value.shape == field.shape:
            return 1  # converting the value would take longer than adding the step
        schema.check_names(fields)
        return len(field.convert(value, 1))

    def on_episode_end(self, goal: ArrayLike) -> None:
        """End the episode and store it, with the agent's goal and with other goals.

        Nothing happens if no step was added since the last end. Raises ``ValueError`` if ``goal``
        does not have the shape of a goal. The same holds if a function returns another shape than n
        rows, a value that its field cannot hold, or a reward that is not finite. Then nothing is
        stored, and the episode stays open.
        """
        n = len(self._episode)
        if n == 0:
            return
        own = self._goal.convert(goal, 1)
        if len(own) != 1:
            raise ValueError(f"goal: expected one of shape {self._goal.shape}, got {len(own)}")
        steps = self._episode.get_all_transitions()
        states = steps[self._state.name]
        copies = [np.repeat(own, n, axis=0)]
        for reached in self._others(states):
            values = reached if self.goal_func is None else self.goal_func(reached)
            copies.append(column_of("goal_func", values, n, self._goal))
        rewards = []
        for goals in copies:
            given = (values.copy() for values in (states, steps[self._action.name], goals))
            rewards.append(finite_column("reward_func", self.reward_func(*given), n, self._reward))
        for goals, values in zip(copies, rewards, strict=True):
            self._rows.add(**steps, goal=goals, rew=values)
            self._rows.on_episode_end()
        self._episode.clear()

    def _others(self, states: Array) -> Iterator[Array]:
        """Yield, for each copy of the episode, the states from which its goals are made."""
        n, rng = len(states), self._rows.rng
        step = np.arange(n)
        if self.strategy == "final":
            yield np.repeat(states[-1:], n, axis=0)
            return
        for _ in range(self.additional_goals):
            if self.strategy == "random":
                stored = len(self._rows)
                rows = rng.integers(0, stored + n, n)  # earlier rows, then rows of this episode
                reached = states[np.maximum(rows - stored, 0)]
                before = np.flatnonzero(rows < stored)
                slots = rows[before, np.newaxis]
                reached[before] = self._rows.stack(self._state.name, slots, axis=0)[:, 0]
                yield reached
            else:
                yield states[rng.integers(step if self.strategy == "future" else 0, n, n)]

    def clear(self) -> None:
        """Delete all rows and the open episode."""
        self._rows.clear()
        self._episode.clear()

    # ------------------------------------------------------------------ sampling

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        indexes: bool = False,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw rows, as ``PrioritizedReplayBuffer.sample`` or ``ReplayBuffer.sample`` does.

        Raises ``TypeError`` for ``beta`` if the buffer has no priorities.
        """
        return self._rows.sample(
            batch_size, beta, replace=replace, out=out, indexes=indexes, fields=fields
        )

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: ``prioritized`` of the constructor."""
        return self._rows.has_priorities

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """See ``ReplayBuffer.update_priorities``.

        Raises ``ValueError`` if the buffer has no priorities.
        """
        self._expect_priorities("update_priorities")
        self._rows.update_priorities(indexes, priorities)

    def get_max_priority(self) -> float:
        """See ``ReplayBuffer.get_max_priority``.

        Raises ``ValueError`` if the buffer has no priorities.
        """
        self._expect_priorities("get_max_priority")
        return self._rows.get_max_priority()

    def _expect_priorities(self, name: str) -> None:
        """Raise ``ValueError``, as cpprb does, if the buffer has no priorities."""
        if not self.has_priorities:
            raise ValueError(f"{name}: expected a buffer with prioritized=True, got {self!r}")

    def get_all_transitions(
        self, shuffle: bool = False, *, fields: str | Iterable[str] | None = None
    ) -> Batch:
        """All stored rows: see ``ReplayBuffer.get_all_transitions``."""
        return self._rows.get_all_transitions(shuffle, fields=fields)

    def get_stored_size(self) -> int:
        """Number of rows that can be drawn, without the rows of the open episode."""
        return len(self._rows)

    def get_buffer_size(self) -> int:
        """Number of rows that the buffer can store."""
        return self._rows.capacity

    def __len__(self) -> int:
        """Number of rows that can be drawn."""
        return len(self._rows)

    def __repr__(self) -> str:
        return (
            f"HindsightReplayBuffer(size={self._rows.capacity}, stored={len(self)}, "
            f"strategy={self.strategy!r}, additional_goals={self.additional_goals})"
        )
