"""Recorders: what they add is what a program adds that knows each step of each environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
from cpprb_like.device import DeviceRecorder, DeviceReplay
from cpprb_like.views import NStep

N, STEPS = 3, 40
FLAG = {"shape": (), "dtype": bool}
FIELDS = {"obs": {"shape": 2}, "act": {"shape": ()}, "rew": {"shape": ()}}
ENDS = {"terminated": FLAG, "truncated": FLAG}


@dataclass
class Counters:
    """Environments that count: an episode terminates after 4 to 6 steps, or is truncated at 5.

    All observations are written into the same tensor, as simulators do.
    """

    finals: str | None = "final_obs"
    parts: bool = False  # whether observations are nested dicts
    metadata: dict[str, Any] = field(default_factory=dict)
    reached: list[Any] = field(default_factory=list)  # the observation of each step before resets

    def see(self) -> Any:
        self.seen[:] = torch.stack([self.episode, self.time], 1)
        return {"policy": self.seen, "camera": {"deep": self.seen}} if self.parts else self.seen

    def reset(self, seed: int = 0) -> tuple[Any, dict[str, Any]]:
        self.seen = torch.zeros(N, 2)
        self.episode = torch.arange(N, dtype=torch.float32) * 100 + seed
        self.time = torch.zeros(N)
        return self.see(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.time = self.time + 1
        terminated = self.time >= 4 + self.episode % 3
        truncated = (self.time >= 5) & ~terminated
        over = terminated | truncated
        info = {}
        self.reached.append(torch.stack([self.episode, self.time], 1))
        if self.finals is not None and bool(over.any()):
            final = self.reached[-1]
            info[self.finals] = (
                {"policy": final, "camera": {"deep": final}} if self.parts else final
            )
        self.episode = self.episode + over
        self.time = torch.where(over, 0.0, self.time)
        return self.see(), action * 2, terminated, truncated, info


def replays(names: tuple[str, ...] = ("obs",)) -> list[DeviceReplay]:
    """Two replays with the same fields."""
    declared: dict[str, Any] = {
        **dict.fromkeys(names, FIELDS["obs"]),
        "act": FIELDS["act"],
        "rew": FIELDS["rew"],
    }
    return [
        DeviceReplay(N * 64, declared | ENDS, n_envs=N, next_of=names, finals=N * 64)
        for _ in range(2)
    ]


def assert_equal(ours: DeviceReplay, theirs: DeviceReplay) -> None:
    """All tensors are equal."""
    for name, values in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], values, err_msg=name)


@pytest.mark.parametrize("finals", ["final_obs", "final_observation", None])
@pytest.mark.parametrize("names", [("obs",), ("obs.policy", "obs.camera.deep")])
def test_rows_are_those_of_the_episodes(finals: str | None, names: tuple[str, ...]) -> None:
    """Each row has the next observation of its own episode, or it is known to lack it."""
    env = Counters(finals, parts=len(names) > 1)
    ours, theirs = replays(names)
    recorder = DeviceRecorder(ours, env)
    obs = recorder.reset(seed=0)
    for t in range(STEPS):
        before = env.seen.clone()
        action = torch.full((N,), float(t))
        obs, reward, terminated, truncated, _ = recorder.step(action)
        step = {"act": action, "rew": action * 2, "terminated": terminated, "truncated": truncated}
        following = env.seen if finals is None else env.reached[-1]
        step |= dict.fromkeys(names, before)
        step |= dict.fromkeys([f"next_{name}" for name in names], following)
        theirs.add(**step, final=finals is not None)
        assert (reward == action * 2).all()
        assert (obs["policy"] if len(names) > 1 else obs) is env.seen
    assert_equal(ours, theirs)
    batch = ours.sample(500)
    following, now = batch[f"next_{names[0]}"], batch[names[0]]
    is_same = (following == now + torch.tensor([0.0, 1.0])).all(1)
    assert is_same[~batch["terminated"]].all()
    assert bool(batch["truncated"].any()) == (finals is not None)


def test_parts_without_a_field_are_not_stored() -> None:
    """A replay for a policy takes no memory for what only a critic sees."""
    (replay, _) = replays(("obs.policy",))
    recorder = DeviceRecorder(replay, Counters(parts=True))
    recorder.reset()
    recorder.step(torch.ones(N))
    assert replay.sample(2)["obs.policy"].shape == (2, 2)


def test_misuse_is_an_error() -> None:
    """Another autoreset mode, and a step without a reset."""
    replay, _ = replays()
    mode = SimpleNamespace(value="NextStep")
    with pytest.raises(ValueError, match="expected autoreset mode SAME_STEP, got namespace"):
        DeviceRecorder(replay, Counters(metadata={"autoreset_mode": mode}))
    recorder = DeviceRecorder(replay, Counters(metadata={"autoreset_mode": "SameStep"}))
    with pytest.raises(RuntimeError, match="expected a call of reset before"):
        recorder.step(torch.ones(N))


def test_a_reset_ends_episodes() -> None:
    """Rows before a reset amid episodes read nothing of those behind it."""
    replay, _ = replays()
    recorder = DeviceRecorder(replay, Counters())
    for reward in (0.5, 50.0):
        recorder.reset()
        for _ in range(3):
            recorder.step(torch.full((N,), reward))
    batch = replay.view(NStep(3, gamma=1.0)).sample(200)
    assert sorted(set(batch["rew"].tolist())) == [1.0, 2.0, 3.0, 300.0]
