"""cpprb's training loop: steps of an environment are stored, and batches are handed to a policy.

``env.step`` may return the five values of Gymnasium, or the four of OpenAI's gym before 0.26. The
number of values decides, and neither package is imported. Not here: anything that learns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_whole
from cpprb_like._fields.schema import Schema
from cpprb_like.buffers import Batch, ReplayBuffer

Transition = dict[str, Any]
# Names of final observations in ``info`` of environments that reset within ``step``.
FINAL_NAMES = ("final_obs", "final_observation", "terminal_observation")
KNOWN = ("obs", "act", "rew", "next_obs", "terminated", "truncated", "done")


class Outcome:
    """Result of a step: values of its transition, or else values that ``env.step`` returned.

    So the agent acts on the observation that is stored, and its episode ends where the episode in
    the buffer ends.
    """

    def __init__(self, result: Any, transition: Transition, schema: Schema) -> None:
        self._result = result
        self._transition = transition
        self._schema = schema

    @cached_property
    def returned(self) -> tuple[Any, Any, bool, bool]:
        """Observation, reward, terminated and truncated of ``env.step``.

        An end among four values is a truncation if ``info["TimeLimit.truncated"]`` is true. Raises
        ``ValueError`` unless there are four or five values.
        """
        result = self._result
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            what = f"{len(result)} values" if isinstance(result, tuple) else repr(result)
            raise ValueError(f"env.step(): expected a tuple of 5 values, or 4, got {what}")
        is_end = any(np.any(flag) for flag in result[2:-1])
        if is_end and isinstance(result[-1], dict):
            self._refuse_final(result[-1])
        if len(result) == 5:
            return result[0], result[1], bool(result[2]), bool(result[3])
        obs, reward, done, info = result
        cut_off = bool(done) and isinstance(info, dict) and bool(info.get("TimeLimit.truncated"))
        return obs, reward, bool(done) and not cut_off, cut_off

    @staticmethod
    def _refuse_final(info: dict[str, Any]) -> None:
        """Raise ``ValueError`` if the environment has reset in the step that ended."""
        final = [name for name in FINAL_NAMES if info.get(name) is not None]
        if final:
            raise ValueError(
                f"env.step(): the episode ended and info has {final[0]}: the environment has reset "
                "within step, so its observation is the first one of the next episode. Pass the "
                "environment without its automatic reset; train calls env.reset()"
            )

    @property
    def obs(self) -> Any:
        """The observation after the step."""
        return self._transition["next_obs"] if "next_obs" in self._transition else self.returned[0]

    @property
    def reward(self) -> Any:
        """The reward of the step."""
        return self._transition["rew"] if "rew" in self._transition else self.returned[1]

    @property
    def is_over(self) -> bool:
        """Whether the episode is over. It may be truncated without a field of the transition."""
        schema, transition = self._schema, self._transition
        names = {schema.names[number] for number, *_ in schema.end_fields()} & transition.keys()
        if not names:
            return self.returned[2] or self.returned[3]
        if any(np.any(transition[name]) for name in names):
            return True
        result = self._result
        if not isinstance(result, tuple) or len(result) != 5:
            return False
        are_flags = all(isinstance(flag, (bool, np.bool_)) for flag in result[2:4])
        is_truncated = are_flags and isinstance(result[4], dict) and bool(result[3])
        return is_truncated and (schema.truncated or "truncated") not in names


def train(
    buffer: ReplayBuffer,
    env: Any,
    get_action: Callable[[Any, int, int, bool], Any],
    update_policy: Callable[[Batch, int, int], Any],
    *,
    max_steps: int = 1000000,
    max_episodes: int | None = None,
    batch_size: int = 64,
    n_warmups: int = 0,
    after_step: Callable[[Any, Any, Any, int, int], Transition] | None = None,
    done_check: Callable[[Transition], bool] | None = None,
    obs_update: Callable[[Transition], Any] | None = None,
    rew_sum: Callable[[float, Transition], float] | None = None,
    episode_callback: Callable[[int, int, float], Any] | None = None,
    logger: logging.Logger | None = None,
) -> None:
    """Train an agent: act in an environment, store the transitions, and learn from batches.

    Parameters
    ----------
    buffer : ReplayBuffer
        Buffer of one environment. If it has priorities, they are set to the results of
        ``update_policy``.
    env : gymnasium.Env or the like
        Environment with ``reset()`` and ``step(action)``, as in Gymnasium, or in gym before 0.26.
        A step of four values was truncated if ``info["TimeLimit.truncated"]`` is true. With
        ``after_step`` a step may have any form that this function reads.
    get_action, update_policy : callable
        ``get_action(obs, step, episode, is_warmup)`` returns an action, and
        ``update_policy(batch, step, episode)`` learns. If the buffer has priorities, the latter
        returns absolute errors of shape ``(batch_size,)``. Steps and episodes count from 0.
    max_steps, max_episodes : int
        Number of steps to take, and of episodes to play to their end. The first limit reached ends
        the training.
    batch_size, n_warmups : int
        Number of rows in a batch, and number of steps before the first update.
    after_step : callable, optional
        ``after_step(obs, action, result, step, episode)`` returns the fields of ``buffer.add``.
        ``result`` is the result of ``env.step``, and may be anything, as in cpprb. The loop goes on
        with the stored transition: the agent acts on its ``next_obs``, and its ``rew`` counts. The
        episode is over where it ends in the buffer. ``result`` is read where the transition lacks
        one of these values, and for a truncation of Gymnasium without a field in the transition. By
        default the transition has the buffer's fields among ``obs``, ``act``, ``rew``,
        ``next_obs``, ``terminated``, ``truncated`` and ``done``. ``done`` is the end of an episode
        if the buffer has ``terminated`` or ``truncated`` too. Otherwise ``done`` is the termination
        alone, because targets bootstrap after a truncation.
    done_check, obs_update : callable, optional
        ``done_check(transition)`` returns whether the episode is over. ``obs_update(transition)``
        returns the next observation to act on. By default both follow from the transition.
    rew_sum : callable, optional
        ``rew_sum(so_far, transition)`` returns the reward of the episode so far, initially 0. By
        default the sum of the rewards.
    episode_callback : callable, optional
        ``episode_callback(episode, step, reward)`` is called after each episode. It gets the number
        of the episode, the number of its last step, counted from 0 in the episode, and its reward
        from ``rew_sum``.
    logger : logging.Logger, optional
        Logger of each episode, at level INFO. By default ``cpprb_like.train``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value. Or the default transition has no value for a field of
        the buffer. Or the result of ``env.step`` cannot be read, or has a final observation in
        ``info`` because the environment has reset already. Or the buffer has priorities and
        ``update_policy`` returned None. Errors of the callables pass.

    Notes
    -----
    The buffer gets the end of each episode (``on_episode_end``). This includes an episode that is
    open when training begins or ends, also by an error, as the environment is reset in any case.
    There is no update while the buffer has no row to draw. Functions are called in cpprb's order.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.compat.cpprb import train
    >>> class Corridor:
    ...     def reset(self):
    ...         self.at = 0
    ...         return self.at, {}
    ...     def step(self, action):
    ...         self.at += action
    ...         return self.at, -1.0, self.at == 3, False, {}
    >>> fields = {name: {"shape": ()} for name in ("obs", "act", "rew", "next_obs", "terminated")}
    >>> rb = ReplayBuffer(100, fields)
    >>> train(
    ...     rb,
    ...     Corridor(),
    ...     lambda obs, step, episode, is_warmup: 1,
    ...     lambda batch, step, episode: None,
    ...     max_episodes=2,
    ...     episode_callback=lambda episode, step, reward: print(episode, step, reward),
    ... )
    0 2 -3.0
    1 2 -3.0
    >>> rb.get_all_transitions()["obs"].tolist()
    [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    """
    max_steps = as_whole("max_steps", max_steps, 0)
    most_episodes = None if max_episodes is None else as_whole("max_episodes", max_episodes, 1)
    batch_size = as_whole("batch_size", batch_size, 1)
    n_warmups = as_whole("n_warmups", n_warmups, 0)
    if getattr(env, "buffer", None) is buffer:
        raise ValueError(
            "env: expected the environment itself; this one records into the buffer, so that each "
            "step would be stored twice"
        )
    if buffer.n_envs != 1:
        raise ValueError(f"buffer: expected one of 1 environment, got n_envs={buffer.n_envs}")
    schema = buffer.schema
    unknown = [name for name in schema.names if name not in KNOWN]
    if after_step is None and unknown:
        raise ValueError(
            f"after_step: expected a function, because the buffer has fields {unknown} besides "
            f"some of {list(KNOWN)}"
        )
    logger = logging.getLogger("cpprb_like.train") if logger is None else logger

    episode, first_step, reward = 0, 0, 0.0
    buffer.on_episode_end()
    try:
        obs = _reset(env) if max_steps else None
        for step in range(max_steps):
            is_warmup = step < n_warmups
            action = get_action(obs, step, episode, is_warmup)
            result = env.step(action)
            if after_step is None:
                outcome = Outcome(result, {}, schema)
                transition = _default_transition(schema.names, obs, action, outcome)
            else:
                transition = after_step(obs, action, result, step, episode)
                outcome = Outcome(result, transition, schema)
            # Read before the step is stored: an unreadable result stores nothing.
            obs = outcome.obs if obs_update is None else None
            gained: Any = outcome.reward if rew_sum is None else None
            is_over = outcome.is_over if done_check is None else False
            buffer.add(**transition)
            if not is_warmup and len(buffer):
                batch = buffer.sample(batch_size)
                errors = update_policy(batch, step, episode)
                if buffer.has_priorities:
                    if errors is None:
                        raise TypeError("update_policy: expected the errors of the batch, got None")
                    buffer.update_priorities(batch["indexes"], errors)
            if rew_sum is None:
                reward += float(np.sum(gained))
            else:
                reward = rew_sum(reward, transition)
            if done_check is not None:
                is_over = bool(done_check(transition))
            if not is_over:
                obs = obs if obs_update is None else obs_update(transition)
                continue
            buffer.on_episode_end()
            logger.info("episode %d: reward %g, %d steps so far", episode, reward, step + 1)
            if episode_callback is not None:
                episode_callback(episode, step - first_step, reward)
            episode, first_step, reward = episode + 1, step + 1, 0.0
            if episode == most_episodes or step + 1 == max_steps:
                break
            obs = _reset(env)
    finally:
        buffer.on_episode_end()


def _reset(env: Any) -> Any:
    """The first observation of an episode."""
    result = env.reset()
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result[0]
    return result


def _default_transition(
    names: tuple[str, ...], obs: Any, action: Any, outcome: Outcome
) -> Transition:
    """The transition of a step, with the fields ``names`` of the buffer."""
    next_obs, reward, terminated, truncated = outcome.returned
    splits = "terminated" in names or "truncated" in names
    values = (obs, action, reward, next_obs, terminated, truncated)
    known = dict(zip(KNOWN, (*values, terminated or (splits and truncated)), strict=True))
    return {name: known[name] for name in names}
