"""``HostReplay``: the shared replay of a host, and records of its writers on other nodes.

The process of a host may die at any moment, and the memory outlives the process. Files beside the
rows record what the next process needs: the shard of each writer on another node, and the rows of
a shard when its writer lost it. Beside the checkpoints of ``host-0``, ``host-0.json`` lists the
memories of the host. So the count of lost rows is right after the loss of several nodes in turn.
Not here: calls of writers (``_hosts``).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._files.opening import read_bytes
from cpprb_like._machine.file_systems import replacing
from cpprb_like.limiters import RateLimiter
from cpprb_like.processes import Actor, SharedReplay
from cpprb_like.processes._words import mapped
from cpprb_like.ray._credit import CREDIT, WORDS, CreditedActor

__all__ = ["HostReplay", "Incarnation", "Opened", "WriterPlace"]

PLACE = "place-"  # file of each shard that a writer of another node has
LEFT = "left-"  # file of each writer that lost its shard
BEGUN = "begun"  # file: rows of each shard when the memory was made, and the memories so far
MOST_MEMORIES = 32
MOST_LEFT = 256  # files of writers that lost their shard


@dataclass(frozen=True)
class Incarnation:
    """One memory of a host, from its creation to the death of its node.

    Attributes
    ----------
    identity : str
        Identity of the memory: see ``identity_of``.
    begun : int
        Number of loaded rows with which the memory began.
    saved_at : float
        Time of the save of the loaded rows; 0 if the memory began without rows.
    """

    identity: str
    begun: int
    saved_at: float


@dataclass(frozen=True)
class WriterPlace:
    """A shard that a writer of another node has, or had.

    Attributes
    ----------
    writer : str
        Name of the writer.
    number : int
        How many places the writer has had at this host, this one included.
    before : int
        Rows in the shard of the writer's previous place, up to the writer's last row.
    rows : int
        Rows of the shard, this place's rows included.
    """

    writer: str
    number: int
    before: int
    rows: int = 0

    def rows_of(self, known: int) -> int:
        """Rows of the shard that the writer knows: its present shard or its previous one."""
        return self.rows if known == self.number else self.before


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


class HostReplay(SharedReplay):
    """The shared replay of a host."""

    limiter: RateLimiter | None = None  # that of the cluster

    def credit(self) -> NDArray[np.int64]:
        """The words of all shards, shape ``(writers, words)``."""
        path = self.folder / CREDIT
        if not path.exists():
            path.write_bytes(bytes(8 * len(WORDS) * self.writers))
        return mapped(path, np.int64).reshape(self.writers, len(WORDS))

    @classmethod
    def on_node(cls, name: str, base: str, limiter: RateLimiter | None) -> HostReplay:
        """The replay of a host on this node; ``FileNotFoundError`` if the replay is gone."""
        replay = cls._open(name, Path(base))
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

    def begun(
        self, identity: str, saved_at: float, checkpoints: str | None
    ) -> tuple[list[int], tuple[Incarnation, ...]]:
        """Rows of each shard when this memory was made, and the memories of the host, oldest first.

        The first process of the memory notes both, for those that come after it.
        """
        path = self.folder / BEGUN
        noted = _json(path)
        if noted is None:
            rows = list(self._adds())
            log = None if checkpoints is None else Path(checkpoints).with_suffix(".json")
            before = [] if log is None else _json(log) or []
            memories = [*before, [identity, sum(rows), saved_at]][-MOST_MEMORIES:]
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                _write(log, memories)
            noted = {"rows": rows, "memories": memories}
            _write(path, noted)
        return noted["rows"], tuple(Incarnation(*one) for one in noted["memories"])

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
