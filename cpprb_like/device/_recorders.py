"""Steps of simulators as arguments of ``add``: vector environments of tensors, and states of Brax.

Not here: other environments, of which ``cpprb_like.integrations`` has recorders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpprb_like.device._torch import DeviceReplay

__all__ = ["DeviceRecorder", "brax_step"]

FINALS = ("final_obs", "final_observation")  # Gymnasium's key, and that of ManiSkill


class DeviceRecorder:
    """Adds the steps of a vector environment whose values are tensors.

    The environment has the methods of Gymnasium's ``VectorEnv`` and its mode ``SAME_STEP``: it
    resets in the step that ends an episode, as ManiSkill and Isaac Lab do. Final observations are
    ``info["final_obs"]`` or ``info["final_observation"]``; without these, they are unknown.

    Parameters
    ----------
    replay : DeviceReplay
        Fields ``obs``, ``act``, ``rew``, ``terminated`` and ``truncated``, and ``next_of="obs"``.
        Observations that are dicts have a field for each part, as ``obs.policy``. What has no field
        is not stored.
    env : vector environment
        Its ``reset`` and ``step`` are called.

    Raises
    ------
    ValueError
        The environment declares another autoreset mode.

    Examples
    --------
    >>> from cpprb_like.device import DeviceRecorder  # doctest: +SKIP
    >>> recorder = DeviceRecorder(replay, env)  # doctest: +SKIP
    >>> obs = recorder.reset(seed=0)  # doctest: +SKIP
    >>> obs, reward, terminated, truncated, info = recorder.step(policy(obs))  # doctest: +SKIP
    """

    def __init__(self, replay: DeviceReplay, env: Any) -> None:
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        if getattr(mode, "value", mode) not in (None, "SameStep"):
            raise ValueError(f"env: expected autoreset mode SAME_STEP, got {mode}")
        self.replay, self.env = replay, env
        self._obs: dict[str, Any] | None = None

    def reset(self, **options: Any) -> Any:
        """Reset all environments, and return their observations. Open episodes are truncated."""
        self.replay.on_episode_end()
        obs, _ = self.env.reset(**options)
        self._keep(_named(obs))
        return obs

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in all environments, add it, and return what the environment returned.

        Raises ``RuntimeError`` before the first ``reset``, and what ``add`` raises.
        """
        if self._obs is None:
            raise RuntimeError("step: expected a call of reset before")
        obs, reward, terminated, truncated, info = self.env.step(action)
        following, finals = _named(obs), _finals(info)
        step = {"act": action, "rew": reward, "terminated": terminated, "truncated": truncated}
        step |= self._obs | {f"next_{name}": one for name, one in following.items()}
        for name, one in (finals or {}).items():
            over = (terminated | truncated).reshape(-1, *[1] * (one.ndim - 1))
            step[f"next_{name}"] = one.where(over, following[name])
        known = {name: one for name, one in step.items() if name in self.replay.fields}
        self.replay.add(**known, final=finals is not None)
        self._keep(following)
        return obs, reward, terminated, truncated, info

    def _keep(self, obs: dict[str, Any]) -> None:
        """Keep a copy, as environments may write the next observations into the same tensors."""
        self._obs = {name: one.clone() for name, one in obs.items()}


def _named(obs: Any, name: str = "obs") -> dict[str, Any]:
    """Observations by the names of their fields, as recorders of Gymnasium name them."""
    if not isinstance(obs, Mapping):
        return {name: obs}
    return {n: v for key, one in obs.items() for n, v in _named(one, f"{name}.{key}").items()}


def _finals(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Final observations, if there are any."""
    return next((_named(info[name]) for name in FINALS if name in info), None)


def brax_step(before: Any, action: Any, after: Any) -> tuple[dict[str, Any], Any]:
    """A step and ``final`` for ``JaxReplay.add``, of two states of Brax or MuJoCo Playground.

    Parameters
    ----------
    before, after : State
        States of a batch of environments before and after the step, each with ``obs``, ``reward``,
        ``done`` and ``info``.
    action : array, shape (n_envs, ...)
        The action between them.

    Returns
    -------
    (dict, bool or array of bool)
        ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and ``next_obs``; of dicts each
        part, as ``obs.state``. And whether next observations are of the same episode: those of
        ``info["final_obs"]`` are, and without it those where ``done`` is 0.
    """
    done = after.done > 0
    truncated = done & (after.info.get("truncation", after.done * 0) > 0)
    finals = _finals(after.info)
    following = _named(after.obs) if finals is None else finals
    step = {"act": action, "rew": after.reward, "terminated": done & ~truncated}
    step |= {"truncated": truncated, **_named(before.obs)}
    step |= {f"next_{name}": one for name, one in following.items()}
    return step, ~done if finals is None else True
