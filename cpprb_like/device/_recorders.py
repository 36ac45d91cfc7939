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
    """Adds the steps of a vector environment whose observations are tensors.

    The environment has the methods of Gymnasium's ``VectorEnv`` and resets an environment in the
    step that ends its episode (``AutoresetMode.SAME_STEP``), as ManiSkill's ``ManiSkillVectorEnv``
    and the wrappers of Isaac Lab do. Final observations are taken from ``info["final_obs"]`` or
    ``info["final_observation"]``. Without these, ``add`` gets ``final=False``.

    Parameters
    ----------
    replay : DeviceReplay
        A replay with ``next_of="obs"`` and the fields ``obs``, ``act``, ``rew``, ``terminated`` and
        ``truncated``. If observations are a dict, its keys are fields, and those with next values
        are in ``next_of``.
    env : vector environment
        Its ``reset`` and ``step`` are called.

    Examples
    --------
    >>> from cpprb_like.device import DeviceRecorder  # doctest: +SKIP
    >>> recorder = DeviceRecorder(replay, env)  # doctest: +SKIP
    >>> obs = recorder.reset(seed=0)  # doctest: +SKIP
    >>> obs, reward, terminated, truncated, info = recorder.step(policy(obs))  # doctest: +SKIP
    """

    def __init__(self, replay: DeviceReplay, env: Any) -> None:
        self.replay, self.env = replay, env
        self._obs: Any = None

    def reset(self, **options: Any) -> Any:
        """Reset all environments, and return their observations."""
        self._obs, _ = self.env.reset(**options)
        return self._obs

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in all environments, add it, and return what the environment returned.

        Raises ``RuntimeError`` before the first ``reset``, and what ``add`` raises.
        """
        if self._obs is None:
            raise RuntimeError("step: expected a call of reset before")
        obs, reward, terminated, truncated, info = self.env.step(action)
        finals = next((info[name] for name in FINALS if name in info), None)
        following = obs
        if finals is not None:
            over = terminated | truncated
            following = _merged(over, finals, obs)
        fields = self.replay.fields
        values = {
            "act": action,
            "rew": reward,
            "terminated": terminated,
            "truncated": truncated,
            **_named(self._obs),
            **{f"next_{name}": one for name, one in _named(following).items()},
        }
        values = {name: one for name, one in values.items() if name in fields}
        self.replay.add(**values, final=finals is not None)
        self._obs = obs
        return obs, reward, terminated, truncated, info


def _named(obs: Any) -> dict[str, Any]:
    return dict(obs) if isinstance(obs, Mapping) else {"obs": obs}


def _merged(over: Any, finals: Any, obs: Any) -> Any:
    """Final observations where episodes are over, else the observations of the step."""
    import torch  # noqa: PLC0415 (there, as the observations are tensors)

    if isinstance(obs, Mapping):
        return {name: _merged(over, finals[name], one) for name, one in obs.items()}
    return torch.where(over.reshape(-1, *[1] * (obs.ndim - 1)), finals, obs)


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
    (dict, array of bool)
        ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and ``next_obs``; of observations
        that are dicts their keys. And whether ``next_obs`` is of the same episode: wrappers
        that reset in the step of the end replace the final observation.

    Notes
    -----
    Brax says ``info["truncation"]`` where the time limit ended an episode; ``done`` is then 1 too.
    """
    done = after.done > 0
    truncated = done & (after.info.get("truncation", after.done * 0) > 0)
    step = {
        "act": action,
        "rew": after.reward,
        "terminated": done & ~truncated,
        "truncated": truncated,
        **_named(before.obs),
        **{f"next_{name}": one for name, one in _named(after.obs).items()},
    }
    return step, ~done
