"""Draws of learners by shares of values, against a look at the rows of all shards."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from reference_shares import equal, probabilities
from scale import repeats

from cpprb_like import NotEnoughDataError
from cpprb_like._core import WORD_RESERVED
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Sequences, Share

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "task": {"shape": (), "dtype": "i4"},
    "done": {"shape": (), "dtype": bool},
}


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_a_learner_follows_the_values_of_all_shards(sampler: Any) -> None:
    """After each of some random changes by the actors: rows of values come and go."""
    for seed in range(repeats(6, 2)):
        chance = random.Random(seed)
        with SharedReplay(40, FIELDS, writers=2) as replay:
            actors = [replay.actor(number) for number in range(2)]
            learner = replay.learner(sampler(), seed=0)
            given: dict[float, float] = {0: 0.5, 1: 0.3, 2: 0.2}
            views = {"equal": learner.view(Share({"task": "equal"})), "given": None}
            views["given"] = learner.view(Share({"task": given}))
            tasks: list[dict[int, tuple[int, int]]] = [{}, {}]  # number and task by slot
            for x in range(60):
                number = chance.randrange(2)
                actor, rows = actors[number], tasks[number]
                if rows and chance.random() < 0.3:
                    slot, task = chance.choice(sorted(rows)), chance.randrange(4)
                    actor.update([slot], task=[task])
                    rows[slot] = rows[slot][0], task
                else:
                    task = chance.choice([x // 20, 1, 2])
                    rows[actor.get_next_index()] = x, task
                    actor.add(x=x, task=task, done=chance.random() < 0.3)
                of_x = dict(pair for rows in tasks for pair in rows.values())
                for name, view in views.items():
                    compare(view, of_x, given if name == "given" else equal([*of_x.values()]))


def compare(view: Any, of_x: dict[int, int], shares: dict[float, float]) -> None:
    """Compare a batch with the tasks of all rows."""
    values = list(of_x.values())
    chances = probabilities(values, [1.0] * len(values), shares)
    if not chances.any():
        with pytest.raises(NotEnoughDataError):
            view.sample(4)
        return
    batch = view.sample(30)
    assert [of_x[x] for x in batch["x"].tolist()] == batch["task"].tolist()
    counts = Counter(batch["task"].tolist())
    for value in shares:
        wanted = 30 * sum(chances[k] for k, one in enumerate(values) if one == value)
        assert abs(counts[int(value)] - wanted) < 1 + 1e-6


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("layers", [(), (Sequences(2),)])
def test_draws_from_all_shards_are_in_proportion(sampler: Any, layers: Any) -> None:
    """To shares, then weights; with one scale of the weights of a batch."""
    with SharedReplay(120, FIELDS, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        for x in range(60):
            actors[x % 3 > 0].add(x=x, task=x // 7 % 4, done=True)
        learner = replay.learner(sampler(), seed=0)
        weights = np.ones(60)
        if learner.has_priorities:
            batch = learner.sample(60, replace=False)
            priorities = 0.1 + np.random.default_rng(0).random(60)
            learner.update_priorities(batch["indexes"], priorities[batch["x"]])
            chosen: Any = learner.sampler
            weights = (priorities + chosen.eps) ** chosen.alpha
        shares: dict[float, Any] = {3: 0.2, 1: 0.5, 0: 0.3, 9: 5}
        view = learner.view(Share({"task": shares}), *layers)
        values = (np.arange(60) // 7 % 4).tolist()
        chances = probabilities(values, weights.tolist(), shares)
        batch = view.sample(8_000, 1.0) if learner.has_priorities else view.sample(8_000)
        drawn = batch["x"][:, 0] if layers else batch["x"]
        counts = np.bincount(drawn, minlength=60)
        there = chances > 0
        assert not counts[~there].any()
        expected = 8_000 * chances[there]
        assert chi_square(counts[there], expected) < chi_square_limit(len(expected) - 1)
        if learner.has_priorities:
            found = weights[drawn].min() / weights[drawn]
            np.testing.assert_allclose(batch["weights"], found, rtol=1e-5)
            with pytest.raises(ValueError, match="expected masses of 0 and 1"):
                view.mass()
        few = view.sample(6, replace=False)["x"].reshape(6, -1)[:, 0]
        assert len(np.unique(few)) == few.size
        with pytest.raises(NotEnoughDataError, match="distinct rows of task 1"):
            view.sample(55, replace=False)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("replace", [True, False])
def test_parts_are_right_beside_an_actor_that_overwrites_rows(sampler: Any, replace: bool) -> None:
    """Draws that leave out the oldest rows had them mixed up, and of wrong numbers."""
    with SharedReplay(256, FIELDS, writers=1) as replay:
        actor = replay.actor(0)
        for x in range(256):
            actor.add(x=x, task=x % 2, done=False)
        view = replay.learner(sampler(), seed=0).view(Share({"task": {0: 0.25, 1: 0.75}}))
        assert actor._files is not None
        header = actor._files.layout.state(actor._files.arena)
        for written in range(8, 128, 8):
            header[WORD_RESERVED] = 256 + written  # as if older rows were being overwritten
            batch = view.sample(64, replace=replace)
            assert batch["task"].tolist() == [0] * 16 + [1] * 48
            assert batch["x"].min() >= written
            assert replace or len(set(batch["x"].tolist())) == 64


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_values_that_are_replaced_in_all_shards_count_no_more(sampler: Any) -> None:
    """Between two draws; more than 64 that are there are refused."""
    with SharedReplay(200, FIELDS, writers=2) as replay:
        actors = [replay.actor(number) for number in range(2)]
        view = replay.learner(sampler(), seed=0).view(Share({"task": "equal"}))
        none = np.zeros(100)
        for start in (0, 50, 100, 10):
            for actor in actors:
                actor.add(x=np.arange(100), task=start + np.arange(100) % 50, done=none)
            assert sorted(view.sample(50)["task"].tolist()) == list(range(start, start + 50))
        actors[0].add(x=np.arange(100), task=np.arange(100) % 15 + 100, done=none)
        for _ in range(2):
            with pytest.raises(ValueError, match="at most 64 values"):
                view.sample(4)
        actors[0].add(x=np.arange(100), task=np.arange(100) % 2 + 10, done=none)
        assert sorted(view.sample(50)["task"].tolist()) == list(range(10, 60))
