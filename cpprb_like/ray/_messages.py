"""Values that processes of a cluster send to one another, besides blocks of rows (``_blocks``).

This module imports no other end of a cluster. Not here: calls and their answers (``_calls``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like.limiters import RateLimiter
from cpprb_like.processes import Mass
from cpprb_like.ray._blocks import Chained

NAMESPACE = "cpprb_like"  # in Ray, of the names of ledgers
# In place of the rows that the call of a shard waits for: no actor has the shard, or a writer of
# another node that has made no call for ``CREDIT_LEASE``.
NOBODY, SILENT_WRITER = -1, -2


@dataclass(frozen=True)
class HostPlan:
    """The arguments from which a host creates its replay at each start."""

    cluster: str  # name of the cluster
    identity: str  # identity of the cluster, which no other cluster has
    number: int  # number of the host, from 0 on
    capacity: int  # rows of the host
    writers: int  # greatest number of writers at the same time
    fields: Mapping[str, Any]  # ``env_dict``
    options: Mapping[str, Any]  # further arguments of ``SharedReplay``
    limiter: RateLimiter | None = None  # limiter, of which actors ask for credit
    folder: str | None = None  # folder of the checkpoints of this host
    seconds: float = 60.0  # seconds between two checkpoints
    begin: tuple[str, int] | None = None  # folder and number of the saved state to begin with

    @property
    def replay(self) -> str:
        """The name of the host's shared replay, which no other cluster has."""
        return f"{self.identity}-{self.number}"

    @property
    def ledger(self) -> str:
        """The name of the ledger in Ray.

        A name and not a handle, as Ray warns of handles among arguments of constructors that are
        called again. Ray refuses a second ledger of a name.
        """
        return f"ledger-{self.cluster}"


@dataclass(frozen=True)
class Incarnation:
    """One memory of a host, from its creation to the death of its node."""

    identity: str  # result of ``identity_of``
    loaded: tuple[int, ...]  # rows of each shard with which the memory began
    saved_at: float  # time of the save of these rows; 0 without rows
    moment: float  # time of the begin, by ``time.time`` of the node

    @classmethod
    def of(cls, identity: str, loaded: list[int], saved_at: float, moment: float) -> Incarnation:
        """A memory that a file names."""
        return cls(identity, tuple(loaded), saved_at, moment)


@dataclass(frozen=True)
class About:
    """The location and the memory of a host."""

    number: int  # number of the host
    node: str  # name of the node in Ray
    replay: str  # name of the shared replay, for processes of the node
    base: str  # folder of the shared replay
    identity: str  # result of ``identity_of``
    written: tuple[int, ...]  # rows that were ever written to each shard
    memories: tuple[Incarnation, ...]  # memories so far, this one included
    moment: float  # time of the count of rows, or just before, by ``time.time`` of the node

    def is_before(self, other: About) -> bool:
        """Whether the memory of another report of the host came after this one's."""
        return self.identity in [one.identity for one in other.memories[:-1]]

    def after(self, identity: str) -> tuple[Incarnation, ...]:
        """The memories that followed another one; this memory, if the next one is not known."""
        names = [one.identity for one in self.memories]
        return (
            self.memories[names.index(identity) + 1 :] if identity in names else self.memories[-1:]
        )


@dataclass(frozen=True)
class Loss:
    """The loss of the memory of a host: ``ClusterReplay.losses``.

    Attributes
    ----------
    host : int
        Number of the host.
    rows : int
        Rows that the host had written by its last report, without the rows of the checkpoint with
        which it restarts. Later rows of writers on other nodes are counted, as soon as these
        writers come back to the host.
    seconds : float
        Seconds from that checkpoint to the last report. Without a checkpoint, seconds from the
        start of the host.
    moment : float
        Time of the last report, by ``time.time`` of the node. Without a report, time of the start
        of the host. Rows that processes of the node wrote after the last report are lost too. A
        host that is not overloaded reports every 50 ms.
    """

    host: int
    rows: int
    seconds: float
    moment: float


@dataclass(frozen=True)
class Opened:
    """The answer to ``ShardHost.open_writer``."""

    shard: int  # number of the shard
    place: int  # number of the place
    rows: int  # rows that were ever written to the shard
    done: int  # rows of the shard that the writer had before, up to the writer's last one
    identity: str  # identity of the memory of the host


@dataclass(frozen=True)
class Reply:
    """Items that a host drew."""

    identity: str  # identity of the memory of the host
    # Items of all batches that were asked for, one after another.
    columns: Mapping[str, Array | Chained]
    masses: NDArray[np.float64] | None  # mass of each item; None if all masses are 1
    mass: Mass  # mass of the host before the draw
