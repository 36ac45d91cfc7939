"""A learner against one obvious model, over histories of several shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_shards import ReferenceShards, ShardRow

from cpprb_like import NotEnoughDataError
from cpprb_like.processes import Actor, Learner, SharedReplay
from cpprb_like.samplers import Prioritized, Sampler, Uniform

ALPHA, EPS, BETA = 0.7, 0.01, 0.5
EPISODE = 4
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "proof": {"shape": (40,), "dtype": "f4"},  # in a block of its own
    "done": {"shape": (), "dtype": bool},
}


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "prioritized": lambda: Prioritized(ALPHA, beta=BETA, eps=EPS, probabilities=True),
    "uniform": Uniform,
}


def values(numbers: npt.NDArray[np.int64], ends: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The fields of rows."""
    proof = np.broadcast_to((numbers % 9973)[:, None], (len(numbers), 40))
    return {"id": numbers, "proof": proof, "done": ends}


class History:
    """A shared replay, its actors, a learner, and the model of all of them."""

    def __init__(
        self, n_shards: int, capacity: int, nstep: int, n_envs: int, kind: str, seed: int
    ) -> None:
        options: dict[str, Any] = {"n_envs": n_envs}
        if nstep > 1:
            options["Nstep"] = {"size": nstep, "rew": [], "next": []}
        self.replay = SharedReplay(n_shards * capacity, FIELDS, writers=n_shards, **options)
        self.actors: list[Actor] = [self.replay.actor(number) for number in range(n_shards)]
        self.kind = kind
        self.learner: Learner = self.replay.learner(SAMPLERS[kind](), seed=seed)
        self.model = ReferenceShards(n_shards, capacity, ALPHA, EPS, nstep, n_envs)
        self.rng = np.random.default_rng(seed)
        self.next_id = 0
        self.drawn: list[tuple[npt.NDArray[np.int64], list[ShardRow]]] = []

    def add(self, shard: int, n: int) -> None:
        count = n * self.model.n_envs  # of so many time steps
        numbers = np.arange(self.next_id, self.next_id + count)
        self.next_id += count
        ends = self.rng.random(count) < 1 / EPISODE
        fields = values(numbers, ends)
        if self.model.n_envs > 1:
            shape = (n, self.model.n_envs)
            fields = {
                name: value.reshape(*shape, *value.shape[1:]) for name, value in fields.items()
            }
        self.actors[shard].add(**fields)
        for number, end in zip(numbers.tolist(), ends.tolist(), strict=True):
            self.model.add(shard, ShardRow(number, end))

    def end(self, shard: int) -> None:
        self.actors[shard].on_episode_end()
        self.model.end_episode(shard)

    def clear(self, shard: int) -> None:
        self.actors[shard].clear()
        self.model.clear(shard)

    def take_over(self, shard: int) -> None:
        """An actor ends, and another one takes its shard."""
        self.actors[shard].close()
        self.actors[shard] = self.replay.actor(shard)
        self.model.end_episode(shard)

    def delete(self, shard: int) -> None:
        """The oldest episode that has ended is hidden."""
        actor = self.actors[shard]
        episodes = actor.episodes.list()
        ended = [k for k, one in enumerate(episodes) if one.terminated or one.truncated]
        if not ended:
            return
        gone = set(actor.episodes.read(ended[0])["id"].tolist())
        actor.episodes.delete(ended[0])
        for row in self.model.shards[shard]:
            row.hidden = row.hidden or row.number in gone

    def draw(self, n: int, replace: bool) -> None:
        """A batch has the probabilities and weights of the model."""
        self.model.follow()
        rows = self.model.rows()
        assert len(self.learner) == len(rows)
        if not rows or (not replace and n > len(rows)):
            with pytest.raises(NotEnoughDataError):
                self.learner.sample(n, replace=replace)
            return
        batch = self.learner.sample(n, replace=replace)
        assert len(batch["id"]) == n
        assert set(batch["id"].tolist()) <= set(rows)
        if not replace:
            assert len(set(batch["id"].tolist())) == n
        np.testing.assert_array_equal(batch["proof"], values(batch["id"], batch["done"])["proof"])
        if self.learner.has_priorities:
            found = [rows[number] for number in batch["id"].tolist()]
            self.drawn.append((batch["indexes"], found))
        if self.kind == "prioritized":
            self.check_weights(batch, rows)

    def check_weights(self, batch: dict[str, Any], rows: dict[int, ShardRow]) -> None:
        """Probabilities and weights are those of one buffer with all rows."""
        total = sum(row.weight for row in rows.values())
        least = min(row.weight for row in rows.values())
        found = [rows[number] for number in batch["id"].tolist()]
        weights = np.array([row.weight for row in found])
        np.testing.assert_allclose(batch["probabilities"], weights / total)
        np.testing.assert_allclose(batch["weights"], (weights / least) ** -BETA, rtol=1e-6)

    def update(self, which: int) -> None:
        """Priorities of a batch, perhaps an old one: rows that are gone are passed over."""
        if not self.drawn:
            return
        indexes, rows = self.drawn[which % len(self.drawn)]
        priorities = self.rng.random(len(rows)) * 5
        self.learner.update_priorities(indexes, priorities)
        self.model.follow()
        for row, priority in zip(rows, priorities.tolist(), strict=True):
            self.model.update(row, priority)
        assert self.learner.get_max_priority() == self.model.greatest
        (member,) = [one for one in self.replay.members() if one.kind == "learner"]
        assert (member.updates, member.late_updates) == (self.model.given, self.model.late)


shards = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("add"), shards, st.integers(1, 9)),
    st.tuples(st.just("add"), shards, st.integers(1, 9)),
    st.tuples(st.just("draw"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("draw"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("update"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["end", "clear", "take_over", "delete"]), shards),
)


@given(
    st.lists(steps, max_size=30),
    st.integers(2, 7),
    st.sampled_from([1, 1, 3]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from(["prioritized", *SAMPLERS]),
    st.integers(0, 2**32 - 1),
)
def test_draws_and_updates_are_those_of_one_model(
    history: list[tuple[Any, ...]], capacity: int, nstep: int, n_envs: int, kind: str, seed: int
) -> None:
    """Whatever actors do in between: add, wrap, end episodes, hide them, clear, end, take over."""
    one = History(3, capacity * n_envs, nstep, n_envs, kind, seed)
    try:
        for name, *arguments in [*history, ("draw", 4, True)]:
            getattr(one, name)(*arguments)
    finally:
        for actor in one.actors:
            actor.close()
        one.replay.close()


def test_a_learner_knows_the_lengths_of_open_episodes() -> None:
    """Where no episode of an update ended, flags before its first row were read, at random."""
    replay = SharedReplay(100, FIELDS, writers=1)
    with replay, replay.actor(0) as actor:
        learner = replay.learner(Uniform(), seed=0)
        for first in range(0, 60, 5):
            numbers = np.arange(first, first + 5)
            actor.add(**values(numbers, numbers == 27))
            assert len(learner) == first + 5
            ring = learner._shards.reader(0).ring
            assert ring.episode_len(0) == actor.ring.episode_len(0)
