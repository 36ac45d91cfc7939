"""Advantages beside those of Stable-Baselines3, TorchRL and Tianshou, and where theirs differ."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from optional import need

torch = need("torch")
need("stable_baselines3")
need("torchrl")
need("tianshou")
gymnasium = need("gymnasium")

from stable_baselines3.common.buffers import RolloutBuffer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # imports of these packages warn of themselves
    from tianshou.algorithm.algorithm_base import Algorithm
    from tianshou.data import Batch, VectorReplayBuffer
    from torchrl.objectives.value.functional import (
        generalized_advantage_estimate,
        vtrace_advantage_estimate,
    )

from cpprb_like import Advantages, ReplayBuffer

Array = npt.NDArray[Any]
STEPS, ENVS, GAMMA, LAMBDA = 40, 3, 0.97, 0.9
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


class Rollout:
    """Random rollouts: episodes end in both ways, and the last ones are open."""

    def __init__(self, seed: int) -> None:
        rng, shape = np.random.default_rng(seed), (STEPS, ENVS)
        self.terminated, self.truncated = rng.random(shape) < 0.08, rng.random(shape) < 0.1
        self.done = self.terminated | self.truncated
        self.rew, self.value, self.logp, self.target = rng.normal(size=(4, *shape)).astype("f4")
        self.next_value = np.concatenate([self.value[1:], rng.normal(size=(1, ENVS))]).astype("f4")
        self.next_value[self.done] = rng.normal(size=self.done.sum())  # of final observations

    def ours(self, lam: float = LAMBDA, **options: Any) -> tuple[Array, Array]:
        """Advantages and returns of a view, shape (STEPS, ENVS)."""
        names = ("rew", "value", "logp", "target")
        fields: dict[str, Any] = {name: {"shape": ()} for name in names}
        fields |= {name: {"shape": (), "dtype": bool} for name in ("terminated", "truncated")}
        rb = ReplayBuffer(STEPS * ENVS, fields, n_envs=ENVS, next_of="value")
        for t in range(STEPS):
            rb.add(**{name: getattr(self, name)[t] for name in (*fields, "next_value")})
        (batch,) = rb.view(Advantages(GAMMA, lam, **options)).epoch(len(rb), shuffle=False)
        assert self.truncated.any()
        return batch["advantage"].reshape(STEPS, ENVS), batch["return"].reshape(STEPS, ENVS)

    def tensor(self, name: str) -> Any:
        """A column as TorchRL takes it: (ENVS, STEPS, 1)."""
        return torch.as_tensor(np.ascontiguousarray(getattr(self, name).T))[..., None]


def of_torchrl(*found: Any) -> list[Array]:
    """Advantages and returns, shape (STEPS, ENVS)."""
    return [one[..., 0].numpy().T for one in found]


@pytest.mark.parametrize("seed", range(3))
def test_those_of_stable_baselines3(seed: int) -> None:
    """Equal with the final value that its algorithms add to rewards; its buffer takes it as 0."""
    play = Rollout(seed)
    space = gymnasium.spaces.Box(-1, 1, (1,))
    results = []
    for adds_final in (True, False):
        theirs = RolloutBuffer(STEPS, space, space, "cpu", LAMBDA, GAMMA, ENVS)
        starts = np.concatenate([np.ones((1, ENVS)), play.done[:-1]])
        cut = play.truncated & ~play.terminated
        for t in range(STEPS):
            rew = play.rew[t] + GAMMA * play.next_value[t] * cut[t] * adds_final
            value = torch.as_tensor(play.value[t])
            theirs.add(np.zeros((ENVS, 1)), np.zeros((ENVS, 1)), rew, starts[t], value, value)
        last = torch.as_tensor(play.next_value[-1])
        theirs.compute_returns_and_advantage(last, play.done[-1])
        results.append((theirs.advantages, theirs.returns))
    np.testing.assert_allclose(results[0], play.ours(), **CLOSE)
    assert not np.allclose(results[1], play.ours(), **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_those_of_torchrl(seed: int) -> None:
    """Equal with ``terminated``; without it every end is taken as a termination."""
    play = Rollout(seed)
    names = ("value", "next_value", "rew", "done")
    given = [play.tensor(name) for name in names]
    found = generalized_advantage_estimate(GAMMA, LAMBDA, *given, play.tensor("terminated"))
    np.testing.assert_allclose(of_torchrl(*found), play.ours(), **CLOSE)
    found = generalized_advantage_estimate(GAMMA, LAMBDA, *given)
    assert not np.allclose(of_torchrl(*found), play.ours(), **CLOSE)


@pytest.mark.parametrize("rho_bar", [1.0, 2.5])
def test_v_trace_of_torchrl(rho_bar: float) -> None:
    """Equal, for its lambda of 1."""
    play = Rollout(0)
    names = ("target", "logp", "value", "next_value", "rew", "done", "terminated")
    given = [play.tensor(name) for name in names]
    found = vtrace_advantage_estimate(GAMMA, *given, rho_thresh=rho_bar, c_thresh=1.0)
    ours = play.ours(1.0, target_logp=lambda rows: rows["target"], rho_bar=rho_bar)
    np.testing.assert_allclose(of_torchrl(*found), ours, **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_those_of_tianshou(seed: int) -> None:
    """Equal, for values of the next observations that its buffer holds."""
    play = Rollout(seed)
    theirs = VectorReplayBuffer(STEPS * ENVS, ENVS)
    columns = {"obs": play.value, "obs_next": play.next_value, "act": play.rew, "rew": play.rew}
    columns |= {"terminated": play.terminated, "truncated": play.truncated, "done": play.done}
    for t in range(STEPS):
        step = {name: column[t] for name, column in columns.items()}
        theirs.add(Batch(**step, info={}), buffer_ids=np.arange(ENVS))
    batch, indices = theirs.sample(0)
    returns, advantages = Algorithm.compute_episodic_return(
        batch, theirs, indices, batch.obs_next, batch.obs, GAMMA, LAMBDA
    )
    found = [one.reshape(ENVS, STEPS).T for one in (advantages, returns)]
    np.testing.assert_allclose(found, play.ours(), **CLOSE)
