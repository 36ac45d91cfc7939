"""Hosts that are stopped, as by a partition, and writers that fall silent: others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cluster_cases import (
    ELSEWHERE,
    FIELDS,
    cluster,
    fill,
    filled,
    masses_of,
    pid_of,
    steps,
    until,
)

import cpprb_like.ray._ahead as asking
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.ray import ClusterActor
from cpprb_like.ray._calls import Host
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._parameters import INTERVAL
from cpprb_like.ray._updates import UPDATES_AHEAD
from cpprb_like.samplers import Prioritized

LONG = 20.0  # seconds of a call that waits for a stopped host; a time-out is longer


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def add_each(actor: Any, n: int) -> None:
    """Add steps one by one."""
    for k in range(n):
        actor.add(**{name: values[0] for name, values in steps(k, 1).items()})


@pytest.mark.usefixtures("_elsewhere")
def test_a_stopped_host_costs_its_rows_only() -> None:
    """Draws, new actors and learners, and parameters waited for it until their time-outs."""
    with filled([40, 40, 40], writers=4) as replay:
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, batches=4) as learner:
            version = replay.parameters.publish({"w": np.zeros(4)})
            learner.update_priorities(learner.sample(32)["indexes"], np.ones(32))
            own = pid_of(replay.hosts[2])
            with stopped(own):
                calls: dict[str, Callable[[], Any]] = {
                    "actor(host=0)": lambda: replay.actor(host=0).close(),
                    "actor()": lambda: replay.actor().close(),
                    "sample": lambda: [learner.sample(32) for _ in range(40)],
                    "publish": lambda: replay.parameters.publish({"w": np.ones(4)}),
                    "latest": lambda: replay.parameters.wait(version + 1),
                    "members": replay.members,
                    "learner()": lambda: replay.learner(seed=1).close(),
                }
                waits = {}
                for name, call in calls.items():
                    began = time.monotonic()
                    call()
                    waits[name] = time.monotonic() - began
                assert max(waits.values()) < LONG, waits
                assert learner.sample(200)["id"].max() < 80
                began = time.monotonic()
                for number in range(3 * UPDATES_AHEAD):
                    batch = learner.sample(8)
                    learner.update_priorities(batch["indexes"], np.full(8, 1.0 + number))
                assert time.monotonic() - began < LONG
            until(lambda: learner.sample(200)["id"].max() >= 80, 60.0)
            learner.flush()
            assert learner.stats()["late_updates"] == 0
            assert replay.losses() == []

            def has_newest() -> bool:
                found = replay.hosts[2].call("parameters", version, timeout=20.0)
                return found is not None and bool(found[1]["w"].all())

            until(has_newest)


@pytest.mark.usefixtures("_elsewhere")
def test_updates_for_a_stopped_host_take_effect_when_it_goes_on() -> None:
    """Each of them once, in their order; the learner does not wait for them."""
    with filled([30, 30], writers=2) as replay:
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, ahead=0) as learner:
            batch = learner.sample(300)
            handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
            assert len(handles) == 60
            with stopped(pid_of(replay.hosts[1])):
                learner.sample(8)
                began = time.monotonic()
                for number in range(1500):
                    learner.update_priorities([handles[30 + number % 30]], [2.0 + number])
                assert time.monotonic() - began < LONG
            learner.flush()
            assert learner.stats()["updates"] == 1500
            assert learner.stats()["late_updates"] == 0
            expected = {30 + number % 30: 2.0 + number for number in range(1470, 1500)}
            assert masses_of(replay.hosts[1], learner) == expected


@pytest.mark.usefixtures("_elsewhere")
def test_flush_beside_a_stopped_host_raises_and_its_updates_wait() -> None:
    """They were dropped after the time-out, and counted as those of rows that are gone."""
    with filled([30, 30], writers=2) as replay:
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, ahead=0, timeout=4.0) as learner:
            batch = learner.sample(300)
            handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
            rows = list(range(30, 60))
            with stopped(pid_of(replay.hosts[1])):
                for number in range(3):
                    values = 2.0 + number + np.arange(30)
                    learner.update_priorities([handles[row] for row in rows], values)
                with pytest.raises(TimeoutError, match="flush: host 1 did not answer in 4 s"):
                    learner.flush()
            until(lambda: learner.sample(200)["id"].max() >= 30, 60.0)
            learner.flush()
            assert learner.stats()["updates"] == 90
            assert learner.stats()["late_updates"] == 0
            assert masses_of(replay.hosts[1], learner) == {row: row - 26.0 for row in rows}


@pytest.mark.usefixtures("_elsewhere")
def test_updates_for_a_stopped_host_take_effect_when_it_is_killed_and_comes_back() -> None:
    """Those that it had not answered, and those of later calls, each in its order."""
    with filled([30, 30], writers=2) as replay:
        sampler = Prioritized(alpha=1.0, eps=0.0)
        with replay.learner(sampler, seed=0, ahead=0) as learner:
            batch = learner.sample(300)
            handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
            own = pid_of(replay.hosts[1])
            os.kill(own, signal.SIGSTOP)
            for number in range(100):
                learner.update_priorities([handles[30 + number % 30]], [2.0 + number])
            os.kill(own, signal.SIGKILL)
            learner.flush()
            assert learner.stats()["updates"] == 100
            assert learner.stats()["late_updates"] == 0
            expected = {30 + number % 30: 2.0 + number for number in range(70, 100)}
            assert masses_of(replay.hosts[1], learner) == expected


@pytest.mark.usefixtures("_elsewhere")
def test_a_learner_that_began_beside_a_stopped_host_draws_from_it_later() -> None:
    """It looks for hosts that were not there."""
    with filled([30, 30]) as replay:
        with stopped(pid_of(replay.hosts[1])):
            learner = replay.learner(seed=0, ahead=0)
            assert learner.sample(200)["id"].max() < 30
        until(lambda: learner.sample(200)["id"].max() >= 30, 60.0)
        learner.close()


@pytest.mark.usefixtures("_elsewhere")
def test_silent_writers_of_other_nodes_give_their_credit_back() -> None:
    """A host holds their shards, so that they seemed to live, with all the credit there was."""
    limiter = SampleToInsertRatio(1.0, 20, 8.0, timeout=40.0)
    with cluster(1, writers=16, limiter=limiter) as replay:
        dead = []
        for _ in range(8):
            actor = replay.actor()
            assert isinstance(actor, ClusterActor)
            dead.append(actor)
            host, writer = actor._host, actor._writer
            for _ in range(50):
                if host.call("has_credit", writer, 4, timeout=20.0):
                    break
                time.sleep(0.02)
        with replay.actor() as alive, replay.learner(seed=0, ahead=0) as learner:
            row = {name: values[0] for name, values in steps(7, 1).items()}
            for number in range(24):
                alive.add(**row)
                if number >= 20:
                    learner.sample(1)
        for actor in dead:
            actor.close()


@pytest.mark.usefixtures("_elsewhere")
def test_a_time_out_names_the_writers_that_fell_silent() -> None:
    """On both sides, with the numbers of their shards."""
    limiter = SampleToInsertRatio(1.0, 20, 8.0, timeout=7.0)
    with cluster(1, writers=3, limiter=limiter) as replay:
        silent = replay.actor()
        with pytest.raises(RateLimitTimeoutError, match=rf"shards \[{silent.number}\] are silent"):
            replay.learner(seed=0, ahead=0).sample(4)
        with (
            pytest.raises(RateLimitTimeoutError, match=rf"shards \[{silent.number}\] are silent"),
            replay.actor() as alive,
        ):
            add_each(alive, 200)
        silent.close()


def test_an_actor_of_a_node_with_a_host_says_when_the_host_brought_counts() -> None:
    """Its wait may be for the host, and not for learners."""
    limiter = SampleToInsertRatio(1.0, 20, 8.0, timeout=3.0)
    with cluster(1, limiter=limiter) as replay, replay.actor() as actor:
        with stopped(pid_of(replay.hosts[0])), pytest.raises(RateLimitTimeoutError) as caught:
            add_each(actor, 200)
        age = str(caught.value).split("their counts ")[1].split(" s ago")[0]
        assert float(age) > 2.0


@pytest.mark.usefixtures("_elsewhere")
def test_parameters_at_each_step_cost_no_call_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on a node without a host asks one host at an interval, and waits for none."""
    calls: list[str] = []
    begin = Host.begin

    def counted(self: Host, method: str, *arguments: Any) -> Any:
        calls.append(method)
        return begin(self, method, *arguments)

    with cluster(3) as replay:
        version = replay.parameters.publish({"w": np.zeros(4)})
        replay.parameters.wait()
        monkeypatch.setattr(Host, "begin", counted)
        began = time.monotonic()
        for _ in range(20_000):
            assert replay.parameters.latest(after=version) is None
        assert set(calls) <= {"parameters"}
        assert len(calls) <= (time.monotonic() - began) / INTERVAL + 1


