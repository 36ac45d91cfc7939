"""What a cluster takes from Ray when it starts, whom it lets in, and what is left at its end."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import Any

import pytest
from cluster_cases import ELSEWHERE, FIELDS, cluster, fill, steps
from local_ray import ray
from ray.util import placement_group_table

import cpprb_like.ray._cluster as module
from cpprb_like.processes import SharedReplay
from cpprb_like.ray import ClusterActor, ClusterReplay
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._messages import About


@pytest.mark.parametrize(("hosts", "writers"), [(3, 1), (3, 4), (1, 3)])
def test_a_cluster_holds_as_many_steps_as_it_was_asked_for(hosts: int, writers: int) -> None:
    """Parts of hosts and writers are rounded up, and not down."""
    with ClusterReplay(10, FIELDS, writers=writers, hosts=hosts) as replay:
        assert 10 <= replay.capacity < 10 + hosts * writers
        fill(replay, hosts - 1, steps(0, 10))
        held = replay.hosts[hosts - 1].call("about", timeout=20.0)
        assert replay.capacity == hosts * writers * replay._connection.options.size
        assert sum(held.written) == 10


@pytest.mark.parametrize("writers", [3, 4, 11])
def test_a_shared_replay_holds_as_many_steps_as_it_was_asked_for(writers: int) -> None:
    """Its writers have equal parts, which are rounded up."""
    with SharedReplay(10, FIELDS, writers=writers) as replay:
        assert 10 <= replay.capacity < 10 + writers


def groups() -> list[Any]:
    """The placement groups that Ray keeps, or waits to make."""
    found = placement_group_table().values()
    return [one for one in found if one["state"] != "REMOVED"]


def test_a_start_that_fails_leaves_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement groups stayed, and took what the next start asks for."""
    monkeypatch.setattr(module, "START", 1.0)
    before = len(groups())
    with pytest.raises(TimeoutError, match="of 2 hosts came"):
        cluster(2, resources={"num_cpus": 3})  # of the four that there are
    assert len(groups()) == before
    monkeypatch.undo()
    with cluster(1, resources={"num_cpus": 3}):
        pass


def test_an_actor_goes_to_another_host_if_its_own_is_full(where: str) -> None:
    """It is refused only when all writers of all hosts are taken; a host by number has no other."""
    with cluster(2, writers=1) as replay:
        actors = [replay.actor(), replay.actor()]
        for number, actor in enumerate(actors):
            actor.add(**steps(10 * number, 10))
            if isinstance(actor, ClusterActor):
                actor.flush()
        with replay.learner(seed=0) as learner:
            assert set(learner.sample(400)["id"].tolist()) == set(range(20))
        for host in (None, 0, 1):
            with pytest.raises(BlockingIOError):
                replay.actor(host=host)
        for actor in actors:
            actor.close()


def test_an_actor_of_a_full_node_sends_its_steps_to_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose host has room: it was refused."""
    abouts = Connection.abouts

    def elsewhere(*arguments: Any, **options: Any) -> dict[int, About]:
        """Answers in which the second host is on another node."""
        found = abouts(*arguments, **options)
        return {k: replace(one, node=ELSEWHERE) if k == 1 else one for k, one in found.items()}

    monkeypatch.setattr(Connection, "abouts", elsewhere)
    with cluster(2, 100, writers=1) as replay, replay.actor() as first:
        assert not isinstance(first, ClusterActor)
        with replay.actor() as second:
            assert isinstance(second, ClusterActor)
            assert second.stats()["host"] == 1


def test_a_closed_cluster_says_so_at_once() -> None:
    """Its methods asked for a minute; those of other processes know after a second."""
    replay = cluster()
    other: ClusterReplay = pickle.loads(pickle.dumps(replay))
    replay.close()
    replay.close()
    began = time.monotonic()
    for call in (replay.stats, replay.losses, replay.members, replay.actor, replay.learner):
        with pytest.raises(RuntimeError, match="was closed"):
            call()
    for call in (other.stats, other.losses):
        with pytest.raises(RuntimeError, match="was closed"):
            call()
    assert time.monotonic() - began < 20.0
    assert ray.is_initialized()
