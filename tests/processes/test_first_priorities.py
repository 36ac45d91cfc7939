"""First priorities: what actors say of their rows reaches learners; and what learners count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Sequences


@pytest.mark.parametrize("steps", [1, 3])
def test_rows_come_with_their_first_priorities(steps: int) -> None:
    """As in Ape-X: learners that are there, and later ones, draw by what actors said.

    Actors had no way to say it: each new row had the greatest priority.
    """
    nstep: Any = {"Nstep": {"size": steps, "rew": "x", "gamma": 1.0}} if steps > 1 else {}
    fields: Any = {"x": {"shape": ()}, "y": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    with SharedReplay(80, fields, writers=2, **nstep) as replay:
        early, uniform = replay.learner(Prioritized(), seed=0), replay.learner(seed=0)
        actors = [replay.actor(), replay.actor()]
        for t in range(20):
            for k, actor in enumerate(actors):
                priorities = 100.0 if (t, k) == (7, 1) else 1e-9
                actor.add(x=1, y=100 * k + t, done=t == 19, priorities=priorities)
                if t == 3:
                    early.sample(4)
        for learner in (early, replay.learner(Prioritized(), seed=0)):
            drawn = learner.sample(200)["y"]
            assert (drawn == 107).mean() > 0.9
            assert learner.get_max_priority() == 100.0
        assert len(np.unique(uniform.sample(500)["y"])) == 40
        actors[0].add(x=[1, 1], y=[50, 51], done=[False, True])
        if steps == 1:
            batch = early.sample(300)
            assert np.isin(batch["y"], [50, 51, 107]).mean() > 0.9, "new ones have the greatest"
            early.update_priorities(batch["indexes"], np.zeros(300))
            assert (early.sample(100)["y"] == 107).mean() < 0.2, "priorities are heard once"


def test_first_priorities_are_refused_with_the_step() -> None:
    """And then nothing is added; blocks of several environments have one for each row."""
    with SharedReplay(40, {"x": {"shape": ()}}, writers=1, n_envs=2) as replay:
        actor, learner = replay.actor(), replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        for wrong, error in ([1.0], ValueError), ([1.0, -1.0], ValueError), ("ab", TypeError):
            with pytest.raises(error, match="priorities"):
                actor.add(x=[1, 2], priorities=wrong)
        with pytest.raises(ValueError, match="x"):
            actor.add(x=["a", 2], priorities=[1, 2])
        assert len(learner) == 0
        actor.add(x=[[1, 2], [3, 4]], priorities=[[0, 0], [0, 5]])
        assert set(learner.sample(50)["x"].tolist()) == {4.0}
        actor.add_where([True, False], x=[5, 6], priorities=[7, 0])
        assert set(learner.sample(200)["x"].tolist()) == {4.0, 5.0}
        actor.clear()
        actor.add(x=[8, 9], priorities=[0, 1])
        assert set(learner.sample(50)["x"].tolist()) == {9.0}


def test_first_priorities_of_rows_that_are_gone_are_passed_over() -> None:
    """A log is as long as its shard: a learner that did not look for long reads what is left."""
    with SharedReplay(16, {"x": {"shape": ()}}, writers=1) as replay:
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        with replay.actor() as actor:
            for x in range(100):
                actor.add(x=[x, x + 0.5, x + 0.7], priorities=[0, 0, int(x == 96)])
        assert set(learner.sample(50)["x"].tolist()) == {np.float32(96.7).item()}
        with replay.actor() as actor:
            actor.add(x=np.arange(40), priorities=1.0 * (np.arange(40) == 30))
        assert set(learner.sample(50)["x"].tolist()) == {30.0}


def test_a_learner_that_goes_on_keeps_what_it_learned(tmp_path: Path) -> None:
    """A restored one does not hear again what rows came with."""
    with SharedReplay(16, {"x": {"shape": ()}}, writers=1) as replay:
        actor = replay.actor()
        actor.add(x=[1, 2, 3], priorities=[1, 1, 1])
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        batch = learner.sample(50)
        learner.update_priorities(batch["indexes"], 1.0 * (batch["x"] == 2))
        replay.save(tmp_path, learners={"main": learner})
        again = replay.restore_learner(tmp_path, "main")
        assert set(again.sample(50)["x"].tolist()) == {2.0}
        actor.add(x=4, priorities=0.5)
        assert set(again.sample(50)["x"].tolist()) == {2.0, 4.0}
        with SharedReplay.load(tmp_path) as loaded:
            assert set(loaded.restore_learner(tmp_path, "main").sample(50)["x"].tolist()) == {2.0}


def test_rows_of_a_replay_that_is_loaded_with_another_capacity(tmp_path: Path) -> None:
    """The learner learns what they come with; it knew other handles, and gave them the greatest."""
    with SharedReplay(16, {"x": {"shape": ()}}, writers=1) as replay:
        replay.actor().add(x=[0, 1, 2])
        replay.save(tmp_path)
    with SharedReplay.load(tmp_path, capacity=24) as replay:
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        replay.actor().add(x=[3, 4], priorities=[0, 0])
        assert set(learner.sample(50)["x"].tolist()) == {0.0, 1.0, 2.0}


def test_there_are_statistics_without_a_limiter() -> None:
    """Rows that were added, and items that were drawn: it was an error."""
    with SharedReplay(40, {"x": {"shape": ()}}, writers=2) as replay:
        assert {replay.stats()[name] for name in ("adds", "samples", "rows", "episodes")} == {0}
        actor = replay.actor()
        actor.add(x=np.arange(30))
        one, other = replay.learner(seed=0), replay.learner(Prioritized(), seed=0)
        one.sample(5)
        other.sample(7)
        one.view(Sequences(2)).sample(3)
        one.sample(2, replace=False)
        stats = replay.stats()
        assert (stats["adds"], stats["samples"], stats["rows"]) == (30, 17, 20)