def test_batches_on_their_way_fit_into_what_the_object_store_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is full writes to the disk, and asking ahead was slower than not to do it."""
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    store = {"object_store_memory": 100e6}
    fields: dict[str, Any] = {**FIELDS, "image": {"shape": 100_000, "dtype": np.uint8}}
    monkeypatch.setattr(asking, "available_resources_per_node", lambda: {"a": store})
    monkeypatch.setattr(asking, "STORE", 0.0)
    with cluster(1, 64, env_dict=fields) as replay:
        fill(replay, 0, {**steps(0, 20), "image": np.zeros((20, 100_000), np.uint8)})
        with replay.learner(seed=0, ahead=2, batches=16) as learner:
            for left, calls, most in ((100e6, 3, 16), (1.2e6, 3, 2), (0.25e6, 1, 1), (0.0, 1, 1)):
                store["object_store_memory"] = left
                for _ in range(60):  # past what was asked for before
                    learner.sample(1)
                (groups,) = learner._batches.groups.values()
                assert len(groups) <= calls
                assert all(len(group.owners) <= most for group in groups)
                if calls > 1:
                    assert len(groups) > 1


@pytest.mark.usefixtures("_elsewhere")
def test_updates_beside_two_calls_on_their_way_travel_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was a call. Each keeps its number, and one of no row is an error of itself alone."""
    calls: list[str] = []
    begin = Host.begin

    def counted(self: Host, method: str, *arguments: Any) -> Any:
        calls.append(method)
        return begin(self, method, *arguments)

    sampler = Prioritized(alpha=1.0, eps=0.0)
    with filled([30]) as replay, replay.learner(sampler, seed=0, ahead=0) as learner:
        batch = learner.sample(400)
        handles = dict(zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True))
        assert len(handles) == 30
        no_row = learner._batches.names.name(0, np.array([2**40]))
        monkeypatch.setattr(Host, "begin", counted)
        with stopped(pid_of(replay.hosts[0])):
            for row in range(20):
                learner.update_priorities([handles[row]], [2.0 + row])
            learner.update_priorities(no_row, [1.0])
            for row in range(20, 30):
                learner.update_priorities([handles[row]], [2.0 + row])
            assert calls.count("update") == 2
        with pytest.raises(IndexError, match="expected that of a row"):
            learner.flush()
        learner.flush()
        assert calls.count("update") == 3
        assert learner.stats()["updates"] == 31
        assert masses_of(replay.hosts[0], learner) == {row: 2.0 + row for row in range(30)}


@pytest.mark.usefixtures("_elsewhere")
def test_updates_that_wait_for_a_host_go_with_those_of_another() -> None:
    """Once it has answered, the next update sends them, whatever host its rows are of."""
    sampler = Prioritized(alpha=1.0, eps=0.0)
    with filled([30, 30]) as replay, replay.learner(sampler, seed=0, ahead=0) as learner:
        handles: dict[int, int] = {}
        while len(handles) < 60:
            batch = learner.sample(400)
            handles |= zip(batch["id"].tolist(), batch["indexes"].tolist(), strict=True)
        (part,) = [one for one in learner._directory.known if one.host is replay.hosts[0]]
        with stopped(pid_of(replay.hosts[0])):
            for row in range(10):
                learner.update_priorities([handles[row]], [2.0 + row])
            assert part.waiting[-1].call is None
        end = time.monotonic() + 20
        while part.waiting and part.waiting[-1].call is None:
            assert time.monotonic() < end, "they were not sent"
            learner.update_priorities([handles[40]], [1.5])
            time.sleep(0.01)
