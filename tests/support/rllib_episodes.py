"""Episodes of RLlib as its env runners give them, and comparisons with those of its buffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from local_ray import ray  # first, as it settles where Ray listens
from optional import need

need("torch", "RLlib's modules are PyTorch's")

from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as TheirsPrioritized

__all__ = [
    "Runner", "draw_from", "fill", "first_number", "number_of", "number_starts", "places", "ray",
    "same", "same_episode",
]  # fmt: skip


class Runner:
    """Episodes of several environments that run at the same time, cut as RLlib's runners do."""

    def __init__(self, kind: str, n_envs: int = 3, seed: int = 0, lookback: int = 1) -> None:
        self.kind, self.lookback = kind, lookback
        self.to_numpy = kind != "nest"  # RLlib's buffer cannot join nests of arrays to lists
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.going = [self.begin() for _ in range(n_envs)]

    def observe(self) -> Any:
        """An observation like no other."""
        self.count += 1
        if self.kind == "image":
            image = self.rng.integers(0, 255, (3, 2, 2), np.uint8)
            image.flat[:4] = np.frombuffer(np.int32(self.count).tobytes(), np.uint8)
            return image
        at = np.array([self.count, self.rng.random()], np.float32)
        return (
            {"at": at, "both": (self.rng.random(3), int(self.rng.integers(9)))}
            if self.kind == "nest"
            else at
        )

    def act(self) -> Any:
        """An action."""
        if self.kind == "nest":
            return {"turn": self.rng.random(2).astype(np.float32), "push": self.rng.integers(3)}
        return self.rng.integers(4)

    def begin(self) -> Any:
        """An episode without a step."""
        episode = SingleAgentEpisode()
        episode.add_env_reset(self.observe(), {"number": self.count})
        return episode

    def __call__(self, n_steps: int, end: float = 0.1) -> list[Any]:
        """The chunks of a call: those of ended episodes, and what there is of the others."""
        ended = []
        for _ in range(n_steps):
            for env, episode in enumerate(self.going):
                if self.rng.random() < 0.2:  # as environments pause that are reset
                    continue
                terminated, truncated = (self.rng.random(2) < end / 2).tolist()
                obs = self.observe()
                episode.add_env_step(
                    obs,
                    self.act(),
                    float(self.rng.normal()),
                    {"number": self.count},
                    terminated=terminated,
                    truncated=truncated and not terminated,
                    extra_model_outputs={"logits": self.rng.random(3).astype(np.float32)},
                )
                if episode.is_done:
                    ended.append(episode.to_numpy() if env % 2 and self.to_numpy else episode)
                    self.going[env] = self.begin()
        going = self.going
        self.going = [
            episode.cut(len_lookback_buffer=self.lookback) if len(episode) else episode
            for episode in going
        ]
        return [*ended, *(episode for episode in going if len(episode))]


def fill(kind: str, *into: Any, calls: int = 20, n_steps: int = 4, seed: int = 0) -> Runner:
    """Add the same chunks to buffers."""
    runner = Runner(kind, seed=seed, lookback=seed % 3)
    for _ in range(calls):
        chunks = runner(n_steps)
        for buffer in into:
            buffer.add(chunks)
    return runner


def places(theirs: Any) -> dict[tuple[str, int], int]:
    """Where RLlib's buffer has each step: by the episode and the time step."""
    ids = {number: id_ for id_, number in theirs.episode_id_to_index.items()}
    return {(ids[entry[0]], entry[1]): place for place, entry in enumerate(theirs._indices)}


def draw_from(theirs: Any, place: int) -> None:
    """Have RLlib's buffer draw the step of a place next."""
    if isinstance(theirs, TheirsPrioritized):
        node = theirs._indices[place][2]
        theirs._sum_segment.find_prefixsum_idx = lambda _: node
    else:
        theirs.rng = SimpleNamespace(integers=lambda *_: place)


def same(a: Any, b: Any) -> None:
    """Two values, or nests of values, are equal and of one dtype."""
    if isinstance(b, dict):
        assert set(a) == set(b)
        for key in b:
            same(a[key], b[key])
    elif isinstance(b, (list, tuple)):
        assert type(a) is type(b)
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    else:
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


def same_episode(ours: Any, theirs: Any, named: bool, rtol: float = 0.0) -> None:
    """Two sampled episodes say the same, returns up to ``rtol``."""
    for read in ("get_observations", "get_actions"):
        same(getattr(ours, read)(), getattr(theirs, read)())
    np.testing.assert_allclose(ours.get_rewards(), theirs.get_rewards(), rtol=rtol)
    for name in ("is_terminated", "is_truncated", "t_started", "t", "is_numpy"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs)
    assert list(ours.extra_model_outputs) == list(theirs.extra_model_outputs)
    assert ours.get_extra_model_outputs("n_step") == theirs.get_extra_model_outputs("n_step")
    if named:
        assert (ours.id_, ours.agent_id, ours.module_id) == (
            theirs.id_, theirs.agent_id, theirs.module_id,
        )  # fmt: skip


def number_of(obs: Any) -> int:
    """The number by which an observation is like no other."""
    obs = obs["at"] if isinstance(obs, dict) else obs
    return int(obs.ravel()[:4].view(np.int32)[0] if obs.dtype == np.uint8 else obs[0])


def first_number(item: Any) -> int:
    """The number of the first observation of a transition."""
    return number_of(item.get_observations(0))


def number_starts(theirs: Any) -> dict[int, tuple[str, int]]:
    """The episode and time step of each step, by the number of its observation."""
    return {
        number_of(obs): (episode.id_, t)
        for episode in theirs.episodes
        for t, obs in enumerate(list(episode.get_observations())[:-1])
    }
