"""Processes of a cluster die at chosen moments: each row and each update has its effect once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from cluster_cases import (
    ELSEWHERE,
    cluster,
    fill,
    flush,
    kill_host,
    masses_of,
    pid_of,
    steps,
    until,
    wipe,
)
from local_ray import ray

from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.ray._calls import call
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._places import HostReplay, WriterPlace
from cpprb_like.samplers import Prioritized


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)


def kill_ledger(replay: ClusterReplay) -> None:
    """Kill the process of the ledger."""
    os.kill(call(replay._connection.ledger, "pid", timeout=20.0), signal.SIGKILL)


def ids_of(replay: ClusterReplay) -> list[int]:
    """The numbers of all rows of the first host."""
    about = replay.hosts[0].call("about", timeout=30.0)
    with HostReplay.on_node(about.replay, about.base, None).learner() as learner:
        return sorted(learner.sample(len(learner), replace=False)["id"].tolist())


@pytest.mark.usefixtures("_elsewhere")
def test_updates_of_a_host_that_was_killed_have_their_effect_in_their_order() -> None:
    """A later update that came first to the new process had the earlier ones be passed over."""
    with cluster() as replay:
        fill(replay, 0, steps(0, 40))
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, ahead=0) as learner:
            batch = learner.sample(400)
            handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
            assert len(handles) == 40
            old = pid_of(replay.hosts[0])
            os.kill(old, signal.SIGKILL)
            for row in range(6):
                learner.update_priorities([handles[row]], [1.0 + row])
            until(lambda: pid_of(replay.hosts[0]) != old)
            learner.sample(4)  # the learner knows the new process from here on
            learner.update_priorities([handles[7]], [8.0])
            learner.flush()
            assert learner.stats()["updates"] == 7
            found = masses_of(replay.hosts[0], learner)
            for row in range(6):
                assert found[row] == 1.0 + row


def take(own: HostReplay, shard: int) -> Any:
    """The actor of a shard, as soon as the process that had it has ended."""
    found: list[Any] = []

    def look() -> bool:
        with contextlib.suppress(BlockingIOError):
            found.append(own.actor(shard))
        return bool(found)

    until(look)
    return found[0]


@pytest.mark.usefixtures("_elsewhere")
def test_a_shard_that_another_took_while_its_host_was_away_has_each_row_once() -> None:
    """The rows of the process that took it do not count as those of the writer before."""
    with cluster(writers=3) as replay, replay.actor() as writer:
        assert isinstance(writer, ClusterActor)
        about = replay.hosts[0].call("about", timeout=30.0)
        own = HostReplay.on_node(about.replay, about.base, None)
        for k in range(100):
            writer.add(**{name: values[0] for name, values in steps(k, 1).items()})
        writer.flush()
        kill_host(replay.hosts[0])

        other = take(own, writer.number)
        other.add(**steps(1000, 40))
        for k in range(100, 260):
            writer.add(**{name: values[0] for name, values in steps(k, 1).items()})
        writer.flush()
        assert writer.number != other.number
        assert ids_of(replay) == [*range(260), *range(1000, 1040)]
        assert writer.lost == 0
        other.close()
        own.close()  # else this process has the memory open until its garbage is collected


def test_a_place_is_that_of_before_until_its_writer_knows_it() -> None:
    """The answer to a call that opened it may be lost."""
    place = WriterPlace("a", 3, before=120, rows=500)
    assert place.rows_of(3) == 500
    assert place.rows_of(2) == 120


@pytest.mark.usefixtures("_elsewhere")
def test_counts_and_losses_outlive_the_ledger() -> None:
    """The hosts keep them: limits go on, and later parameters are newer than the ones before."""
    limiter = SampleToInsertRatio(2.0, 20, 100.0, timeout=20.0)
    with cluster(2, limiter=limiter) as replay, replay.actor() as actor:
        actor.add(**steps(0, 50))
        actor.flush()
        with replay.learner(seed=0, ahead=0) as learner:
            until(lambda: replay.stats()["inserts"] == 50)
            for _ in range(4):
                learner.sample(16)
            version = [replay.parameters.publish({"w": np.ones(2)}) for _ in range(3)][-1]
            until(lambda: replay.stats()["samples"] == 64)
            time.sleep(0.3)  # the hosts have heard of it
            kill_ledger(replay)
            until(lambda: replay.stats()["samples"] == 64)
            assert replay.stats()["inserts"] == 50
            assert replay.parameters.publish({"w": np.zeros(2)}) == version + 1
            latest = replay.parameters.latest(after=version)
            assert latest is not None
            assert not latest[1]["w"].any()
            learner.sample(16)
            assert replay.stats()["samples"] == 80


def test_a_loss_is_reported_though_the_ledger_died_as_well() -> None:
    """Without a checkpoint it is of all rows, since the host began."""
    with cluster(2) as replay:
        fill(replay, 0, steps(0, 30))
        until(lambda: replay.stats()["inserts"] == 30)
        time.sleep(0.5)
        about = replay.hosts[0].call("about", timeout=20.0)
        kill_ledger(replay)
        wipe(replay, about)
        until(lambda: replay.losses() != [], 60.0)
        (loss,) = replay.losses()
        assert (loss.host, loss.rows) == (0, 30)
        assert 0.4 < loss.seconds < 60.0
        assert about.moment - 1.0 < loss.moment < time.time()


@pytest.mark.usefixtures("_elsewhere")
def test_rows_that_were_written_while_a_host_was_not_heard_of_are_reported_as_lost() -> None:
    """Their actor on another node knows of them, and tells it when it is back."""
    with cluster() as replay, replay.actor() as actor:
        actor.add(**steps(0, 30))
        flush(actor)
        until(lambda: replay.stats()["inserts"] == 30)
        about = replay.hosts[0].call("about", timeout=20.0)
        ledger = call(replay._connection.ledger, "pid", timeout=20.0)
        os.kill(ledger, signal.SIGSTOP)
        try:
            actor.add(**steps(30, 20))
            flush(actor)
            wipe(replay, about)
        finally:
            os.kill(ledger, signal.SIGCONT)
        actor.add(**steps(50, 10))
        flush(actor)
        assert [loss.rows for loss in replay.losses()] == [50]
        assert ids_of(replay) == list(range(50, 60))
        until(lambda: replay.stats()["inserts"] == 60)


@pytest.mark.parametrize(("hosts", "ahead"), [(1, 2), (2, 0), (2, 2)])
def test_a_host_of_the_learners_node_that_lost_its_memory_is_noticed_at_a_draw(
    hosts: int, ahead: int
) -> None:
    """The learner went on to draw the old rows, until its length was asked for."""
    with cluster(hosts) as replay:
        fill(replay, 0, steps(0, 20))
        about = replay.hosts[0].call("about", timeout=20.0)
        with replay.learner(seed=0, ahead=ahead) as learner:
            assert learner.sample(8)["id"].max() < 20
            wipe(replay, about)
            fill(replay, 0, steps(100, 20))
            until(lambda: learner.sample(8)["id"].min() >= 100, 60.0)


@pytest.mark.usefixtures("_elsewhere")
def test_updates_of_the_next_memory_of_a_host_take_effect_after_a_late_answer_of_the_last() -> None:
    """The host passed over as many of them as the memory before had got."""
    with cluster() as replay:
        fill(replay, 0, steps(0, 20))
        about = replay.hosts[0].call("about", timeout=20.0)
        with replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0, ahead=0) as learner:
            for number in range(5):
                learner.update_priorities(learner.sample(8)["indexes"], np.full(8, 1.0 + number))
            learner.flush()
            wipe(replay, about)
            fill(replay, 0, steps(100, 20))
            (part,) = learner._directory.parts.values()
            learner._directory.is_down(part)
            part.question = ray.put(about)  # the host was asked before its node died
            until(lambda: learner.sample(8)["id"].min() >= 100, 60.0)
            batch = learner.sample(200)
            handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
            learner.update_priorities(list(handles.values()), 50.0 + np.arange(len(handles)))
            learner.flush()
            assert masses_of(replay.hosts[0], learner) == dict(
                zip(handles, 50.0 + np.arange(20), strict=True)
            )
