"""Real environments, recorded, written in each format and read again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import assert_carried, place
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import FORMATS

h5py = need("h5py")
need("pyarrow")
gymnasium = need("gymnasium")
from cpprb_like.integrations.gymnasium import GymnasiumRecorder

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*the buffer does not know the observation_space:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning"),
]

every_format = pytest.mark.parametrize("format", FORMATS)


class Sight(gymnasium.Wrapper):  # type: ignore[misc,name-defined]  # it is optional
    """Pendulum with Dict observations: its state, and a picture of it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        image = gymnasium.spaces.Box(0, 255, (24, 32, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(
            {"state": env.observation_space, "image": image}
        )

    def _seen(self, state: Any) -> dict[str, Any]:
        image = np.zeros((24, 32, 3), np.uint8)
        image[int(12 + 11 * state[0]), int(16 + 15 * state[1])] = 255
        image[:, :, 2] = np.arange(32)
        return {"state": state, "image": image}

    def reset(self, **options: Any) -> Any:
        """Begin."""
        state, info = self.env.reset(**options)
        return self._seen(state), info

    def step(self, action: Any) -> Any:
        """Go on."""
        state, *rest = self.env.step(action)
        return (self._seen(state), *rest)


def recorded(env: Any, steps: int, size: int, **options: Any) -> ReplayBuffer:
    """A buffer of so many steps of an environment."""
    recorder = GymnasiumRecorder(env, float_type="space")
    rb = recorder.attach(ReplayBuffer(size, recorder.env_dict, n_envs=recorder.n_envs, **options))
    recorder.reset(seed=0)
    recorder.action_space.seed(0)
    for _ in range(steps):
        recorder.step(recorder.action_space.sample())
    recorder.close()
    return rb


@pytest.mark.slow
@every_format
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_vector_environment(format: str, mode: str, tmp_path: Path) -> None:  # noqa: A002
    """Terminated and truncated episodes of three environments, in a ring that has wrapped."""
    env = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=3,
        vectorization_mode="sync",
        max_episode_steps=25,
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode[mode]},
    )
    rb = recorded(env, 400, 600, next_of="obs")
    ends = [(one.terminated, one.truncated, one.complete) for one in rb.episodes.list()]
    assert {(True, False, True), (False, True, True), (False, False, False)} <= set(ends)

    rb.export(place(tmp_path, format), format)

    assert_carried(rb, ReplayBuffer.from_dataset(place(tmp_path, format), resume=True), format)


@pytest.mark.slow
@every_format
def test_dict_observations_with_images(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Each part of the observation is a field, and images are not changed by a single bit."""
    env = Sight(gymnasium.make("Pendulum-v1", max_episode_steps=30))
    rb = recorded(env, 200, 150, next_of=["obs.state", "obs.image"])

    rb.export(place(tmp_path, format), format)

    assert_carried(rb, ReplayBuffer.from_dataset(place(tmp_path, format), resume=True), format)


@pytest.mark.slow
@every_format
def test_atari(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Stacks of Atari frames, stored frame by frame, come back as stacks."""
    gymnasium.register_envs(need("ale_py"))
    need("cv2")
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, max_episode_steps=200)
    env = gymnasium.wrappers.AtariPreprocessing(env)
    env = gymnasium.wrappers.FrameStackObservation(env, 4)
    rb = recorded(env, 120, 100, next_of="obs", stack_compress="obs")

    rb.export(place(tmp_path, format), format)
    options: dict[str, Any] = {"next_of": "obs", "stack_compress": "obs", "resume": True}
    got = ReplayBuffer.from_dataset(place(tmp_path, format), **options)

    assert_carried(rb, got, format)
    assert got.nbytes < 1.3 * rb.nbytes


PROGRAM = """
import resource, sys
import h5py, pyarrow.parquet
import numpy as np
from cpprb_like import ReplayBuffer

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

path, format = sys.argv[1:]
fields = {
    "obs": {"shape": (84, 84), "dtype": "u1"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
images = np.random.default_rng(0).integers(0, 255, (500, 84, 84), np.uint8)
rb = ReplayBuffer(12_000, fields, next_of="obs")
for _ in range(24):
    done = np.zeros(500, bool)
    done[-1] = True
    following = np.roll(images, -1, axis=0)
    rb.add(obs=images, act=np.zeros(500, int), rew=np.zeros(500), next_obs=following, done=done)
before = peak()
rb.export(path, format)
saved = peak()
other = ReplayBuffer.from_dataset(path, next_of="obs")
print(saved - before, peak() - saved - other.nbytes, rb.nbytes)
"""


@pytest.mark.slow
@every_format
def test_memory_does_not_grow_with_the_rows(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Less than 80 MB beside a buffer of 84 MB, by the peak of what was resident."""
    need("resource")
    command = [sys.executable, "-c", PROGRAM, str(place(tmp_path, format)), format]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    writing, reading, nbytes = map(int, found)
    assert nbytes > 84e6
    assert writing < 80e6
    assert reading < 80e6
