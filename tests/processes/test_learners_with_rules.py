"""Draws of learners by what rows say, against a look at the rows of all shards."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from helpers import Array
from scale import repeats

from cpprb_like import NotEnoughDataError
from cpprb_like._core import WORD_RESERVED
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Among, Rule, Sequences

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "tag": {"shape": (), "dtype": "i4"},
    "wide": {"shape": 300},
    "done": {"shape": (), "dtype": bool},
}


class Shards:
    """The actors of a replay, and what their rows say."""

    def __init__(self, replay: SharedReplay, chance: random.Random) -> None:
        self.actors = [replay.actor(number) for number in range(2)]
        self.rows: list[dict[int, int]] = [{}, {}]  # tags by the slot of each shard
        self.numbers: list[dict[int, int]] = [{}, {}]
        self.chance = chance
        self.x = 0

    def act(self) -> None:
        """Add, update or delete rows of one shard, or end its episode."""
        number = self.chance.randrange(2)
        actor, rows, chance = self.actors[number], self.rows[number], self.chance
        what = chance.choice(["add"] * 4 + ["update", "end", "delete"])
        if what == "add":
            for _ in range(chance.randint(1, 20)):
                tag = chance.choice([0, 0, 1, 2])
                slot = actor.get_next_index()
                done = chance.random() < 0.2
                actor.add(x=self.x, tag=tag, wide=np.full(300, tag), done=done)
                rows[slot], self.numbers[number][slot] = tag, self.x
                self.x += 1
        elif what == "update" and rows:
            slot, tag = chance.choice(sorted(rows)), chance.choice([0, 1, 2])
            actor.update([slot], tag=[tag], wide=np.full((1, 300), tag))
            rows[slot] = tag
        elif what == "end":
            actor.on_episode_end()
        elif what == "delete":
            ended = [k for k, one in enumerate(actor.episodes.list()) if one.terminated]
            if ended:
                slots, _ = actor.episodes._index.slots(ended[0])
                actor.episodes.delete(ended[0])
                for slot in slots.tolist():
                    rows.pop(slot, None)

    def tagged(self) -> dict[int, int]:
        """The tags of rows that have one, by their numbers."""
        return {
            numbers[slot]: tag
            for rows, numbers in zip(self.rows, self.numbers, strict=True)
            for slot, tag in rows.items()
            if tag
        }


class ByTag(Rule):
    """A rule with masses of its own."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["tag"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["tag"] / 2


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("name", ["tag", "wide"])
def test_a_learner_follows_what_rows_say(sampler: Any, name: str) -> None:
    """After each of some random changes by the actors: of small fields and of wide ones."""
    for seed in range(repeats(6, 2)):
        chance = random.Random(seed)
        with SharedReplay(40, FIELDS, writers=2) as replay:
            shards = Shards(replay, chance)
            learner = replay.learner(sampler(), seed=0)
            condition = Among("tag") if name == "tag" else Among(by_wide, "wide")
            view, items = learner.view(condition), learner.view(condition, Sequences(2))
            for _ in range(40):
                shards.act()
                tagged = shards.tagged()
                if not tagged:
                    with pytest.raises(NotEnoughDataError):
                        view.sample(1)
                    continue
                assert set(view.sample(20)["x"].tolist()) <= set(tagged)
                drawn = view.sample(len(tagged), replace=False)["x"].tolist()
                assert sorted(drawn) == sorted(tagged)
                with suppress(NotEnoughDataError):  # the only ones may have no second row yet
                    assert set(items.sample(20)["x"][:, 0].tolist()) <= set(tagged)


def by_wide(rows: Any) -> Array:
    """The condition, of a field that lies outside of the record."""
    found: Array = rows["wide"][:, 299] > 0
    return found


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_no_row_for_a_condition_is_an_error_that_says_so(sampler: Any) -> None:
    """It was an ``AttributeError`` where the buffers of the actors held rows."""
    with SharedReplay(40, FIELDS, writers=2) as replay:
        replay.actor(1).add(x=1, tag=0, wide=np.zeros(300), done=True)
        view = replay.learner(sampler(), seed=0).view(Among("tag"))
        with pytest.raises(NotEnoughDataError, match="holds 1 rows, of which none can be drawn"):
            view.sample(1)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("layers", [(), (Sequences(2),)])
def test_draws_from_all_shards_are_in_proportion(sampler: Any, layers: Any) -> None:
    """To masses times weights, as from one buffer; and ``mass`` of the view is their sum."""
    with SharedReplay(120, FIELDS, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        tags = [0, 0, 1, 2, 3]
        for x in range(60):
            actors[x % 3 > 0].add(x=x, tag=tags[x % 5], wide=np.zeros(300), done=True)
        learner = replay.learner(sampler(), seed=0)
        weights = np.ones(60)
        if learner.has_priorities:
            batch = learner.sample(60, replace=False)
            priorities = 0.1 + np.random.default_rng(0).random(60)
            learner.update_priorities(batch["indexes"], priorities[batch["x"]])
            chosen: Any = learner.sampler
            weights = (priorities + chosen.eps) ** chosen.alpha
        view = learner.view(ByTag(), *layers)
        masses = weights * np.array(tags * 12) / 2
        if learner.has_priorities:
            view.sample(1)
            with pytest.raises(ValueError, match="expected masses of 0 and 1"):
                view.mass()
            of_tags = learner.view(Among("tag"), *layers).mass().total
            assert of_tags == pytest.approx(weights[masses > 0].sum())
        else:
            assert view.mass().total == pytest.approx(masses.sum())
        batch = view.sample(30_000, 1.0) if learner.has_priorities else view.sample(30_000)
        drawn = batch["x"][:, 0] if layers else batch["x"]
        counts = np.bincount(drawn, minlength=60)
        there = masses > 0
        assert not counts[~there].any()
        expected = 30_000 * masses[there] / masses.sum()
        assert chi_square(counts[there], expected) < chi_square_limit(len(expected) - 1)
        if learner.has_priorities:
            found = weights[drawn].min() / weights[drawn]
            np.testing.assert_allclose(batch["weights"], found, rtol=1e-5)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_rows_that_an_actor_overwrites_are_left_out(sampler: Any) -> None:
    """An actor that was stopped within an ``add`` of many rows held up all draws of few rows."""
    with SharedReplay(64, FIELDS, writers=1) as replay:
        actor = replay.actor(0)
        for x in range(64):
            actor.add(x=x, tag=x < 8, wide=np.zeros(300), done=False)
        learner = replay.learner(sampler(), seed=0)
        view = learner.view(Among("tag"))
        assert set(view.sample(100)["x"].tolist()) == set(range(8))
        assert actor._files is not None
        header = actor._files.layout.state(actor._files.arena)
        header[WORD_RESERVED] = 68  # as if rows 0 to 3 were being overwritten
        assert set(view.sample(100)["x"].tolist()) == {4, 5, 6, 7}
        header[WORD_RESERVED] = 64
        assert view.mass().total == pytest.approx(4, rel=1e-3)


def test_rules_of_a_replay_with_n_step_returns() -> None:
    """Where most rows had a mass, draws raised ``TypeError``."""
    fields = FIELDS | {"rew": {"shape": ()}}
    steps: Any = {"size": 3, "rew": "rew", "gamma": 0.9}
    with SharedReplay(64, fields, writers=1, Nstep=steps) as replay:
        actor = replay.actor(0)
        for x in range(32):
            actor.add(x=x, tag=1, rew=1, wide=np.zeros(300), done=False)
        view = replay.learner(seed=0).view(Among("x"))
        assert set(view.sample(500)["x"].tolist()) == set(range(1, 30))
