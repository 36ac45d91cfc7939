"""What a cluster, its learners and its actors say of rows, waits and ages."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_cases import ELSEWHERE, cluster, fill, flush, kill_host, steps, until, wipe

from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.processes import Actor
from cpprb_like.ray import ClusterActor
from cpprb_like.ray._connection import Connection
from cpprb_like.report import describe


def test_stats_say_who_waited_for_whom_and_how_long(where: str) -> None:
    """Actors for learners, learners for actors, and for hosts by their numbers."""
    limiter = SampleToInsertRatio(2.0, 20, 40.0, timeout=30.0)
    with cluster(2, limiter=limiter) as replay, replay.actor() as actor:
        learner = replay.learner(seed=0, ahead=0)

        def add() -> None:
            time.sleep(0.5)
            for k in range(60):
                actor.add(**{name: values[0] for name, values in steps(k, 1).items()})
            flush(actor)

        thread = threading.Thread(target=add)
        thread.start()
        learner.sample(4)  # waits for the first 20 rows
        until(lambda: replay.stats()["inserts"] >= 40)
        time.sleep(0.5)  # the actor waits for samples
        for _ in range(20):
            learner.sample(4)
        thread.join()
        until(lambda: replay.stats()["inserts"] == 60)
        until(lambda: replay.stats()["seconds_waiting_for_samples"] > 0.4)
        stats = replay.stats()
        assert (stats["inserts"], stats["samples"], stats["rows"]) == (60, 84, 60)
        assert 0.4 < stats["seconds_waiting_for_inserts"] < 20.0
        assert stats["waits_for_inserts"] >= 1
        assert stats["waits_for_samples"] >= 1
        assert (stats["hosts"], stats["rows_lost"]) == (2, 0)
        assert 0.0 <= stats["age_of_counts"] < 20.0
        own = learner.stats()
        assert 0.4 < own["seconds_waiting_for_inserts"] < 20.0
        assert own["seconds_waiting_for_hosts"] == pytest.approx(
            own["seconds_waiting_for_host_0"] + own["seconds_waiting_for_host_1"]
        )
        assert (own["seconds_waiting_for_hosts"] > 0.0) == (where == ELSEWHERE)
        assert 0.0 <= own["age_of_batch"] < 20.0
        assert 0.0 <= own["age_of_masses"] < 20.0
        if isinstance(actor, ClusterActor):
            assert actor.stats()["adds"] == 60
            assert actor.stats()["seconds_waiting_for_samples"] > 0.4
            assert actor.stats()["seconds_waiting_for_host"] > 0.0
        else:
            assert isinstance(actor, Actor)


def test_a_report_has_the_rows_of_all_hosts(where: str, tmp_path: Path) -> None:
    """Each host reads its own: numbers of rows, episodes and findings are those of its rows."""
    with cluster(2) as replay:
        fill(replay, 0, steps(0, 200))
        fill(replay, 1, steps(200, 300) | {"rew": np.full(300, np.nan)})
        done: list[tuple[int, int]] = []
        found = replay.describe(progress=lambda *given: done.append(given))
        document = found.to_dict()
        rows = {buffer["path"]: buffer["rows"] for buffer in document["buffers"]}
        assert {path.split("/")[0]: n for path, n in rows.items() if n} == {
            "host-0": 200,
            "host-1": 300,
        }
        assert [one.name for one in found.findings if one.field == "rew"] == ["not-finite"]
        assert document["stats"]["hosts"] == 2
        assert done == [(1, 2), (2, 2)]
        replay.report(tmp_path / "page.html", ranges={"obs": (0.0, 1e6)})
        assert "host-1/" in (tmp_path / "page.html").read_text(encoding="utf-8")
        with pytest.raises(ValueError, match=r"^reward: expected"):
            replay.describe(reward="id of none")
        with pytest.raises(TypeError, match="draws: handles belong to a learner"):
            replay.report(tmp_path / "page.html", draws=[0])
        with replay.learner(seed=0) as learner, pytest.raises(TypeError, match="ClusterReplay"):
            learner.report(tmp_path / "page.html")
        with pytest.raises(TypeError, match=r"ClusterReplay\.describe"):
            describe(replay)


def test_samples_are_counted_without_a_limiter(where: str) -> None:
    """A moment later."""
    with cluster() as replay:
        fill(replay, 0, steps(0, 30))
        with replay.learner(seed=0) as learner:
            for _ in range(10):
                learner.sample(8)
        until(lambda: replay.stats()["samples"] == 80)


def test_a_learner_says_how_long_it_waited_for_a_host_that_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the number of the host."""
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    with cluster() as replay:
        fill(replay, 0, steps(0, 30))
        with replay.learner(seed=0, ahead=0) as learner:
            learner.sample(4)
            before = learner.stats()["seconds_waiting_for_host_0"]
            kill_host(replay.hosts[0])
            learner.sample(4)
            assert learner.stats()["seconds_waiting_for_host_0"] > before + 0.1


def test_an_actor_that_waits_for_the_limiter_finds_a_host_with_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new process knew no such writer, and the actor raised that."""
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    limiter = SampleToInsertRatio(1.0, 10, 1000.0, timeout=30.0)
    with cluster(limiter=limiter) as replay, replay.actor() as actor:
        actor.add(**steps(0, 30))
        flush(actor)
        about: Any = replay.hosts[0].call("about", timeout=20.0)
        until(lambda: replay.stats()["inserts"] == 30)
        wipe(replay, about)
        actor.add(**steps(30, 20))
        flush(actor)
        assert isinstance(actor, ClusterActor)
        assert actor.lost == 30
        assert actor.stats()["lost"] == 30
        with replay.learner(seed=0, ahead=0) as learner:
            assert set(learner.sample(200)["id"].tolist()) == set(range(30, 50))
