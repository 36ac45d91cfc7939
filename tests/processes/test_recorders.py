"""Recorders over an actor: a learner draws what a recorder stores in a buffer of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.processes import SharedReplay
from cpprb_like.typing import FieldSpec

Rows = Mapping[str, npt.NDArray[Any]]


def assert_same_rows(ours: Rows, theirs: Rows) -> None:
    """The same fields with the same values, in the same order."""
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values)


def in_shards(
    fields: Mapping[str, FieldSpec], play: Callable[[ReplayBuffer], None], n: int
) -> Rows:
    """The rows that a learner finds when somebody played into an actor."""
    with SharedReplay(4000, fields, writers=2, n_envs=n) as replay, replay.actor() as actor:
        play(actor)
        learner = replay.learner()
        rows = learner.sample(len(learner), replace=False, indexes=True)
    order = np.argsort(rows.pop("indexes"))
    return {name: values[order] for name, values in rows.items()}


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_vector_environment_of_gymnasium(mode: str) -> None:
    """CartPole, four at a time, in both modes of an environment that resets by itself."""
    gymnasium = need("gymnasium")
    from cpprb_like.integrations.gymnasium import GymnasiumRecorder  # noqa: PLC0415 (needs it)

    def recorder() -> Any:
        autoreset = gymnasium.vector.AutoresetMode[mode]
        options = {"autoreset_mode": autoreset}
        env = gymnasium.make_vec(
            "CartPole-v1", num_envs=4, vectorization_mode="sync", vector_kwargs=options
        )
        return GymnasiumRecorder(env)

    def play(buffer: ReplayBuffer) -> None:
        env = recorder()
        env.attach(buffer)
        env.reset(seed=7)
        env.action_space.seed(7)
        for _ in range(200):
            env.step(env.action_space.sample())
        env.close()

    fields = recorder().env_dict
    buffer = ReplayBuffer(2000, fields, n_envs=4)
    play(buffer)
    theirs = buffer.get_all_transitions()
    assert np.count_nonzero(theirs["terminated"]) > 10
    assert_same_rows(in_shards(fields, play, 4), theirs)


def test_an_environment_of_dm_env() -> None:
    """Episodes of three steps that end, and of five that are cut off."""
    dm_env = need("dm_env")
    from cpprb_like.integrations.dm_env import DmEnvRecorder  # noqa: PLC0415 (needs it)

    class Counter(dm_env.Environment):  # type: ignore[misc, name-defined] # dm_env has no types
        episode = at = 0

        def observation_spec(self) -> Any:
            return dm_env.specs.Array((2,), np.float32, "obs")

        def action_spec(self) -> Any:
            return dm_env.specs.DiscreteArray(4, name="act")

        def _obs(self) -> npt.NDArray[np.float32]:
            return np.array([self.episode, self.at], np.float32)

        def reset(self) -> Any:
            self.episode, self.at = self.episode + 1, 0
            return dm_env.restart(self._obs())

        def step(self, action: int) -> Any:
            if self.at < 0 or self.episode == 0:
                return self.reset()
            self.at += 1
            step, reward = self.at, float(action)
            if step == 3 and self.episode % 2:
                self.at = -1
                return dm_env.termination(reward, np.array([self.episode, 3], np.float32))
            if step == 5:
                self.at = -1
                return dm_env.truncation(reward, np.array([self.episode, 5], np.float32))
            return dm_env.transition(reward, self._obs())

    def play(buffer: ReplayBuffer) -> None:
        env = Counter()
        recorder = DmEnvRecorder(env)
        recorder.attach(buffer)
        recorder.reset(env.reset())
        for number in range(40):
            recorder.add(number % 4, env.step(number % 4))

    fields = DmEnvRecorder(Counter()).env_dict
    buffer = ReplayBuffer(2000, fields)
    play(buffer)
    theirs = buffer.get_all_transitions()
    assert 20 < len(theirs["rew"]) < 40
    assert_same_rows(in_shards(fields, play, 1), theirs)
