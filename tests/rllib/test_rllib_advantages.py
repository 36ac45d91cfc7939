"""Advantages beside those of RLlib: its value targets, and its V-trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("ray")
need("gymnasium")

from ray.rllib.algorithms.impala.torch.vtrace_torch_v2 import vtrace_torch
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

from cpprb_like import Advantages, ReplayBuffer

GAMMA, LAMBDA = 0.97, 0.9
NAMES = ("rew", "value", "logp", "target")
FIELDS: dict[str, Any] = {name: {"shape": ()} for name in NAMES} | {
    name: {"shape": (), "dtype": bool} for name in ("terminated", "truncated")
}


def episodes(seed: int) -> list[dict[str, Any]]:
    """Random episodes, which end in both ways; the last one is open."""
    rng, found = np.random.default_rng(seed), []
    for length in rng.integers(1, 20, 12):
        one: dict[str, Any] = {name: rng.normal(size=length).astype("f4") for name in NAMES}
        one["final"] = np.float32(rng.normal())  # value of its last next observation
        one["end"] = rng.choice(["terminated", "truncated"])
        found.append(one)
    found[-1]["end"] = "open"
    return found


def ours(played: list[dict[str, Any]], lam: float, **options: Any) -> dict[str, Any]:
    """All rows of a view, in the order of time."""
    rb = ReplayBuffer(1000, FIELDS, next_of="value")
    for one in played:
        is_last = np.arange(len(one["rew"])) == len(one["rew"]) - 1
        ends = {name: is_last & (one["end"] == name) for name in ("terminated", "truncated")}
        columns = {name: one[name] for name in NAMES}
        rb.add(**columns, **ends, next_value=np.append(one["value"][1:], one["final"]))
    (batch,) = rb.view(Advantages(GAMMA, lam, **options)).epoch(1000, shuffle=False)
    return batch


@pytest.mark.parametrize("seed", range(3))
def test_value_targets_of_rllib(seed: int) -> None:
    """Equal: RLlib puts a time step with the final value behind each episode."""
    played = episodes(seed)
    values, rewards, terminated, truncated, rows = [], [], [], [], []
    for one in played:
        n = len(one["rew"])
        values += [*one["value"], one["final"]]
        rewards += [*one["rew"], 0.0]
        terminated += [False] * (n - 1) + [one["end"] == "terminated", False]
        truncated += [False] * (n - 1) + [one["end"] != "terminated", False]
        rows += [True] * n + [False]
    columns = [np.array(one) for one in (values, rewards, terminated, truncated)]
    found = compute_value_targets(*columns, GAMMA, LAMBDA)
    batch = ours(played, LAMBDA)
    np.testing.assert_allclose(found[rows], batch["return"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((found - columns[0])[rows], batch["advantage"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_v_trace_of_rllib(seed: int) -> None:
    """Equal for each episode alone, with its lambda of 1."""
    played, found = episodes(seed), []
    for one in played:
        column = {name: torch.as_tensor(one[name])[:, None] for name in NAMES}
        discounts = torch.full_like(column["rew"], GAMMA)
        if one["end"] == "terminated":
            discounts[-1] = 0.0
        found.append(
            vtrace_torch(
                target_action_log_probs=column["target"],
                behaviour_action_log_probs=column["logp"],
                discounts=discounts,
                rewards=column["rew"],
                values=column["value"],
                bootstrap_values=torch.as_tensor([one["final"]]),
            )
        )
    batch = ours(played, 1.0, target_logp=lambda rows: rows["target"])
    returns, advantages = (torch.cat(parts)[:, 0].numpy() for parts in zip(*found, strict=True))
    np.testing.assert_allclose(returns, batch["return"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(advantages, batch["advantage"], rtol=1e-4, atol=1e-4)


def test_v_trace_of_rllib_loses_the_final_value() -> None:
    """IMPALA's learner puts a step without discount and reward behind an episode that was cut.

    On policy its target takes the value of that step away again, so the last row bootstraps from 0.
    """
    zero = torch.zeros((4, 1))
    discounts = torch.tensor([GAMMA, GAMMA, GAMMA, 0.0])[:, None]
    rewards, values = torch.tensor([[1.0], [1.0], [1.0], [0.0]]), torch.full((4, 1), 10.0)
    theirs, _ = vtrace_torch(
        target_action_log_probs=zero,
        behaviour_action_log_probs=zero,
        discounts=discounts,
        rewards=rewards,
        values=values,
        bootstrap_values=torch.zeros(1),
    )
    row = {"rew": np.ones(3, "f4"), "value": np.full(3, 10.0), "final": 10.0, "end": "truncated"}
    played = [row | {"logp": np.zeros(3), "target": np.zeros(3)}]
    batch = ours(played, 1.0, target_logp=lambda rows: rows["target"])
    sums = np.array([1 + GAMMA + GAMMA**2, 1 + GAMMA, 1.0])
    np.testing.assert_allclose(theirs[:3, 0].numpy(), sums, rtol=1e-5)
    expected = sums + 10.0 * GAMMA ** np.array([3, 2, 1])
    np.testing.assert_allclose(batch["return"], expected, rtol=1e-5)
