"""Clusters of hosts on this node, and steps whose values follow from their numbers."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like.ray import ClusterActor, ClusterLearner, ClusterReplay
from cpprb_like.ray._calls import answer_of
from cpprb_like.ray._connection import Connection

__all__ = [
    "ELSEWHERE",
    "FIELDS",
    "UNEVEN",
    "cluster",
    "each_place",
    "fill",
    "filled",
    "flush",
    "kill_host",
    "masses_of",
    "pid_of",
    "steps",
    "until",
    "wipe",
]

FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": np.int64},
    "obs": {"shape": 3},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
ELSEWHERE = "elsewhere"  # the node of a process that asks hosts by calls of Ray
UNEVEN = {1: [90], 3: [10, 80, 30], 7: [1, 50, 7, 20, 5, 30, 9]}  # rows of each host


def steps(first: int, n: int) -> dict[str, Any]:
    """Steps whose values follow from their number, in episodes of ten."""
    ids = np.arange(first, first + n)
    return {
        "id": ids,
        "obs": (ids[:, None] + [0.0, 0.25, 0.5]).astype(np.float32),
        "rew": (ids % 7).astype(np.float32),
        "done": ids % 10 == 9,
    }


def cluster(hosts: int = 1, capacity: int | None = None, **options: Any) -> ClusterReplay:
    """A cluster with some hosts, all on this node."""
    given: dict[str, Any] = {"env_dict": FIELDS, "writers": 2} | options
    fields = given.pop("env_dict")
    return ClusterReplay(capacity or 1000 * hosts, fields, hosts=hosts, **given)


def fill(replay: ClusterReplay, number: int, rows: dict[str, Any]) -> None:
    """Add rows to one host."""
    with ClusterActor(replay.hosts[number], replay._connection.options, 20.0, None) as actor:
        actor.add(**rows)


def filled(counts: list[int], **options: Any) -> ClusterReplay:
    """A cluster whose hosts have so many rows each."""
    replay = cluster(len(counts), **options)
    first = 0
    for number, count in enumerate(counts):
        fill(replay, number, steps(first, count))
        first += count
    return replay


def each_place() -> Iterator[str]:
    """This process on the node of the hosts, then on another: one cluster serves both.

    A host takes over a second to start, so tests that change no cluster go through both places.
    """
    yield "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "node", lambda _: ELSEWHERE)
        yield ELSEWHERE


def flush(actor: Any) -> None:
    """Have all steps be in the replay."""
    if isinstance(actor, ClusterActor):
        actor.flush()


def until(look: Any, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def pid_of(host: Any) -> int:
    """The process of a host."""
    return int(host.call("pid", timeout=30.0))


def masses_of(host: Any, learner: ClusterLearner) -> dict[int, float]:
    """The masses of the rows of a host, by their numbers, for a learner on another node."""
    asked = host.begin("draw", learner.name, "", 800, {"indexes": True}, 1.0)
    reply = answer_of(asked, 30.0)
    found = zip(reply.columns["id"].tolist(), reply.masses.tolist(), strict=True)
    return dict(sorted(found))


def kill_host(host: Any) -> None:
    """Kill the process of a host, whose memory stays."""
    os.kill(pid_of(host), signal.SIGKILL)


def wipe(replay: ClusterReplay, about: Any) -> None:
    """Have a host lose its memory, as if its node had died."""
    pid = pid_of(replay.hosts[about.number])
    shutil.rmtree(Path(about.base) / about.replay)
    os.kill(pid, signal.SIGKILL)
