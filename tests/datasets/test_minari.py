"""Minari reads what is written here, and what Minari recorded is read here: Minari is the judge."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

minari = need("minari", "make test-datasets")
gymnasium = need("gymnasium")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:minari"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
storages = pytest.mark.parametrize("storage", ["hdf5", "arrow"])
FORMAT = {"hdf5": "minari", "arrow": "minari-arrow"}


@pytest.fixture(autouse=True)
def _collectors_go() -> Iterator[None]:
    """Minari's collectors leave their folders to the garbage collector, with a warning."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


class Rooms(gymnasium.Env):  # type: ignore[misc,name-defined]  # it is optional
    """Dict observations with an image, a Tuple action; some episodes terminate, others do not."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (40, 36, 3), np.uint8),
            "place": gymnasium.spaces.Dict(
                {
                    "x": gymnasium.spaces.Box(-1, 1, (2,), np.float64),
                    "room": gymnasium.spaces.Discrete(5),
                }
            ),
        }
    )
    action_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    )

    def _look(self) -> Any:
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (40, 36, 3), np.uint8),
            "place": {"x": rng.uniform(-1, 1, 2), "room": np.int64(rng.integers(5))},
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        return self._look(), {"height": 0.5}

    def step(self, action: Any) -> Any:
        """Go on."""
        del action
        ends = bool(self.np_random.random() < 0.1)
        return self._look(), float(self.np_random.normal()), ends, False, {"height": 1.5}


def environment(name: str) -> Any:
    """An environment whose episodes are cut."""
    if name == "rooms":
        return gymnasium.wrappers.TimeLimit(Rooms(), 12)
    return gymnasium.make(name, max_episode_steps=15)


environments = pytest.mark.parametrize("name", ["rooms", "CartPole-v1", "Pendulum-v1"])


def leaves(nest: Any, root: str) -> dict[str, Any]:
    """The parts of a nest, by the names of their fields."""
    if isinstance(nest, tuple):
        nest = dict(enumerate(nest))
    if not isinstance(nest, dict):
        return {root: np.asarray(nest)}
    parts = [leaves(part, f"{root}.{key}") for key, part in nest.items()]
    return {name: leaf for found in parts for name, leaf in found.items()}


@storages
@environments
def test_minari_reads_ours(name: str, storage: str, tmp_path: Path) -> None:
    """Its loader finds the episodes, and each value of them as it was recorded."""
    env = GymnasiumRecorder(environment(name), float_type="space")
    rb = env.attach(ReplayBuffer(100, env.env_dict))
    env.reset(seed=0)
    env.action_space.seed(1)
    for _ in range(50):
        env.step(env.action_space.sample())
    rb.export(tmp_path / "ours", FORMAT[storage], about={"author": ["us"]})

    found = minari.MinariDataset(tmp_path / "ours" / "data")

    assert found.total_steps == 50
    assert found.total_episodes == len(rb.episodes)
    assert found.storage.metadata["author"] == {"us"}
    assert not found.storage.jpeg_encoding
    for number, episode in enumerate(found.iterate_episodes()):
        rows = rb.episodes.read(number)
        n = len(rows["rew"])
        for part, values in leaves(episode.observations, "obs").items():
            assert values.shape[0] == n + 1
            np.testing.assert_array_equal(values[:-1], rows[part])
            np.testing.assert_array_equal(values[1:], rows[f"next_{part}"])
        for part, values in leaves(episode.actions, "act").items():
            np.testing.assert_array_equal(values, rows[part])
        np.testing.assert_array_equal(episode.rewards, rows["rew"])
        np.testing.assert_array_equal(episode.terminations, rows["terminated"])
        np.testing.assert_array_equal(episode.truncations, rows["truncated"])


@storages
@environments
@pytest.mark.parametrize("infos", [False, True])
def test_ours_reads_minaris(
    name: str, storage: str, infos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its collector recorded has the same values in a buffer, final observations too."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(
        environment(name), record_infos=infos, data_format=storage, jpeg_encoding=False
    )
    env.action_space.seed(1)
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    options = {} if name == "rooms" else {"eval_env": environment(name)}
    dataset = env.create_dataset("theirs/rooms-v0", algorithm_name="random", **options)
    env.close()

    lost = pytest.warns(DataLossWarning, match=r"info\.height of 3 resets$")
    with lost if infos and name == "rooms" else contextlib.nullcontext():
        rb = ReplayBuffer.from_dataset("theirs/rooms-v0", format="minari")
    found = describe(tmp_path / "theirs" / "rooms-v0")

    assert found.format == FORMAT[storage]
    assert [episode.seed for episode in found.episodes] == [0, 1, 2]
    assert len(rb) == dataset.total_steps
    for number, episode in enumerate(dataset.iterate_episodes()):
        rows = rb.episodes.read(number)
        expected = {
            **leaves(episode.actions, "act"),
            "rew": episode.rewards,
            "terminated": episode.terminations,
            "truncated": episode.truncations,
            "seed": np.full(len(episode.rewards), number),
        }
        for part, values in leaves(episode.observations, "obs").items():
            expected[part], expected[f"next_{part}"] = values[:-1], values[1:]
        if infos:
            for part, values in leaves(episode.infos, "info").items():
                expected[part] = values[1:]
        assert expected.keys() == rows.keys()
        for part, values in expected.items():
            assert rows[part].dtype == values.dtype, part
            np.testing.assert_array_equal(rows[part], values)


@storages
def test_images_that_minari_wrote_as_jpeg_are_read(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what Minari gives: JPEG has changed them when they were written."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(environment("rooms"), data_format=storage, jpeg_encoding=True)
    env.reset(seed=0)
    for _ in range(12):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    dataset = env.create_dataset("theirs/jpeg-v0", algorithm_name="random")
    env.close()

    rb = ReplayBuffer.from_dataset(tmp_path / "theirs" / "jpeg-v0")

    for number, episode in enumerate(dataset.iterate_episodes()):
        images = rb.episodes.read(number)["obs.image"]
        np.testing.assert_array_equal(images, episode.observations["image"][:-1])
