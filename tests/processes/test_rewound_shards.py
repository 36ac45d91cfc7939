"""Shards that go back to a row: learners follow, and a kill leaves all or none."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from forked import outcome
from scale import KILLS
from shared_rows import CHAINED, CHAINED_OPTIONS, FIELDS, chained, check, ids, plain

from cpprb_like import checkpoint
from cpprb_like._core import stop_at
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Hindsight, Sequences

pytestmark = pytest.mark.once

forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def ids_of(learner: Any) -> list[int]:
    """The numbers of all rows that a learner can draw, each once."""
    if len(learner) == 0:
        return []
    found: list[int] = sorted(learner.sample(len(learner), replace=False)["id"].tolist())
    return found


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_learners_follow_actors_that_go_back(sampler: Any) -> None:
    """Their draws, views and episodes have no row that was forgotten, and new rows are drawn."""
    with SharedReplay(200, CHAINED, writers=2, **CHAINED_OPTIONS) as replay:
        learner = replay.learner(sampler(), seed=0)
        sequences = learner.view(Sequences(3))
        actors = [replay.actor(number) for number in range(2)]
        for number, actor in enumerate(actors):
            actor.add(**chained(ids(number, 0, 40)))
        old = learner.sample(50, indexes=True) if sampler is Uniform else learner.sample(50)
        sequences.sample(10)
        rows = replay.rows
        assert rows == (40, 40)
        for number, actor in enumerate(actors):
            actor.add(**chained(ids(number, 40, 70)))
        gone = learner.sample(50, indexes=True) if sampler is Uniform else learner.sample(50)
        ids_of(learner)
        assert actors[1].rewind(rows[1]) == 30
        assert ids_of(learner) == [*ids(0, 0, 70), *ids(1, 0, 40)]
        assert actors[0].rewind(33) == 37
        kept = [*ids(0, 0, 33), *ids(1, 0, 40)]
        assert ids_of(learner) == kept
        batch = learner.sample(200)
        check(batch, chained)
        assert np.isin(batch["id"], kept).all()
        assert np.isin(sequences.sample(100)["id"], [0, *kept]).all()
        if sampler is Prioritized:
            late = learner.stats()["late_updates"]
            learner.update_priorities(gone["indexes"], np.ones(50))
            is_late = ~np.isin(gone["id"], kept)
            assert is_late.any()
            assert learner.stats()["late_updates"] - late == is_late.sum()
            learner.update_priorities(old["indexes"], np.ones(50))
        actors[0].add(**chained(ids(0, 100, 110)))
        assert ids_of(learner) == sorted([*kept, *ids(0, 100, 110)])
        check(learner.sample(200), chained)
        stats = replay.stats()
        assert stats["rows"] == len(learner) == len(kept) + 10
        ends = sum((number % 7 == 6) for number in [*range(33), *range(40), *range(100, 110)])
        assert stats["episodes"] == ends + 2  # both were cut


def test_goals_are_of_rows_that_are_left() -> None:
    """A learner knew the episode that was cut to be longer: its last row was a goal."""
    fields: dict[str, Any] = {
        "goal": {"shape": 1},
        "at": {"shape": 1},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": bool},
    }
    with SharedReplay(100, fields, writers=1) as replay, replay.actor() as actor:
        view = replay.learner(seed=0).view(
            Hindsight(
                lambda achieved, goal, rows: np.zeros(len(goal)),
                goal="goal",
                achieved="at",
                strategy="final",
                relabel_ratio=1.0,
            )
        )
        at = np.arange(1.0, 41.0)[:, None]
        actor.add(goal=0 * at, at=at, rew=at[:, 0], done=np.arange(40) == 39)
        assert set(view.sample(50)["goal"].ravel().tolist()) == {40.0}
        actor.rewind(20)
        assert set(view.sample(50)["goal"].ravel().tolist()) == {20.0}


def test_a_replay_without_actors_goes_back_to_a_checkpoint(tmp_path: Any) -> None:
    """All writers at once; what was forgotten is in no later checkpoint."""
    with SharedReplay(300, FIELDS, writers=3) as replay:
        for number in range(2):
            with replay.actor(number) as actor:
                actor.add(**plain(ids(number, 0, 20 + number)))
        replay.save(tmp_path)
        saved = checkpoint.inspect(tmp_path)
        assert (saved.state, saved.rows) == (1, (20, 21, 0))
        actor = replay.actor(1)
        actor.add(**plain(ids(1, 21, 50)))
        with pytest.raises(BlockingIOError, match="writer 1 by process"):
            replay.rewind(saved.rows)
        assert replay.rows == (20, 50, 0)
        actor.close()
        bad: Any
        for bad, error, what in [
            (5, TypeError, "rows: expected 3 integers in a sequence, got 5"),
            ((20, 21), ValueError, "rows: expected one for each of 3 writers"),
            ((20, 21, 1), ValueError, r"rows\[2\]: expected at most 0, got 1"),
            ((20, -1, 0), ValueError, r"rows\[1\]: expected at least 0, got -1"),
            ((20, 2.0, 0), TypeError, r"rows\[1\]: expected an integer, got 2.0"),
        ]:
            with pytest.raises(error, match=what):
                replay.rewind(bad)
        assert len(replay.learner()) == 70
        assert replay.rewind(saved.rows) == 29
        assert replay.rewind(saved.rows) == 0
        assert ids_of(replay.learner()) == [*ids(0, 0, 20), *ids(1, 0, 21)]
        replay.save(tmp_path)
        assert checkpoint.inspect(tmp_path).rows == (20, 50, 0)
        again = SharedReplay.load(tmp_path)
        assert ids_of(again.learner()) == [*ids(0, 0, 20), *ids(1, 0, 21)]
        assert again.rows == (20, 50, 0)
        again.close()


@pytest.mark.parametrize("capacity", [None, 900, 60])
def test_rows_go_on_in_a_replay_of_another_capacity(tmp_path: Any, capacity: int | None) -> None:
    """It goes back to the checkpoint that it was loaded from. It had forgotten all rows."""
    with SharedReplay(300, FIELDS, writers=2) as replay:
        with replay.actor(1) as actor:
            actor.add(**plain(ids(1, 0, 9)))
            actor.clear()
            actor.add(**plain(ids(1, 9, 25)))
        replay.save(tmp_path)
    saved = checkpoint.inspect(tmp_path)
    assert saved.rows == (0, 25)
    options: dict[str, Any] = {} if capacity is None else {"capacity": capacity}
    with SharedReplay.load(tmp_path, **options) as replay:
        assert replay.rows == saved.rows
        for number, start in enumerate(saved.rows):
            with replay.actor(number) as actor:
                actor.add(**plain(ids(number, start, start + 8)))
        assert replay.rows == (8, 33)
        assert replay.rewind(saved.rows) == 16
        assert ids_of(replay.learner()) == ids(1, 9, 25).tolist()


def test_an_actor_that_added_nothing_since_ends_its_episode() -> None:
    """Its environment is reset as the others are. The next episode was joined to the open one."""
    with SharedReplay(100, FIELDS, writers=2) as replay:
        pairs = replay.learner(seed=0).view(Sequences(2))
        actors = [replay.actor(number) for number in range(2)]
        for number, actor in enumerate(actors):
            actor.add(**plain(ids(number, 0, 4)))
        pairs.sample(5)
        rows = replay.rows
        actors[0].add(**plain(ids(0, 4, 6)))
        assert [actors[number].rewind(rows[number]) for number in range(2)] == [2, 0]
        for number, actor in enumerate(actors):
            actor.add(**plain(ids(number, 10, 13)))
            assert [one.length for one in actor.episodes.list()] == [4, 3]
            joined = [*ids(number, 3, 4), *ids(number, 10, 11)]
            assert joined not in pairs.sample(200)["id"].tolist()
        assert replay.stats()["episodes"] == 2


@forking
def test_rows_beside_an_actor_that_clears() -> None:
    """They never go back: the two words that a clear changes were read one after the other."""
    with SharedReplay(100, {"x": {"shape": ()}}, writers=1) as replay:
        replay.actor(0).close()
        until = time.monotonic() + 0.5

        def job() -> None:
            with replay.actor(0) as actor:
                while time.monotonic() < until:
                    actor.add(x=np.zeros(50))
                    actor.clear()

        def read() -> None:
            last = 0
            while time.monotonic() < until:
                (rows,) = replay.rows
                assert last <= rows
                last = rows
            assert last > 1000

        pid = os.fork()
        if pid == 0:
            try:
                job()
            finally:
                os._exit(0)
        try:
            read()
        finally:
            os.waitpid(pid, 0)


@forking
def test_rows_of_an_actor_that_was_killed_within_a_change() -> None:
    """Their number is not known before its shard is repaired. ``rewind`` repairs it."""
    with SharedReplay(60, FIELDS, writers=2) as replay:
        with replay.actor(0) as actor:
            actor.add(**plain(ids(0, 0, 40)))

        def job() -> None:
            actor = replay.actor(0)
            stop_at("rewinding", signal.SIGKILL, 5)
            actor.rewind(30)

        assert outcome(job) == -signal.SIGKILL
        with pytest.raises(BlockingIOError, match="writer 0 was killed or stopped while"):
            _ = replay.rows
        assert replay.stats()["adds"] == 40
        with pytest.raises(ValueError, match=r"rows\[0\]: expected at most 40"):
            replay.rewind((41, 0))
        assert replay.rewind((20, 0)) == 10
        assert replay.rows == (40, 0)


@forking
def test_an_actor_that_is_killed_at_each_store() -> None:
    """A learner in another process draws the rows before, or those after, once it is repaired."""
    with SharedReplay(60, CHAINED, writers=1, **CHAINED_OPTIONS) as replay:
        learner = replay.learner(seed=0)
        start, kills = 0, 0
        for visit in range(1, 1000):
            with replay.actor(0) as actor:
                actor.add(**chained(ids(0, start, start + 40)))
            start += 40
            before = ids_of(learner)

            def job(visit: int = visit) -> None:
                actor = replay.actor(0)
                stop_at("rewinding", signal.SIGKILL, visit if KILLS >= 1000 else 4 * visit - 3)
                actor.rewind(actor.rows - 12)

            code = outcome(job)
            after = [one for one in before if one < start - 12]
            assert ids_of(learner) == after, visit
            check(learner.sample(100), chained)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
        assert kills > 5
