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

__all__ = [
    "NAMESPACE",
    "NOBODY",
    "SILENT_WRITER",
    "About",
    "HostPlan",
    "Incarnation",
    "Loss",
    "Opened",
    "Reply",
]

NAMESPACE = "cpprb_like"  # in Ray, of the names of ledgers
# In place of the rows that the call of a shard waits for: no actor has the shard, or a writer of
# another node that has made no call for ``CREDIT_LEASE``.
NOBODY, SILENT_WRITER = -1, -2


@dataclass(frozen=True)
class HostPlan:
    """The arguments from which a host creates its replay at each start.

    Attributes
    ----------
    cluster, identity : str
        Name of the cluster, and its identity, which no other cluster has.
    number : int
        Number of the host, from 0 on.
    capacity, writers : int
        Rows of the host, and the greatest number of writers at the same time.
    fields : dict
        ``env_dict``.
    options : dict
        Further keyword arguments of ``SharedReplay``.
    limiter : RateLimiter or None
        Limiter of the cluster. With a limiter, actors ask for credit.
    folder : str or None
        Folder of the checkpoints of this host.
    seconds : float
        Seconds between two checkpoints.
    begin : (str, int) or None
        Folder and number of a saved state, with which the host begins.
    """

    cluster: str
    identity: str
    number: int
    capacity: int
    writers: int
    fields: Mapping[str, Any]
    options: Mapping[str, Any]
    limiter: RateLimiter | None = None
    folder: str | None = None
    seconds: float = 60.0
    begin: tuple[str, int] | None = None

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
    """One memory of a host, from its creation to the death of its node.

    Attributes
    ----------
    identity : str
        Identity of the memory: see ``identity_of``.
    loaded : tuple of int
        Loaded rows of each shard with which the memory began.
    saved_at : float
        Time of the save of the loaded rows; 0 if the memory began without rows.
    moment : float
        Time at which the memory began, by ``time.time`` of the node.
    """

    identity: str
    loaded: tuple[int, ...]
    saved_at: float
    moment: float

    @classmethod
    def of(cls, identity: str, loaded: list[int], saved_at: float, moment: float) -> Incarnation:
        """A memory that a file names."""
        return cls(identity, tuple(loaded), saved_at, moment)


@dataclass(frozen=True)
class About:
    """The location and the memory of a host.

    Attributes
    ----------
    number : int
        Number of the host.
    node : str
        Name of the node in Ray.
    replay, base : str
        Name and folder of its shared replay, for processes of the node.
    identity : str
        See ``identity_of``.
    written : tuple of int
        Rows that were ever written to each shard.
    memories : tuple of Incarnation
        The memories of the host so far, this one included.
    moment : float
        Time of the count of rows, or just before, by ``time.time`` of the node.
    """

    number: int
    node: str
    replay: str
    base: str
    identity: str
    written: tuple[int, ...]
    memories: tuple[Incarnation, ...]
    moment: float

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
    """The answer to ``ShardHost.open_writer``.

    Attributes
    ----------
    shard : int
        Number of the shard.
    place : int
        Number of the place.
    rows : int
        Rows that were ever written to the shard.
    done : int
        Rows of the shard that the writer had before, up to the writer's last one.
    identity : str
        Identity of the memory of the host: see ``identity_of``.
    """

    shard: int
    place: int
    rows: int
    done: int
    identity: str


@dataclass(frozen=True)
class Reply:
    """Items that a host drew.

    Attributes
    ----------
    identity : str
        See ``identity_of``.
    columns : dict of (ndarray or Chained)
        The items of all batches that were asked for, one after another.
    masses : ndarray or None
        The mass of each item; None if all masses are 1.
    mass : Mass
        The mass of the host before the draw.
    """

    identity: str
    columns: Mapping[str, Array | Chained]
    masses: NDArray[np.float64] | None
    mass: Mass
