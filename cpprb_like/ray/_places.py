"""``HostReplay``: the shared replay of a host, and records of its writers on other nodes.

The process of a host may die at any moment, and the memory outlives the process. Files beside the
rows record what the next process needs: the shard of each writer on another node, and the rows of
a shard when its writer lost it. Beside the checkpoints of ``host-0``, ``host-0.json`` names the
cluster and lists the memories of the host. So the count of lost rows is right after the loss of
several nodes in turn, and a host loads no checkpoint of another cluster. Not here: calls of writers
(``_hosts``).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.file_systems import replacing
from cpprb_like._machine.opening import read_bytes
from cpprb_like.checkpoint import states
from cpprb_like.limiters import RateLimiter
from cpprb_like.processes import Actor, SharedReplay
from cpprb_like.processes._saving import read_saved
from cpprb_like.processes._words import mapped
from cpprb_like.ray._credit import CREDIT, WORDS, CreditedActor
from cpprb_like.ray._messages import Incarnation

PLACE = "place-"  # file of each shard that a writer of another node has
LEFT = "left-"  # file of each writer that lost its shard
BEGUN = "begun"  # file: the memories of the host so far
MOST_MEMORIES = 32
MOST_LEFT = 256  # files of writers that lost their shard
COMES_BACK = 60.0  # seconds in which a killed host comes back, and its memory is kept


@dataclass(frozen=True)
class WriterPlace:
    """A shard that a writer of another node has, or had."""

    writer: str  # name of the writer
    number: int  # number of places that the writer has had at this host, this one included
    before: int  # rows in the shard of the previous place, up to the writer's last row
    rows: int = 0  # rows of the shard, those of this place included

    def rows_of(self, known: int) -> int:
        """Rows of the shard that the writer knows: its present shard or its previous one."""
        return self.rows if known == self.number else self.before


class Checkpoints:
    """The folder of the checkpoints of one host, and the file beside it with the owner's name.

    ``cluster`` is the identity of the cluster, ``ledger`` the name of its ledger in Ray.
    """

    def __init__(self, folder: str, cluster: str, ledger: str) -> None:
        self.folder, self._cluster, self._ledger = folder, cluster, ledger
        self._path = Path(folder).with_suffix(".json")

    def owner(self) -> tuple[str, str] | None:
        """The identity of the cluster whose checkpoints these are, and the name of its ledger.

        None without checkpoints. Both are empty if the file beside the checkpoints names no owner.
        """
        content = _json(self._path)
        if isinstance(content, dict):
            return str(content["cluster"]), str(content["ledger"])
        return ("", "") if states(self.folder) else None

    @property
    def are_ours(self) -> bool:
        """Whether the folder belongs to this cluster."""
        owner = self.owner()
        return owner is not None and owner[0] == self._cluster

    def take(self) -> None:
        """Make the folder one of this cluster, which loads no checkpoint that is there."""
        self.note([])

    def memories(self) -> list[Incarnation]:
        """The memories of the host so far, oldest first."""
        listed = _json(self._path)["memories"] if self.are_ours else []
        return [Incarnation.of(*one) for one in listed]

    def note(self, memories: list[Incarnation]) -> None:
        """Record the memories of the host."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        listed = [list(vars(one).values()) for one in memories]
        _write(self._path, {"cluster": self._cluster, "ledger": self._ledger, "memories": listed})

    def has_newest(self) -> bool:
        """Whether the newest state is one of a memory of this cluster's host."""
        known = [one.identity for one in self.memories()]
        if not known or not states(self.folder):
            return False
        return read_saved(self.folder, None, lambda saved: saved.identity) in known


class HostReplay(SharedReplay):
    """The shared replay of a host."""

    limiter: RateLimiter | None = None  # that of the cluster

    def credit(self) -> NDArray[np.int64]:
        """The words of all shards, shape ``(writers, words)``."""
        path = self.folder / CREDIT
        if not path.exists():
            path.write_bytes(bytes(8 * len(WORDS) * self.writers))
        return mapped(path, np.int64).reshape(self.writers, len(WORDS))

    def keep(self) -> None:
        """Have the memory outlive its processes until the host has come back from a kill."""
        self._folder.keep_until(time.time() + COMES_BACK)

    @classmethod
    def on_node(
        cls, name: str, base: str, limiter: RateLimiter | None, identity: str | None = None
    ) -> HostReplay:
        """The replay of a host on this node; ``FileNotFoundError`` if the replay is gone."""
        replay = cls._open(name, Path(base), identity)
        assert isinstance(replay, HostReplay)
        replay.limiter = limiter
        return replay

    def _open_actor(self, *given: Any) -> Actor:
        if self.limiter is None:
            actor = super()._open_actor(*given)
        else:
            limited = CreditedActor(*given)
            limited.take_credit(self.limiter, self.credit()[limited.number])
            actor = limited
        self._note_left(actor)
        return actor

    # ------------------------------------------------------------------ writers of other nodes

    def memories(self, saved_at: float, checkpoints: Checkpoints | None) -> tuple[Incarnation, ...]:
        """The memories of the host, oldest first, this one included.

        The first process of the memory notes them, for those that come after it.
        """
        path = self.folder / BEGUN
        noted = _json(path)
        if noted is None:
            before = [] if checkpoints is None else checkpoints.memories()
            memory = Incarnation(self._identity, self._adds(), saved_at, time.time())
            memories = [*before, memory][-MOST_MEMORIES:]
            if checkpoints is not None:
                checkpoints.note(memories)
            noted = {"memories": [list(vars(one).values()) for one in memories]}
            _write(path, noted)
        return tuple(Incarnation.of(*one) for one in noted["memories"])

    def note_writer(self, shard: int, place: WriterPlace | None) -> None:
        """Note which writer of another node has a shard, whose lock this process has."""
        path = self.folder / f"{PLACE}{shard}"
        if place is None:
            path.unlink(missing_ok=True)
        else:
            _write(path, asdict(place))
            (self.folder / f"{LEFT}{place.writer}").unlink(missing_ok=True)

    def writers_of_nodes(self) -> dict[int, WriterPlace]:
        """The writers of other nodes, by their shards."""
        found = {}
        for number in range(self.writers):
            place = _read(self.folder / f"{PLACE}{number}")
            if place is not None:
                found[number] = place
        return found

    def left(self, writer: str) -> WriterPlace | None:
        """The place that a writer lost; None without such a place."""
        return _read(self.folder / f"{LEFT}{writer}")

    def _note_left(self, actor: Actor) -> None:
        """Note how many rows a shard has that a process takes from a writer of another node."""
        path = self.folder / f"{PLACE}{actor.number}"
        place = _read(path)
        if place is None:
            return
        _write(
            self.folder / f"{LEFT}{place.writer}",
            asdict(replace(place, rows=int(actor.ring.written))),
        )
        path.unlink(missing_ok=True)
        known = sorted(self.folder.glob(f"{LEFT}*"), key=os.path.getmtime)
        for old in known[:-MOST_LEFT]:
            old.unlink(missing_ok=True)


def _write(path: Path, values: object) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(values), encoding="utf-8")


def _json(path: Path) -> Any:
    """The content of a file; None without the file."""
    try:
        return json.loads(read_bytes(path))
    except FileNotFoundError:
        return None


def _read(path: Path) -> WriterPlace | None:
    found = _json(path)
    return None if found is None else WriterPlace(**found)
