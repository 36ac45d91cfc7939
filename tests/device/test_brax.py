"""Steps of Brax, on its own environments and wrappers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from optional import need

jax = need("jax")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a package that Brax imports
    need("brax")
    from brax.envs.fast import Fast
    from brax.envs.wrappers import training
import jax.numpy as jnp

from cpprb_like.device import JaxReplay, brax_step

N = 3


class Short(Fast):  # type: ignore[misc]
    """Brax's smallest environment; it terminates at a place that depends on the actions."""

    def step(self, state: Any, action: Any) -> Any:
        after = super().step(state, action)
        return after.replace(done=jnp.where(after.obs[0] > 0.003, 1.0, 0.0))


class KeepsFinals(training.Wrapper):  # type: ignore[misc]
    """Says the observation of the step before a reset, for a wrapper that resets."""

    def reset(self, rng: Any) -> Any:
        return self._kept(self.env.reset(rng))

    def step(self, state: Any, action: Any) -> Any:
        return self._kept(self.env.step(state, action))

    def _kept(self, state: Any) -> Any:
        return state.replace(info=state.info | {"final_obs": state.obs})


@pytest.mark.parametrize("keeps_finals", [False, True])
def test_rows_are_those_of_brax(keeps_finals: bool) -> None:
    """Rows that a time limit cut are drawn only where their final observations are known."""
    env = training.EpisodeWrapper(training.VmapWrapper(Short()), 6, 1)
    bare, env = env, training.AutoResetWrapper(KeepsFinals(env) if keeps_finals else env)
    flag = {"shape": (), "dtype": bool}
    fields: dict[str, Any] = {"obs": {"shape": 2}, "act": {"shape": 1}, "rew": {"shape": ()}}
    replay = JaxReplay(
        N * 32, fields | {"terminated": flag, "truncated": flag}, n_envs=N, next_of="obs"
    )

    def play(state: Any, rows: Any, action: Any) -> Any:
        after = env.step(state, action)
        step, final = brax_step(state, action, after)
        truth = bare.step(state.replace(done=state.done * 0), action).obs
        return after, replay.add(rows, step, final=final), (step, truth)

    state, rows = env.reset(jax.random.split(jax.random.PRNGKey(0), N)), replay.init()
    play = jax.jit(play)
    ends = {"terminated": 0, "truncated": 0}
    for t in range(20):
        action = jnp.array([[1.0], [0.0], [t % 3]])
        state, rows, (step, truth) = play(state, rows, action)
        known = ~(step["terminated"] | step["truncated"]) | keeps_finals
        np.testing.assert_array_equal(step["next_obs"][known], truth[known])
        np.testing.assert_array_equal(step["rew"], state.reward)
        for name in ends:
            ends[name] += int(step[name].sum())
    assert ends["terminated"] > 0
    assert ends["truncated"] > 0
    batch = jax.jit(lambda rows, key: replay.sample(rows, key, 400))(rows, jax.random.key(1))
    assert bool(batch["terminated"].any())
    assert bool(batch["truncated"].any()) == keeps_finals
